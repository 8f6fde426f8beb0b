"""Machines, as authors declare them: a pure function of a state and an event."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from workflow_sdk.context import Context
from workflow_sdk.definitions import Workflow, check_retention, feed_code
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.machines import canonical
from workflow_sdk.machines.effects import Effect, EffectReceipt, EffectRejected, is_answer
from workflow_sdk.machines.model import Transition
from workflow_sdk.machines.schemas import Schema, arms_of, is_class
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.wire import shown

StateT = TypeVar("StateT")

_VERSION: Final = re.compile(r".*@([1-9][0-9]{0,8})")


class Machine(Workflow[Any, StateT]):
    """A pure function `(state, event, ctx) -> Transition`, and what is declared of it. Call it as it was written."""

    def __init__(
        self,
        fn: Callable[..., Transition[StateT]],
        name: str,
        version: int,
        state: Any,
        event: Any,
        key: Any,
        effects: Iterable[Effect],
        annotations: Any,
        retention: float | None,
    ) -> None:
        async def run(ctx: Context, input: Any = None) -> Any:
            self.check()

        super().__init__(run, name, version, "strict", retention)
        self.transition = fn
        """The function as it was written."""
        self.state: Schema = Schema(state)
        self.event: Any = event
        self.key: Schema | None = None if key is None else Schema(key)
        """Of the keys of its cells; None: there is one cell."""
        self.annotations: Schema = Schema(annotations)
        self.arms: dict[str, Schema] = _arms(name, event)
        """What it takes from outside, by name."""
        self.hears_receipts: bool = EffectReceipt in arms_of(event)
        self.hears_rejections: bool = EffectRejected in arms_of(event)
        self.effects: dict[str, Effect] = _by_name(name, effects)
        self.__doc__: str | None = fn.__doc__
        self.__name__: str = fn.__name__
        self.__module__: str = fn.__module__

    def __call__(self, state: Any, event: Any, ctx: Any) -> Transition[StateT]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.transition(state, event, ctx)

    def __repr__(self) -> str:
        return f"<machine {self.name} version {self.version}>"

    def check(self) -> None:
        """Raise `DefinitionError`: it is not started."""
        raise DefinitionError(
            f"machine {self.name!r} is not started: its cells begin with the first event sent to them"
        )

    @property
    def output_hint(self) -> object:
        """The type of the state, which is what a cell comes to."""
        return self.state.hint

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the code of the function."""
        digest = hashlib.blake2b(digest_size=16)
        feed_code(digest.update, self.transition.__code__)
        return digest.hexdigest()

    @property
    def is_keyed(self) -> bool:
        """Whether it has a cell for every key."""
        return self.key is not None

    def key_bytes(self, key: Any) -> bytes | None:
        """A key as canonical bytes, without the tag; DefinitionError, if it does not fit."""
        if self.key is None:
            if key is not None:
                raise DefinitionError(f"machine {self.name!r} has one cell, without a key; it was given {shown(key)}")
            return None
        try:
            return self.key.encode(key)
        except CodecError as error:
            raise DefinitionError(f"machine {self.name!r}: the key {shown(key)}: {error}") from error

    def key_of(self, data: bytes | None) -> Any:
        """The key that the bytes stand for."""
        return None if data is None or self.key is None else self.key.decode(data)

    def instance_id(self, key: Any = None) -> str:
        """The id of the instance that a cell is: for `client.handle(machine, id)` and the command line."""
        return self.cell_id(self.key_bytes(key))

    def cell_id(self, key: bytes | None) -> str:
        """The id of the instance that a cell is."""
        if key is None:
            return self.name
        # The keys of a class are all texts, or none is: of a union, one key could be the text of another's bytes.
        value = canonical.restored(key) if self.has_text_keys else None
        return f"{self.name}/{value if isinstance(value, str) else key.hex()}"

    @property
    def has_text_keys(self) -> bool:
        """Whether a key that is a text in the store stands in the id of its cell as it is."""
        return self.key is not None and is_class(self.key.hint)

    @property
    def data(self) -> Any:
        """What a manifest says of it."""
        return {
            "name": self.name,
            "version": self.version,
            "state": self.state.digest,
            "event": sorted([*(arm.digest for arm in self.arms.values()), *self._answers]),
            "key": None if self.key is None else self.key.digest,
            "annotations": self.annotations.digest,
            "effects": sorted(self.effects),
        }

    @property
    def _answers(self) -> Iterable[str]:
        return (
            name for name, heard in (("receipt", self.hears_receipts), ("rejected", self.hears_rejections)) if heard
        )

    def invoke_bytes(self, raw: bytes) -> bytes:
        """Take one transition of canonical bytes: the envelope in, the envelope out.

        In: `{version: 1, state, event: {schema, value, key?}, ctx?}`; out: `{state, domain_events?, effects?, ann?,
        done?}`. `state`, `value`, `key` and `ctx` are canonical bytes themselves. Raises `CodecError` for bytes that
        are not canonical or not of this form, and `DefinitionError` for a transition that is refused.
        """
        from workflow_sdk.machines.envelope import invoke

        return invoke(self, raw)


