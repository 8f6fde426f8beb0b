"""A driver that remembers what was committed through it, and says it in words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import fdb.tuple

from tests.support import World
from workflow_sdk import Batch, Driver, Status, Workflow
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.journal.compensation import Compensation
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import COMPENSATIONS, FIELDS, HISTORY, INBOX, NAMES, ROOT, Field, InstanceKeys
from workflow_sdk.rows.location import join_path, segments
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

ALARM = ROOT + fdb.tuple.pack((3,))


@dataclass
class Change:
    """What one commit changed of one instance."""

    names: list[str] = field(default_factory=list[str])
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    """By path; turns of loops and branches of maps as ~number."""
    cleared: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Ranges of the history."""
    fields: set[Field] = field(default_factory=set[Field])
    """The ones that were stored."""
    head: Head | None = None
    compensations: list[Compensation] = field(default_factory=list[Compensation])
    sent: int = 0
    consumed: list[bytes] = field(default_factory=list[bytes])
    returned: list[str] = field(default_factory=list[str])
    """The names of messages that were put back into the inbox, in order of their keys."""
    alarms: int = 0
    alarms_cleared: int = 0
    lease_taken: bool = False
    lease_released: bool = False
    stamped: bool = False
    checked: set[bytes] = field(default_factory=set[bytes])
    """The keys that the commit was held to."""

    @property
    def status(self) -> Status | None:
        """The status that was stored."""
        return None if self.head is None else self.head.status

    def is_final(self, path: str) -> bool:
        """Whether the outcome of an operation was stored."""
        return path in self.entries and self.entries[path].is_final


class WatchedDriver:
    """Hands everything on, and remembers what was committed.

    With `turns`, a commit gives way to other tasks that often before it is applied, and as often afterwards. `before`
    is awaited with every batch, before it is applied.
    """

    def __init__(
        self,
        driver: Driver,
        instance_id: str = "i",
        *,
        turns: int = 0,
        before: Callable[[Change], Awaitable[None]] | None = None,
    ) -> None:
        self.driver = driver
        self.keys = InstanceKeys(instance_id)
        self.turns = turns
        self.before = before
        self.changes: list[Change] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self._texts: dict[int, str] = {}

    async def get(self, key: bytes, /) -> bytes | None:
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        rows = await self.driver.scan(begin, end, limit=limit, reverse=reverse)
        for key, value in rows:
            if key.startswith(self.keys.space + NAMES):
                self._texts[self._number(key, NAMES)] = NameRow.unpack(value).text
        return rows

    async def commit(self, batch: Batch, /) -> None:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            change = self.read(batch)
            if self.before is not None:
                await self.before(change)
            await self._give_way()
            await self.driver.commit(batch)
            self.changes.append(change)
            await self._give_way()
        finally:
            self.in_flight -= 1

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        await self.driver.aclose()

    async def _give_way(self) -> None:
        for _ in range(self.turns):
            await anyio.lowlevel.checkpoint()

    def of(self, path: str) -> list[Change]:
        """The commits that stored the outcome of an operation."""
        return [change for change in self.changes if change.is_final(path)]

    def read(self, batch: Batch) -> Change:
        """What a batch changes."""
        change = Change(checked={key for key, _ in batch.checks})
        for write in batch.writes:
            match write:
                case ClearRange(begin, end):
                    if begin.startswith(self.keys.space + HISTORY):
                        change.cleared.append((begin, end))
                case Append(_, _):
                    change.sent += 1
                case Clear(key):
                    self._clear(change, key)
                case Set(key, value):
                    self._set(change, key, value)
        change.entries = {self.path(location): entry for location, entry in self._raw(batch)}
        return change

    def _clear(self, change: Change, key: bytes) -> None:
        if key == self.keys.lease:
            change.lease_released = True
        elif key.startswith(ALARM):
            change.alarms_cleared += 1
        elif key.startswith(self.keys.space + INBOX):
            change.consumed.append(key)

    def _set(self, change: Change, key: bytes, value: bytes) -> None:
        space = self.keys.space
        if key == self.keys.lease:
            change.lease_taken = True
        elif key == self.keys.stamp:
            change.stamped = True
        elif key.startswith(ALARM):
            change.alarms += 1
        elif key.startswith(space + NAMES):
            text = NameRow.unpack(value).text
            self._texts[self._number(key, NAMES)] = text
            change.names.append(text)
        elif key.startswith(space + INBOX):
            change.returned.append(str(InboxMessage.unpack(b"", value).name))
        elif key.startswith(space + COMPENSATIONS):
            change.compensations.append(Compensation.unpack(self._number(key, COMPENSATIONS), value))
        elif key.startswith(space + FIELDS):
            numbers = list(segments(key[len(space) + len(FIELDS) :]))
            if len(numbers) > 1:
                return  # it counts what was sent
            (number,) = numbers
            assert isinstance(number, int)
            change.fields.add(Field(number))
            if number == Field.HEAD:
                change.head = Head.unpack(value)

    def _number(self, key: bytes, part: bytes) -> int:
        (number,) = segments(key[len(self.keys.space) + len(part) :])
        assert isinstance(number, int)
        return number

    def _raw(self, batch: Batch) -> list[tuple[bytes, Entry]]:
        prefix = self.keys.space + HISTORY
        sets = [write for write in batch.writes if isinstance(write, Set)]
        return [(key[len(prefix) :], Entry.unpack(value)) for key, value in sets if key.startswith(prefix)]

    def path(self, location: bytes) -> str:
        """A location as people read it."""
        found = ""
        for segment in segments(location):
            found = join_path(found, f"~{segment[1]}" if isinstance(segment, tuple) else self._texts.get(segment, "?"))
        return found


CRASHES = [(number, when) for number in range(1, 200) for when in ("before", "after")]


def crashing(driver: Driver, number: int, when: str) -> FaultyDriver:
    """A process that dies before or after its commit of that number. Its commits take a turn of the event loop."""
    if when == "before":
        return FaultyDriver(driver, crash_before=number, latency=1e-9)
    return FaultyDriver(driver, crash_after=number, latency=1e-9)


async def crash_at(
    world: World, workflow: Workflow[Any, Any], number: int, when: str, *, id: str = "i", input: Any = None
) -> bool:
    """Run an instance until the process dies at a commit of that number; False if it made fewer."""
    driver = crashing(world.driver, number, when)
    try:
        await world.run(workflow, input, id=id, driver=driver)
    except* SimulatedCrash:
        pass
    return driver.crashed


async def everywhere(
    world: World,
    workflow: Workflow[Any, Any],
    check: Callable[[str], Awaitable[None]],
    *,
    prepare: Callable[[str], Awaitable[None]] | None = None,
    input: Any = None,
) -> int:
    """Crash an instance at each of its commits, before and after, and run it to its end; return how often it crashed.

    Each crash is of an instance of its own; `check` is given its id after the crash, and again at its end. `prepare`
    is given it first.
    """
    for count, (number, when) in enumerate(CRASHES):
        id = f"{number}-{when}"
        if prepare is not None:
            await prepare(id)
        if not await crash_at(world, workflow, number, when, id=id, input=input):
            return count
        await check(id)
        await world.run(workflow, input, id=id)
        await check(id)
    raise AssertionError("there is no end of commits")
