"""Exceptions come back as they were: class, arguments, attributes, text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import cbor2
import pydantic
import pytest

from workflow_sdk.errors import (
    ChildFailedError,
    CriticalError,
    ErrorInfo,
    InputError,
    JoinError,
    ListenTimeoutError,
    PayloadTooLargeError,
    RaceError,
    RollbackError,
    StepCriticalError,
    StepExhaustedError,
    StepTimeoutError,
    WorkflowFailedError,
)
from workflow_sdk.rows.wire import ErrorRow
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import describe, pack_error_info, pack_failure, unpack_error_info, unpack_failure

pytestmark = pytest.mark.law(4, 18)

CODEC = Codec()
INFO = ErrorInfo("app.CardDeclined", "no", "Traceback ...", {"code": 7, "tags": {"a"}, "who": (1, 2)}, "transport")


@dataclass(frozen=True)
class Money:
    amount: int


class CardDeclined(CriticalError):
    calls = 0

    def __init__(self, code: int, *, money: Money) -> None:
        type(self).calls += 1
        super().__init__(f"declined with {code}")
        self.code = code
        self.money = money


class Wordy(Exception):
    def __str__(self) -> str:
        return f"wordy {self.args[0]!r} {getattr(self, 'more', None)}"


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class DataError(Exception):
    x: int
    y: str = "y"


class MissingFile(OSError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "not there", name)
        self.name = name


class Several(ExceptionGroup[Exception]):
    code: int

    def __new__(cls, errors: Sequence[Exception], code: int) -> Several:
        made = super().__new__(cls, "several", errors)
        made.code = code
        return made

    def __init__(self, errors: Sequence[Exception], code: int) -> None: ...

    def derive(self, excs: Sequence[Exception], /) -> Several:  # type: ignore[override]
        return Several(excs, self.code)


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unruly(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no args")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def again(error: Exception, codec: Codec = CODEC) -> Any:
    """`error`, as a replay would raise it."""
    record = cbor2.loads(cbor2.dumps(pack_failure(error, codec), canonical=False))
    return unpack_failure(record, codec)


def check_same(error: Exception, codec: Codec = CODEC) -> Any:
    seen = again(error, codec)
    assert type(seen) is type(error)
    assert str(seen) == str(error)
    assert repr(seen.args) == repr(error.args)
    assert repr(getattr(seen, "__dict__", None)) == repr(getattr(error, "__dict__", None))
    return seen


def raised(fn: Any, *args: Any) -> Exception:
    try:
        fn(*args)
    except Exception as error:  # noqa: BLE001  # any, to be looked at
        return error
    raise AssertionError("it did not raise")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        ValueError("x", 1, (2, {"a"}), None),
        KeyError("k"),
        KeyError(("a", 1)),
        StopIteration(5),
        TimeoutError("late"),
        OSError("just text"),
        OSError(2, "not there", "a.txt"),
        PermissionError(13, "no", "a", None, "b"),
        raised(b"\xff".decode),
        raised("\u20ac".encode, "ascii"),
        raised(compile, "a b", "f.py", "eval"),
        raised(__import__, "there_is_no_such_module"),
        raised(getattr, 5, "nothing"),
        raised(int, "x"),
        raised(open, "/does/not/exist"),
        Wordy(1),
        Slotted(4),
        DataError(1),
        MissingFile("a.txt"),
        CardDeclined(4, money=Money(3)),
        RollbackError("undo"),
        ListenTimeoutError("late"),
        InputError("bad"),
        PayloadTooLargeError("big"),
        StepExhaustedError("s", "a/s", 3, INFO),
        StepCriticalError("s", "a/s", 1, INFO),
        StepTimeoutError("s", "a/s", 2, INFO),
        ChildFailedError("c-1", INFO),
        WorkflowFailedError("w-1", "failed", INFO),
        WorkflowFailedError("w-1", "failed"),
        ExceptionGroup("some", [ValueError(1), ExceptionGroup("inner", [KeyError(2)])]),
        Several([ValueError(1), TypeError("t")], 7),
    ],
    ids=repr,
)
def test_an_exception_comes_back_as_it_was(error: Exception) -> None:
    seen = check_same(error)
    assert repr(check_same(seen)) == repr(seen)


def test_what_c_code_keeps_is_kept() -> None:
    seen = again(MissingFile("a.txt"))
    assert (seen.errno, seen.strerror, seen.filename, seen.name) == (2, "not there", "a.txt", "a.txt")
    assert again(OSError(2, "x", "a.txt")).filename == "a.txt"
    assert again(raised(b"\xff".decode)).object == b"\xff"
    assert again(raised(__import__, "there_is_no_such_module")).name == "there_is_no_such_module"
    assert again(Slotted(4)).code == 4


def test_the_constructor_of_the_author_does_not_run_again() -> None:
    error = CardDeclined(4, money=Money(3))
    before = CardDeclined.calls
    seen = again(error)
    assert CardDeclined.calls == before
    assert (seen.code, seen.money) == (4, Money(3))


def test_a_step_error_has_its_error_info() -> None:
    seen = again(StepExhaustedError("s", "a/s", 3, INFO))
    assert seen.error == INFO
    assert (seen.step, seen.path, seen.attempts) == ("s", "a/s", 3)
    assert type(seen.error.attributes["who"]) is tuple


@pytest.mark.parametrize("kind", [JoinError, RaceError])
def test_branch_errors_are_built_anew_in_their_order(kind: type[JoinError | RaceError]) -> None:
    inner = RaceError("all lost", {"z": CardDeclined(1, money=Money(2)), "a": StepTimeoutError("s", "p", 1, INFO)})
    error = kind("2 of 3 failed", {"b": ValueError("x"), "a": inner})
    seen = check_same(error)
    assert list(seen.errors) == ["b", "a"]
    assert list(seen.errors["a"].errors) == ["z", "a"]
    assert list(seen.exceptions) == list(seen.errors.values())
    assert seen.errors["a"].errors["z"].money == Money(2)
    assert seen.split(ValueError)[0].errors.keys() == {"b"}


def test_a_group_of_the_author_keeps_its_code_and_its_exceptions() -> None:
    seen = again(Several([ValueError(1), CardDeclined(1, money=Money(2))], 7))
    assert seen.code == 7
    assert [type(e) for e in seen.exceptions] == [ValueError, CardDeclined]


def test_notes_and_the_cause_are_kept() -> None:
    error = ValueError("x")
    error.add_note("look here")
    error.__cause__ = KeyError("deep")
    error.__cause__.__cause__ = KeyError("deeper")
    seen = again(error)
    assert seen.__notes__ == ["look here"]
    assert repr(seen.__cause__) == "KeyError('deep')"
    assert seen.__cause__.__cause__ is None


def test_exceptions_in_attributes_and_arguments_come_back_too() -> None:
    error = ValueError(KeyError("a"), [TypeError("b")])
    error.inner = CardDeclined(1, money=Money(2))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    error.named = {"x": KeyError("y")}  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    seen = check_same(error)
    assert seen.inner.money == Money(2)


def test_a_local_class_is_found_in_this_process_and_the_last_one_wins() -> None:
    def make(number: int) -> type[Exception]:
        class Local(CriticalError):
            which = number

        return Local

    first, last = make(1), make(2)
    assert type(again(last("x"))) is last
    assert type(again(first("x"))) is last


def test_a_class_that_can_not_be_found_gives_its_nearest_base_with_its_text() -> None:
    record: Any = pack_failure(Wordy(5), CODEC)
    record[2][0] = "a.module:Gone"
    seen = unpack_failure(record, CODEC)
    assert type(seen) is Exception
    assert str(seen) == "wordy 5 None"
    record = pack_failure(CardDeclined(1, money=Money(2)), CODEC)
    record[2][0] = "a.module:Gone"
    seen = unpack_failure(record, CODEC)
    assert type(seen) is CriticalError
    assert vars(seen) == {"code": 1, "money": Money(2)}


def test_an_exception_that_only_its_own_code_can_make_gives_its_nearest_base() -> None:
    error = raised(pydantic.TypeAdapter(int).validate_python, "x")
    seen = again(error)
    assert type(seen) is ValueError
    assert str(seen) == str(error)


def test_only_classes_of_exceptions_are_made() -> None:
    record: Any = pack_failure(ValueError("x"), CODEC)
    for name in ("subprocess:Popen", "builtins:KeyboardInterrupt", "builtins:dict", f"{__name__}:Money"):
        record[2][:] = [name, "builtins:Exception"]
        assert type(unpack_failure(record, CODEC)) is Exception


def test_what_can_not_be_encoded_is_left_out_and_arguments_become_text() -> None:
    lock = threading.Lock()
    error = ValueError("x", lock)
    error.lock = lock  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    error.code = 4  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    seen = again(error)
    assert seen.args == ("x", repr(lock))
    assert vars(seen) == {"code": 4}
    assert describe(error, CODEC).attributes == {"code": 4}


@pytest.mark.parametrize(
    "error",
    [
        Broken("x"),
        Unruly("x"),
        ValueError("\ud800"),
        ValueError("x" * 3_000_000),
        ValueError(b"x" * 3_000_000),
        ValueError(*range(100_000)),
        UnicodeDecodeError("utf-8", b"\xff" * 100_000, 0, 1, "long"),
        type("Odd", (Exception,), {"__module__": "\ud800"})("odd name"),
        type("Odd", (Exception,), {"__module__": 5})("odd module"),
        JoinError(
            "wide",
            {f"b{i}": StepExhaustedError("s", "p", 1, ErrorInfo("T", "m" * 9000, "t" * 8000)) for i in range(500)},
        ),
    ],
    ids=lambda e: type(e).__name__.encode("ascii", "replace").decode(),
)
def test_recording_never_fails_and_is_bounded(error: Exception) -> None:
    packed = cbor2.dumps(pack_failure(error, CODEC))
    assert len(packed) < 2_000_000
    assert isinstance(unpack_failure(cbor2.loads(packed), CODEC), Exception)
    info = describe(error, CODEC)
    packed_info = pack_error_info(info, CODEC).pack()
    assert len(packed_info) < 500_000
    assert unpack_error_info(ErrorRow.unpack(packed_info), CODEC) == info


def test_deep_nesting_and_cycles_end() -> None:
    error: Exception = ValueError("bottom")
    for i in range(200):
        error = cast(Exception, ExceptionGroup(f"level {i}", [error]))
    assert isinstance(again(error), ExceptionGroup)
    cyclic = ValueError("x")
    cyclic.me = cyclic  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    cyclic.__cause__ = cyclic
    assert str(again(cyclic)) == "x"
    assert describe(cyclic, CODEC).message == "x"


def test_many_attributes_that_refer_to_each_other_end_soon() -> None:
    errors = [ValueError(i) for i in range(10)]
    for error in errors:
        error.others = errors  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(cbor2.dumps(pack_failure(errors[0], CODEC))) < 2_000_000


def test_an_error_info_reads_the_same_before_and_after() -> None:
    error = CardDeclined(4, money=Money(3))
    info = describe(error, CODEC, kind="definition")
    assert info.type == f"{__name__}.CardDeclined"
    assert (info.message, info.kind) == ("declined with 4", "definition")
    assert info.attributes == {"code": 4, "money": Money(3)}
    record = ErrorRow.unpack(pack_error_info(info, CODEC).pack())
    assert unpack_error_info(record, CODEC) == info
    assert describe(ValueError("x"), CODEC).type == "ValueError"
    assert describe(KeyboardInterrupt(), CODEC).type == "KeyboardInterrupt"


def test_attributes_of_classes_that_are_not_loaded_are_plain_data() -> None:
    record = pack_error_info(describe(CardDeclined(4, money=Money(3)), CODEC), CODEC)
    record.attributes["money"] = record.attributes["money"].replace(b":Money", b":Mooon")
    assert unpack_error_info(record, CODEC).attributes == {"code": 4, "money": {"amount": 3}}


def test_a_traceback_is_bounded_and_shows_the_author_and_not_the_engine() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("bottom")

    text = describe(raised(deep, 500), CODEC).traceback
    assert len(text) < 9_000
    assert text.rstrip().endswith("ValueError: bottom")
    through = raised(Codec().decode_checked, Codec().encode({"n": 1}), Boom)
    assert through.__cause__ is not None
    text = describe(through, CODEC).traceback
    assert "in __post_init__" in text
    assert "workflow_sdk/core" not in text.partition("direct cause")[0]


def test_a_wrapper_covers_the_values_of_a_failure() -> None:
    class Reverse:
        def encode(self, data: bytes, /) -> bytes:
            return data[::-1]

        def decode(self, data: bytes, /) -> bytes:
            return data[::-1]

    check_same(CardDeclined(4, money=Money(3)), Codec(wrapper=Reverse()))


@dataclass
class Boom:
    n: int

    def __post_init__(self) -> None:
        raise ValueError("boom")