def machine(
    name: str,
    *,
    state: Any,
    event: Any,
    effects: Iterable[Effect] | None = None,
    key: Any = None,
    version: int | None = None,
    annotations: Any = Any,
    retention: Duration | None = None,
) -> Callable[[Callable[..., Transition[StateT]]], Machine[StateT]]:
    """Make a machine of a pure function `(state, event, ctx) -> Transition`.

    `state` is the type of its state, `event` that of its events: a union of all that it takes, with `EffectReceipt` if
    it wants to hear how its effects ended and `EffectRejected` if it can do something about unusable answers. With
    `key`, there is a cell for every key of this type. `effects` lists all that transitions may ask for, and is given
    even if it is empty. The version is what the name ends with (`@1`), unless it is given.
    """
    if (problem := name_problem(name)) is not None:
        raise DefinitionError(f"the name of a machine: {problem}")
    if effects is None:
        raise DefinitionError(f"machine {name!r} says which effects it asks for; effects=[] if there are none")
    found = _VERSION.fullmatch(name)
    number = version if version is not None else int(found.group(1)) if found else 1
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise DefinitionError(f"the version of a machine is a whole number from 1 on, not {shown(version)}")
    kept = check_retention(retention)

    def decorate(fn: Callable[..., Transition[StateT]]) -> Machine[StateT]:
        _check_function(fn, name)
        return Machine(fn, name, number, state, event, key, effects, annotations, kept)

    return decorate


def _check_function(fn: Callable[..., Any], name: str) -> None:
    if not inspect.isfunction(fn):
        raise DefinitionError(f"machine {name!r} is a plain function, not {shown(fn)}")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"machine {name!r} is a plain function: what waits or does something is an effect")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len([one for one in inspect.signature(fn).parameters.values() if one.kind in kinds]) != 3:
        raise DefinitionError(f"machine {name!r} takes a state, an event and a ctx")


def _arms(name: str, event: Any) -> dict[str, Schema]:
    arms = [Schema(arm) for arm in arms_of(event) if not is_answer(arm)]
    for arm in arms:
        if not is_class(arm.hint):
            raise DefinitionError(f"machine {name!r}: its events are classes, one or a union, not {shown(arm.hint)}")
        if arm.hint.__module__ == "builtins" or issubclass(arm.hint, dict):
            raise DefinitionError(f"machine {name!r}: an event is a class of its own, not {arm.name}")
    by_name = {arm.name: arm for arm in arms}
    if len(by_name) < len(arms):
        raise DefinitionError(f"machine {name!r}: two of its events have the same name; give them others by @event")
    return by_name


def _by_name(name: str, effects: Iterable[Effect]) -> dict[str, Effect]:
    if not isinstance(effects, Iterable):
        raise DefinitionError(f"machine {name!r}: effects=[...] takes a list, not {shown(effects)}")
    declared: dict[str, Effect] = {}
    for one in effects:
        if not isinstance(one, Effect):
            raise DefinitionError(f"machine {name!r}: effects=[...] takes what `effect` gives, not {shown(one)}")
        if declared.setdefault(one.name, one) is not one:
            raise DefinitionError(f"machine {name!r} declares two effects named {one.name!r}")
    return declared
