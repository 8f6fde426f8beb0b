"""Effects, as authors declare and ask for them; and the receipts that come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.asking import start_effect
from workflow_sdk.machines.schemas import Schema, named
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.types import Coro
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.wire import shown

ReceiptStatus: TypeAlias = Literal["ok", "error", "timeout", "fault"]
STATUSES: Final = ("ok", "error", "timeout", "fault")


@dataclass(frozen=True, slots=True)
class Request:
    """An effect that a transition asks for, with its parameters. Requests compare by value."""

    effect: Effect
    params: Any
    issuer: str | None = None
    """A word of the author's, which its receipt carries, too."""

    def tagged(self, issuer: str) -> Request:
        """The same request, whose receipt says `issuer`."""
        if not isinstance(issuer, str):
            raise DefinitionError(f"a request is tagged with a text, not {shown(issuer)}")
        return replace(self, issuer=issuer)

    def ask_in(self, scope: Scope, name: str) -> Coro[EffectReceipt]:
        """Register it as an operation of a workflow: what `ctx.effect` calls."""
        return start_effect(scope, name, self, self._receipt)

    def _receipt(self, facts: Mapping[str, Any]) -> EffectReceipt:
        """The receipt that plain data stands for; CodecError, if the answer in it does not fit."""
        receipt = EffectReceipt(**facts)
        if receipt.status != "ok":
            return receipt
        return replace(receipt, payload=self.effect.receipt.read(receipt.payload))


class Effect:
    """Something that is done outside. Calling it gives a request, for a `Transition` or for `ctx.effect`."""

    def __init__(self, name: str, params: Any, receipt: Any) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"the name of an effect is a text, not {shown(name)}")
        self.name = name
        self.params: Schema = Schema(params)
        self.receipt: Schema = Schema(receipt)

    def __call__(self, *args: Any, **fields: Any) -> Request:
        """A request: of an object of the effect's parameters, or of their fields."""
        hint = self.params.hint
        try:
            if len(args) == 1 and not fields and _may_be_one(args[0], hint):
                value = args[0]
            else:
                make: Any = hint if callable(hint) else _nothing
                value = make(*args, **fields)
            return Request(self, self.params.take(value)[1])
        except TypeError as error:
            raise DefinitionError(f"effect {self.name!r}: {error}") from error
        except CodecError as error:
            raise DefinitionError(f"effect {self.name!r}: the parameters: {error}") from error

    def __repr__(self) -> str:
        return f"<effect {self.name}>"

    @property
    def data(self) -> Any:
        """What a manifest says of it."""
        return {
            "params": {"schema": self.params.name, "digest": self.params.digest},
            "receipt": {"schema": self.receipt.name, "digest": self.receipt.digest},
        }


def _nothing() -> None:
    """The parameters of an effect that has none; TypeError, if there are some."""


def _may_be_one(value: object, hint: Any) -> bool:
    """Whether a value is an object of the parameters, and not the first of their fields."""
    if hint is Any or not isinstance(hint, type) or hint.__module__ == "builtins":
        return True  # what has no fields
    return isinstance(value, hint)


def effect(name: str, *, params: Any = None, receipt: Any = None) -> Effect:
    """Declare an effect: its name, the type of its parameters, and that of the answer to it."""
    if name == timer.name:
        raise DefinitionError(f"{name!r} is the effect that workflow_sdk.machines has; give this one another name")
    return Effect(name, params, receipt)


@dataclass(frozen=True, slots=True)
class TimerParams:
    """When a timer is due: at a time, or a while after the transition that asked for it."""

    at: datetime | None = None
    after: float | None = None

    def due(self, now: float) -> float:
        """When it is due, if it was asked for at `now`."""
        return self.at.timestamp() if self.at is not None else now + (self.after or 0.0)


class _Timer(Effect):
    def __call__(self, *args: Any, at: datetime | None = None, after: Duration | None = None) -> Request:
        """A timer: `timer(at=...)` or `timer(after=...)`."""
        if args or (at is None) == (after is None):
            raise DefinitionError("a timer is asked for as timer(at=...) or timer(after=...)")
        if at is not None:
            if not isinstance(at, datetime) or at.utcoffset() is None:
                raise DefinitionError(f"timer(at=...) takes an aware datetime, not {shown(at)}")
            return Request(self, TimerParams(at=at.astimezone(UTC)))
        wait = seconds(after, "after") if after is not None else 0.0
        if wait < 0:
            raise DefinitionError(f"timer(after=...) must not be negative, got {shown(after)}")
        return Request(self, TimerParams(after=float(wait)))


timer: Final[_Timer] = _Timer("timer", TimerParams, None)
"""The effect that settles by itself when its time has come; declared like any other, with `effects=[timer]`."""


@dataclass(frozen=True, slots=True)
class EffectReceipt:
    """How an effect ended. An arm of the event of a machine that wants to hear of its effects."""

    machine: str = ""
    """Of the transition that asked for the effect; or the workflow that did."""
    key: Any = None
    intent_id: str = ""
    effect: str = ""
    executor: str | None = None
    """Who ran it; None: nobody did, it was settled from outside or by the store."""
    issuer: str | None = None
    """What the request was tagged with."""
    status: ReceiptStatus = "ok"
    payload: Any = None
    """What the executor gave; of another status than `ok`, what went wrong as a text, or whatever was sent."""
    sequence: int = 0
    """Which transition of the cell had asked for the effect."""


Receipt: TypeAlias = EffectReceipt


@dataclass(frozen=True, slots=True)
class EffectRejected:
    """An answer to an effect has come that can't be read as its receipt: the effect is settled, and may be done."""

    machine: str = ""
    key: Any = None
    intent_id: str = ""
    effect: str = ""
    executor: str | None = None
    issuer: str | None = None
    status: ReceiptStatus = "ok"
    payload: Any = None
    """The answer, as it came."""
    sequence: int = 0
    reason: str = ""
    """What is wrong with the answer."""


named(EffectReceipt, "sys/EffectReceipt@1")
named(EffectRejected, "sys/EffectRejected@1")

ANSWERS: Final[tuple[object, ...]] = (EffectReceipt, EffectRejected)
"""The events that nobody can send: they come from effects only."""


def is_answer(cls: object) -> bool:
    """Whether it is one of these events."""
    return any(cls is one for one in ANSWERS)


@dataclass(frozen=True, slots=True)
class Origin:
    """The transition that asked for effects: what their intents are bound to."""

    machine: str
    version: int
    key: bytes | None
    sequence: int

    def intent_id(self, effect: str, params: bytes, index: int) -> str:
        """The id of the effect that this transition asked for as its `index`-th."""
        facts = [self.machine, self.version, self.key, effect, params, self.sequence, index]
        return sha256(canonical.bare(facts)).hexdigest()[:40]
