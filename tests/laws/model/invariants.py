"""Laws that hold after every commit, whatever the program: a driver that looks at the whole store after each.

What is stored of an instance is compared with what was stored before, and with itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread

from tests.laws.model.messages import Messages
from tests.laws.model.space import Space, Store
from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Driver, Set
from workflow_sdk.journal.compensation import Progress
from workflow_sdk.rows.entries import Entry, ListenData, LoopData, SleepData
from workflow_sdk.rows.instance import Lease
from workflow_sdk.rows.keys import ARCHIVE, BASES, COMPENSATIONS, HISTORY, LEASE, METADATA, NAMES, TAKINGS
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.status import STATUS_MOVES, Kind, Status

__all__ = ["CheckedDriver", "check_heads"]

COUNTED = (1, 2, 5, 6, 7, 11, 12, 13, 14, 20)
"""The parts of what an instance has done; not what is copied of them for a rollback."""
OWNED_PARTS = (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, ARCHIVE, BASES)
"""Written by nobody but who has the instance."""


class CheckedDriver:
    """Hands everything on, one commit at a time, and checks after each that the laws hold.

    What does not is kept in `broken` too, should the engine take the failure for one of the store.
    """

    def __init__(
        self, driver: Driver, on_final: Callable[[str], None] = lambda path: None, *, dense: bool = True
    ) -> None:
        self.driver = driver
        self.broken: list[AssertionError] = []
        self.commits = 0
        self.committed_at = 0.0
        self.on_final = on_final
        """Told the path of every entry that has got its outcome."""
        self.dense = dense
        """Whether there are no loops, whose names come and go."""
        self._before = Store({})
        self._messages: dict[str, Messages] = {}
        self._lock = anyio.Lock()

    async def get(self, key: bytes, /) -> bytes | None:
        return await self.driver.get(key)

    async def scan(
        self, begin: bytes, end: bytes, /, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return await self.driver.scan(begin, end, limit=limit, reverse=reverse)

    async def changed(self, key: bytes, since: bytes | None, /) -> None:
        await self.driver.changed(key, since)

    async def aclose(self) -> None:
        await self.driver.aclose()

    async def transact(self, fn: Callable[[Any], Any], finish: Callable[[Any], Batch], /) -> None:
        """Nobody writes anything of their own: only the record is wanted here."""
        value = await anyio.to_thread.run_sync(fn, None)
        await self.commit(finish(value))

    async def commit(self, batch: Batch, /) -> None:
        async with self._lock:
            await self.driver.commit(batch)
            rows: dict[bytes, bytes] = {}
            with anyio.CancelScope(shield=True):
                rows = dict(await self.driver.scan(b"", b"\xff"))
            self.commits += 1
            self.committed_at = monotonic()
            before, self._before = self._before, Store(rows)
            try:
                self.check(before, self._before, batch)
            except AssertionError as error:
                self.broken.append(error)
                raise

    def space(self, id: str) -> Space:
        """What is stored of an instance since the last commit."""
        return self._before.space(id)

    def check(self, before: Store, after: Store, batch: Batch) -> None:
        for id in before.spaces.keys() | after.spaces.keys():
            old, new = before.space(id), after.space(id)
            _check_writer(old, batch)
            if old.rows == new.rows:
                continue
            assert new.status is not None, "an instance is gone"
            if old.status is not None:
                _check_status(old, new)
                _check_count(old, new)
            _check_history(old, new)
            _check_names(old, new, dense=self.dense)
            _check_compensations(old, new)
            _check_waits(new)
            self._messages.setdefault(id, Messages()).check(new)
            for location, entry in new.history.items():
                if entry.is_final and not (location in old.history and old.history[location].is_final):
                    self.on_final(new.path(location))
        for id in after.spaces:
            _check_outside(after, after.space(id))


def check_heads(rows: dict[bytes, bytes]) -> None:
    """What holds of every instance that is stored, whatever has happened to it: it waits, is woken and is listed."""
    store = Store(rows)
    for id in store.spaces:
        _check_waits(store.space(id))
        _check_outside(store, store.space(id))


def _touches(batch: Batch, prefix: bytes) -> bool:
    """Whether a batch writes under a prefix, which ends with a whole part of a key."""
    for write in batch.writes:
        match write:
            case Set(key, _) | Clear(key) | Append(key, _):
                if key.startswith(prefix):
                    return True
            case ClearRange(begin, end):
                if begin < prefix + b"\xff" and end > prefix:
                    return True
    return False


def _check_writer(old: Space, batch: Batch) -> None:
    """Whoever writes to an instance says who has it; its record is only for the one who does."""
    if old.status is None or not _touches(batch, old.prefix):
        return
    lease = old.prefix + LEASE
    checked = [expected for key, expected in batch.checks if key == lease]
    assert checked, "a commit to an instance has no check of its lease"
    if any(_touches(batch, old.prefix + part) for part in OWNED_PARTS):
        assert checked[0] is not None, "the record is written by somebody who does not have the instance"


def _check_count(old: Space, new: Space) -> None:
    """Commits that change the instance are counted: not that it is run, nor that it waits, nor that a message came."""
    was, now = old.about.tally.commits, new.about.tally.commits
    changed = any(old.part(part) != new.part(part) for part in COUNTED) or (
        (old.about.result, old.about.birth.input) != (new.about.result, new.about.birth.input)
    )
    assert now == was + changed, f"{was} commits have become {now}"


def _check_status(old: Space, new: Space) -> None:
    assert old.status is not None, "an instance has a status"
    assert new.status is not None, "an instance has a status"
    assert not old.status.is_terminal, f"something was written to an instance that is {old.status}"
    if new.status is not old.status:
        assert new.status in STATUS_MOVES[old.status], f"{old.status} has become {new.status}"
        assert new.about.head.changes > old.about.head.changes, "a new status was not counted"
    assert new.about.birth == old.about.birth, "its birth has changed"
    assert new.about.head.created_at == old.about.head.created_at, "when it was created has changed"


def _identity(entry: Entry) -> tuple[Any, ...]:
    return entry.kind, entry.ordinal, entry.created_at


def _check_history(old: Space, new: Space) -> None:
    """It only grows, but for turns that are pruned and branches that have lost; outcomes are for ever."""
    for location, was in old.history.items():
        now = new.history.get(location)
        if now is None:
            assert new.is_pruned(location) or new.has_lost(location), f"{old.path(location)} is gone from the history"
            continue
        assert _identity(now) == _identity(was), f"{old.path(location)} has become another operation"
        if was.is_final:
            assert now is was or now == was, f"{old.path(location)} has got another outcome"
        else:
            _check_progress(was, now)
    for location, now in new.history.items():
        assert location[:-1] == () or any(True for _ in new.around(location)), "an entry stands nowhere"
        assert not new.is_pruned(location), f"{new.path(location)} is kept in a turn that is pruned"
        assert not new.has_lost(location), f"{new.path(location)} is kept of a branch that has lost"
        if location not in old.history:
            over = [parent for parent, entry in old.around(location) if entry.is_final]
            assert not over, f"{new.path(location)} was begun inside something that is over"
        if not now.is_final:
            over = [parent for parent, entry in new.around(location) if entry.is_final]
            assert not over, f"{new.path(location)} is not finished, and something around it is"


def _check_progress(was: Entry, now: Entry) -> None:
    assert now.attempts >= was.attempts, "attempts were forgotten"
    match was.data, now.data:
        case LoopData(), LoopData():
            assert was.data.turn <= now.data.turn, "a loop went back"
            assert was.data.first <= now.data.first, "turns that were pruned are kept"
        case SleepData(), SleepData():
            assert now.data == was.data, "a timer was set anew"
        case ListenData(), ListenData():
            assert (now.data.names, now.data.until) == (was.data.names, was.data.until), "a wait was begun anew"
        case _:
            pass


def _check_names(old: Space, new: Space, *, dense: bool) -> None:
    """An index is for one name. There are no gaps, but where the names of a loop's turns were, or would have been."""
    names = new.names
    for index, name in old.names.items():
        if index in names:
            assert names[index].text == name.text, "an index was given to another name"
        else:
            assert name.owner, f"the name {name.text!r} is gone, and belonged to no loop"
    added = sorted(names.keys() - old.names.keys())
    assert not added or added[0] > max(old.names, default=-1), "an index was given that is not the next"
    if dense:
        gaps = set(range(len(names))) - names.keys()
        assert not gaps or old.names.keys() - names.keys() or _has_gaps(old), f"there are no names {gaps}"
    twice = Counter((name.owner, name.text) for name in names.values() if not name.shadowed)
    assert not twice or max(twice.values()) == 1, "a name has two indexes"
    for location in new.history:
        for segment in location:
            index = segment[0] if isinstance(segment, tuple) else segment
            assert index in names, "an entry stands under a name that is not stored"


