"""`ctx.effect`: an effect that a workflow asks for.

It is recorded in one commit with the wait for its receipt, and handed to executors only then. Who settles it sends the
receipt to that wait; if nobody waits there any more, the receipt is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from workflow_sdk.changes.change import Steps
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines import canonical
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import Place, Recorded, make_room, register
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import perform
from workflow_sdk.operations.types import Facts, Wait
from workflow_sdk.operations.waiting import Arrived, wait_for
from workflow_sdk.rows.entries import EffectData, Entry, token_of
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import Kind

R = TypeVar("R")


class Issue(Protocol):
    """An effect that is about to be recorded."""

    @property
    def id(self) -> str:
        """Of its intent."""
        ...

    def placed(self) -> AbstractContextManager[Issue]:
        """Decide who is to do it, and record it inside the block."""
        ...

    def steps(self, token: bytes) -> Steps[str]:
        """Record it for the wait with this token; the value is its id."""
        ...

    def begin(self) -> None:
        """It is recorded: tell those who may do it."""
        ...


class Issuer(Protocol):
    """What the machines of a runtime do for workflows."""

    def issue(self, request: Any, facts: Facts, id_of: Callable[[bytes], str]) -> Issue:
        """An effect, to be recorded; `id_of` makes its id of its parameters. DefinitionError, if it can't be done."""
        ...


class Request(Protocol):
    """A request for an effect."""

    @property
    def effect(self) -> Any:
        """What is asked for."""
        ...


def start_effect(
    scope: Scope, name: str, request: Request, read: Callable[[Mapping[str, Any]], R]
) -> Coroutine[Any, Any, R]:
    """Register an effect; its coroutine asks for it, and waits for its receipt, which `read` makes of plain data."""
    place = register(scope, Kind.EFFECT, name)
    return scope.start(perform(place, _Effect(place, request, read)))


class _Effect:
    """Asks for an effect, and waits for its receipt."""

    __slots__ = ("_place", "_read", "_request")

    def __init__(self, place: Place, request: Request, read: Callable[[Mapping[str, Any]], Any]) -> None:
        self._place = place
        self._request = request
        self._read = read

    async def begin(self, engine: Engine) -> Entry:
        place, name = self._place, self._request.effect.name
        issue = self._issue(engine)

        def record(entry: Entry, id: str) -> None:
            entry.wait(EffectData(id, name))

        await engine.calls.tell(place.path)
        effect = Recorded(place, engine, place.new_entry(), record, Hanging("effect", issue.id, ends=False, since=0))
        with issue.placed() as placed:
            await engine.outside.ask(placed.steps, effect, placed.begin)
        return await self.resume(engine, effect.entry)

    def _issue(self, engine: Engine) -> Issue:
        place, facts, version = self._place, engine.facts, engine.journal.unwritten.version
        issuer: Issuer | None = engine.outside.machines
        if issuer is None:
            raise place.mistake(
                f"{place.what} asks for {self._request.effect.name!r}, and there are no machines here: run it in a "
                "runtime whose manifest has the effect (`Runtime(machines=Manifest(effects=[...]))`)"
            )

        def id_of(params: bytes) -> str:
            seen = [facts.seed, facts.generation, version, place.path, self._request.effect.name, params]
            return sha256(canonical.bare(seen)).hexdigest()[:40]

        try:
            return issuer.issue(self._request, facts, id_of)
        except (CodecError, DefinitionError) as error:
            raise place.mistake(f"{place.what}: {error}") from None

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        """Wait until the effect is settled, and record its receipt."""
        place = self._place
        wait = Wait(place, "effect", messages=(token_of(place.location, entry),), entry=entry)
        came = await wait_for(engine, wait)
        assert isinstance(came, Arrived), "there is no deadline"
        (message,) = came.messages
        await make_room(engine)
        entry.complete(self._receipt(engine, message), engine.clock.time())
        engine.journal.takings.take(message)
        engine.journal.unhang(place.location)
        return await place.store(engine, entry)

    def _receipt(self, engine: Engine, message: InboxMessage) -> bytes:
        """The receipt as it is recorded. An answer that does not fit is a fault of who gave it."""
        try:
            facts: dict[str, Any] = canonical.restored(engine.codec.unseal(message.payload))
        except CodecError as error:
            raise engine.life.misread(error, f"the receipt of {self._place.what} can't be read") from None
        try:
            self._read(facts)
            return engine.codec.encode(facts)
        except CodecError as error:
            told = f"the answer is no usable one: {error}"
            return engine.codec.encode({**facts, "status": "fault", "payload": told})

    def outcome(self, entry: Entry) -> Any:
        place = self._place
        assert entry.value is not None, "an effect is recorded with its receipt"
        facts: dict[str, Any] = place.decode(entry.value, Any, plain=True)
        try:
            return self._read(facts)
        except CodecError as error:
            what = f"what {place.what} has recorded can't be read as the type that the effect gives it now"
            raise place.engine.life.misread(error, what) from None
