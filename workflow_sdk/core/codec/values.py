"""Authors' values as bytes, and back.

The law: for every value and hint, either `encode` raises `CodecError`, or `decode` of its bytes is an equal value with
equal types all the way down. Nothing is coerced. A hint adds knowledge, it never changes a value: it leads to classes
that have no name of their own (those made in functions), or have got another one since.

`encode_checked` and `decode_checked` are for the doors, where values come in from outside: there the hint says what is
wanted, and what does not fit it is refused.
"""

from __future__ import annotations

from typing import Any, Final

from cbor2 import CBORError, dumps, loads

from workflow_sdk.core.codec.classes import Known, classes_of
from workflow_sdk.core.codec.fitting import fitter
from workflow_sdk.core.codec.framing import read_simple
from workflow_sdk.core.codec.lifting import Mode, lift
from workflow_sdk.core.codec.lowering import ATOMS, lower, text_problem
from workflow_sdk.core.codec.problem import Problem, error_text
from workflow_sdk.core.codec.sealing import SEAL, Wrappers, no_seals, seals_of
from workflow_sdk.errors import CodecError, PayloadTooLargeError

__all__ = ["VALUE_BYTES_MAX", "Codec"]

VALUE_BYTES_MAX: Final = 2_000_000
_HINTS_MAX: Final = 4096
_NOTHING_KNOWN: Final = Known()
_SINGLETONS: Final = {None: dumps(None), True: dumps(True), False: dumps(False)}
_TAGLESS_KINDS: Final = frozenset({0, 1, 2, 3, 7})  # major types of CBOR: integers, bytes, text, simple values