def _has_gaps(space: Space) -> bool:
    return space.names.keys() != set(range(len(space.names)))


def _check_compensations(old: Space, new: Space) -> None:
    """They are forgotten at points of no return only; what is done is done."""
    points = {at for at, e in new.history.items() if e.kind is Kind.CHECKPOINT} - old.history.keys()
    for number, was in old.compensations.items():
        now = new.compensations.get(number)
        if now is None:
            assert points, f"the rollback of {was.path} was forgotten"
            continue
        assert (now.path, now.location, now.result) == (was.path, was.location, was.result), "it undoes something else"
        assert was.progress is not Progress.DONE or now == was, "something is undone twice"
    for number in sorted(new.compensations.keys() - old.compensations.keys()):
        assert number > max(old.compensations, default=-1), "a compensation is not the newest"
        location = unpack(new.compensations[number].location)
        entry = new.history.get(location)
        gone = entry is None and (new.is_pruned(location) or new.has_lost(location))
        assert gone or (entry is not None and entry.is_final), "something is to be undone that is not done"


def _check_waits(new: Space) -> None:
    """Who waits has no outcome yet; when all wait, everybody can see for what. One that ends waits for nothing."""
    status = new.status
    if status is Status.STUCK or (status is not None and status.is_terminal):
        assert not new.waits, f"an instance that is {status} waits"
    elif status is Status.ROLLING_BACK:
        retried = {unpack(item.location) for item in new.compensations.values() if item.progress is Progress.RETRYING}
        assert new.waits.keys() <= retried, "something waits that is not to be undone"
    else:
        undone = {at for at, e in new.history.items() if not e.is_final and not e.kind.is_composite}
        assert new.waits.keys() <= undone, "something waits that is over"
        if status in (Status.SLEEPING, Status.WAITING):
            assert new.waits.keys() == undone, "it is not stored what is waited for"
            listens = any(about.kind in ("message", "child", "task") for about in new.waits.values())
            assert listens == (status is Status.WAITING), f"it is {status}, and does not look it"
    if status in (Status.COMPLETED, Status.FAILED, Status.ROLLED_BACK):
        assert not new.part(7), "messages are kept to be given back when all is over"