class Codec:
    """Encodes and decodes authors' values.

    Errors say what is wrong, where in the value, and what to do; the caller adds which operation it was.
    """

    def __init__(self, *, max_value_bytes: int = VALUE_BYTES_MAX, wrapper: Wrappers | None = None) -> None:
        self.max_value_bytes = max_value_bytes
        self.wrapper = wrapper
        self._seals = seals_of(wrapper)
        self._known: dict[object, Known] = {}

    def encode(self, value: object, hint: object = Any) -> bytes:
        """The bytes of `value`; raises `CodecError`, or `PayloadTooLargeError`."""
        data = self._to_bytes(value, hint)
        return data if self._seals is None else self._seals.close(data)

    def encode_like(self, before: bytes | None, value: object) -> bytes:
        """The bytes of `value`: `before`, if they are of the same value. What encrypts gives other bytes each time."""
        if self._seals is None or before is None:
            return self.encode(value)
        data = self._to_bytes(value, Any)
        try:
            if self._seals.open(before) == data:
                return before
        except CodecError:
            pass
        return self._seals.close(data)

    def decode(self, data: bytes, hint: object = Any, *, plain: bool = False) -> Any:
        """The value that `data` holds; raises `CodecError`.

        `plain` gives dicts for objects and values for enum members: for those who do not have the classes.
        """
        return self._from_bytes(self._opened(data), hint, "plain" if plain else "exact")

    def roundtrip(self, value: object, hint: object = Any) -> tuple[bytes, Any]:
        """The bytes of `value`, and the value that a later `decode` will give."""
        data = self._to_bytes(value, hint)
        if type(value) not in ATOMS:
            value = self._from_bytes(data, hint, "exact", own=True)
        return (data if self._seals is None else self._seals.close(data)), value

    def encode_checked(self, value: object, hint: object = Any) -> bytes:
        """The bytes of `value`, which must fit its hint; raises `CodecError`."""
        _fit(value, hint, convert=False)
        return self.encode(value, hint)

    def decode_checked(self, data: bytes, hint: object = Any) -> Any:
        """The value that `data` holds, as its hint asks for; raises `CodecError`.

        Plain data is converted: a dict to the dataclass that is asked for, ISO text to a datetime.
        """
        return _fit(self._from_bytes(self._opened(data), hint, "lenient"), hint, convert=True)

    # What is written beside values, and is an author's or a person's all the same.

    def encode_text(self, text: str) -> str | bytes:
        """A text as it is stored: in clear where there is no codec. Never raises."""
        if self._seals is None:
            return text
        try:
            return self._seals.close(dumps(text))
        except CodecError:
            return "(the codec could not encode this text)"

    def decode_text(self, found: str | bytes) -> str:
        """The text that was stored; raises `CodecError`."""
        if isinstance(found, str):
            return found
        text = self.decode(found)
        if not isinstance(text, str):
            raise CodecError("the stored bytes are no text")
        return text

    # Whether an instance can be read here.

    def check_readable(self, data: bytes) -> None:
        """`SealedError`, if the value can't be read with the codecs that are here."""
        self._opened(data)

    def is_same(self, one: bytes, other: bytes) -> bool:
        """Whether both are of one value; raises `CodecError`."""
        return one == other or self._opened(one) == self._opened(other)

    def is_own(self, data: bytes) -> bool:
        """Whether whoever can read `data` can also read what is written here."""
        return data[:3] != SEAL if self._seals is None else self._seals.wrote(data)

    def _opened(self, data: bytes) -> bytes:
        if self._seals is not None:
            return self._seals.open(data)
        if data[:3] == SEAL:
            raise no_seals()
        return data

    def _to_bytes(self, value: object, hint: object) -> bytes:
        if value is None or value is True or value is False:
            return _SINGLETONS[value]
        try:
            data = dumps(value if type(value) in ATOMS else lower(value, self._classes(hint)))
        except Problem as problem:
            raise CodecError(str(problem)) from problem.__cause__
        except UnicodeEncodeError:
            found = text_problem(value if type(value) in ATOMS else lower(value, self._classes(hint)))
            raise CodecError(str(found or "the value holds text that UTF-8 does not have")) from None
        except RecursionError:
            raise CodecError("the value is nested too deeply, or holds itself; pass a flat form of it") from None
        except Exception as error:  # an author's class may raise anything when it is looked at
            raise CodecError(f"the value can't be read: {error_text(error)}") from error
        if len(data) > self.max_value_bytes:
            raise PayloadTooLargeError(
                f"the value is {len(data):,} bytes encoded, and the limit is {self.max_value_bytes:,} (max_value_bytes)"
                "; store it elsewhere and pass a reference"
            )
        return data

    def _from_bytes(self, data: bytes, hint: object, mode: Mode, *, own: bool = False) -> Any:
        try:
            if data[0] >> 5 in _TAGLESS_KINDS:
                return loads(data) if own else read_simple(data)
            return lift(data, self._classes(hint), mode, own=own)
        except Problem as problem:
            raise CodecError(str(problem)) from problem.__cause__
        except (CBORError, ValueError, TypeError, IndexError) as error:
            raise CodecError(f"the stored bytes are no value of this library: {error_text(error)}") from error
        except RecursionError:
            raise CodecError("the stored value is nested too deeply") from None
        except Exception as error:  # as when a class of the author's is put together
            raise CodecError(f"the value can't be made: {error_text(error)}") from error

    def _classes(self, hint: object) -> Known:
        if hint is Any or hint is object or hint is None:
            return _NOTHING_KNOWN
        try:
            known = self._known.get(hint)
        except TypeError:  # not hashable, as Annotated[int, []]
            return Known(classes_of(hint))
        if known is None:
            known = Known(classes_of(hint))
            if len(self._known) >= _HINTS_MAX:
                self._known.clear()
            self._known[hint] = known
        return known


def _fit(value: object, hint: object, *, convert: bool) -> Any:
    try:
        return fitter(hint)(value, convert)
    except Problem as problem:
        raise CodecError(str(problem)) from problem.__cause__
    except RecursionError:
        raise CodecError("the value is nested too deeply, or holds itself; pass a flat form of it") from None
    except Exception as error:  # an author's class may raise anything when it is looked at
        raise CodecError(f"the value can't be checked: {error_text(error)}") from error