def _check_outside(store: Store, space: Space) -> None:
    """Alarms, claims and the directory say what the instance itself says."""
    id, status, lease = space.id, space.status, space.lease
    assert status is not None, "an instance has a status"
    alarms = [when for other, when in store.alarms if other == id]
    assert alarms == ([] if space.alarm is None else [space.alarm]), (
        f"{id} has alarms at {alarms}, and says {space.alarm}"
    )
    worker = [] if lease is None else [Lease.unpack(lease).worker]
    assert [who for other, who in store.claims if other == id] == worker, "it is not claimed by who has it"
    listed = [row for row in store.listed if row[-1] == id]
    names = sorted((row[0], row[1] if row[0] != 1 else "") for row in listed)
    assert names == [(1, ""), (2, status.value), (3, space.about.head.workflow)], "it is listed as another"
    if lease is not None or status.is_terminal or status is Status.STUCK:
        assert not alarms, "it has an alarm, and is not to be woken"
        assert lease is None or not (status.is_terminal or status is Status.STUCK), "it has ended, and somebody has it"
        return
    times = [about.until for about in space.waits.values() if about.until is not None]
    if status is not Status.WAITING or times:
        assert alarms, f"it is {status}, nobody has it, and nobody will wake it"
    assert alarms or not space.served, "a message has come for somebody who waits, and nobody will wake it"
    if times and alarms:
        assert alarms[0] <= min(times), "it is woken too late"
