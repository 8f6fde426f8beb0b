"""Snapshots of machines: what they are of, what leads back to them, what is kept of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from tests.machines.cell_parts import Asked, Do, Say, Still, ask, host, manifest_of, told, until_cell, until_gone
from tests.machines.shop import Do as Play
from tests.machines.shop import ping
from tests.machines.test_machine_random import KEYS, STAGES, Move, machine_of
from tests.runtime.polling import until
from tests.support import open_store
from workflow_sdk import Batch, Client, CodecError, DefinitionError, Driver, InstanceStateError, Runtime
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    EffectRejected,
    JournalEntry,
    Machine,
    MachineContext,
    Manifest,
    StoredSnapshot,
    Transition,
    executor,
    route,
    timer,
)
from workflow_sdk.machines.blobs import ROWS_AT_ONCE
from workflow_sdk.machines.rows import BLOBS, ROOTS, blob_key
from workflow_sdk.rows.keys import MACHINES
from workflow_sdk.rows.location import subtree
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock

Rows = list[tuple[bytes, bytes]]


def obeys(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Do what the word says."""
    if not isinstance(event, (Do, Say)):
        return None
    return {
        "ask": ask("what"),
        "wait": timer(after=3600),
        "done": Transition(words, done=True),
        "delete": Transition(None),
        "refuse": "no transition",
    }.get(event.word)


async def rows_of(driver: Driver, prefix: bytes = MACHINES) -> Rows:
    """The rows of a part of the store."""
    return await driver.scan(*subtree(prefix))


async def count_of(driver: Driver) -> int:
    """How many parts of snapshots are stored."""
    return len(await rows_of(driver, BLOBS))


async def until_quiet(client: Client, machine: Machine[Any] | str) -> StoredSnapshot:
    """Take a snapshot as soon as that can be."""
    found: list[StoredSnapshot] = []

    async def is_so() -> bool:
        try:
            found.append(await client.snapshot(machine))
        except InstanceStateError:
            return False
        return True

    await until(is_so)
    return found[-1]


async def until_all_quiet(client: Client, *machines: Machine[Any]) -> list[StoredSnapshot]:
    """Take a snapshot of each machine as soon as all are quiet at the same time: while one is, another may tell it."""
    while True:
        taken = [await until_quiet(client, machine) for machine in machines]
        with suppress(InstanceStateError):
            if [await client.snapshot(machine) for machine in machines] == taken:
                return taken


async def say(runtime: Runtime, *events: tuple[str, str]) -> None:
    """Tell cells words."""
    for key, word in events:
        await runtime.emit(Do(key, word))


# What a snapshot is.


async def test_a_snapshot_says_what_it_is_of(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "1"), ("b", "1"), ("a", "2"))
        taken = await until_quiet(runtime, one)
        entries = await runtime.journal(one)
    assert (empty.machine, empty.count, empty.cursor) == ("told@1", 0, None)
    assert (taken.machine, taken.count, taken.cursor) == ("told@1", 2, entries[-1].cursor)
    assert taken.root != empty.root
    assert taken.at >= empty.at


async def test_equal_histories_have_equal_roots(tmp_path: Path) -> None:
    roots: list[str] = []
    for number, at in enumerate((1.0, 1.0, 2.0)):
        (tmp_path / str(number)).mkdir()
        one, store = told(obeys), await open_store("sqlite", tmp_path / str(number))
        async with host(store, one, clock=Still(1_700_000_000 + at)) as runtime:
            await say(runtime, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", "delete"))
            roots.append((await until_quiet(runtime, one)).root)
        await store.aclose()
    assert roots[0] == roots[1]
    assert roots[1] != roots[2], "when a cell was last active is a part of it"


async def test_a_snapshot_of_what_has_not_changed_writes_nothing(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        await say(runtime, ("a", "1"), ("b", "1"))
        first = await until_quiet(runtime, one)
        before = await rows_of(driver)
        assert await runtime.snapshot(one) == first
        assert await rows_of(driver) == before


async def test_one_changed_cell_writes_its_state_its_page_and_the_root(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        await say(runtime, *((str(number), "1") for number in range(30)))
        await until_quiet(runtime, one)
        before = await count_of(driver)
        await say(runtime, ("7", "other"))
        await until_cell(runtime, one, "7", lambda cell: cell.last_sequence == 2)
        await until_quiet(runtime, one)
        assert await count_of(driver) == before + 3


async def test_deleted_cells_are_not_in_it_and_ended_ones_are(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        await say(runtime, ("a", "1"), ("b", "done"), ("a", "delete"))
        await until_gone(runtime, one, "a")
        assert (await until_quiet(runtime, one)).count == 1


async def test_a_machine_without_keys_has_snapshots_too(driver: Driver) -> None:
    one = told(obeys, key=None, event=Do)
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await runtime.emit(Do("", "1"))
        await until_cell(runtime, one, None, lambda cell: cell.last_sequence == 1)
        assert (await until_quiet(runtime, one)).count == 1
        assert (await runtime.verify_replay(empty)).is_equal


async def test_a_snapshot_needs_nothing_queued(driver: Driver) -> None:
    one = told(obeys)
    async with Client(driver, machines=manifest_of(one)) as client:
        for key in "aab":
            await client.emit(Do(key, "1"))
        with pytest.raises(InstanceStateError, match="3 messages queued and 0 effects in flight"):
            await client.snapshot(one)
    assert not await rows_of(driver, BLOBS)
    async with host(driver, one) as runtime:
        assert (await until_quiet(runtime, one)).count == 2


async def test_a_snapshot_needs_nothing_in_flight(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        await say(runtime, ("a", "ask"), ("b", "wait"))
        for key in "ab":
            await until_cell(runtime, one, key, lambda cell: cell.last_sequence == 1)
        with pytest.raises(InstanceStateError, match="0 messages queued and 2 effects in flight"):
            await runtime.snapshot(one)


async def test_what_is_queued_for_a_stuck_cell_is_queued(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        await say(runtime, ("a", "refuse"))
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.STUCK)
        with pytest.raises(InstanceStateError, match="1 messages queued"):
            await runtime.snapshot(one)


async def test_other_machines_may_be_busy(driver: Driver) -> None:
    one, other = told(obeys, event=Do), told(obeys, name="other@1", event=Say, effects=[ask])
    async with host(driver, one, other, executors=[]) as runtime:
        await say(runtime, ("a", "1"))
        await runtime.emit(Say("a", "ask"))
        await until_cell(runtime, other, "a", lambda cell: cell.last_sequence == 1)
        assert (await until_quiet(runtime, one)).count == 1


async def test_a_snapshot_needs_to_know_the_machine(driver: Driver) -> None:
    async with Client(driver) as client:
        with pytest.raises(DefinitionError, match="machines="):
            await client.snapshot("told@1")


# Replay.


async def test_the_journal_leads_from_a_snapshot_to_the_cells(driver: Driver) -> None:
    one, asked = told(obeys), Asked()
    async with host(driver, one, executors=[asked.by()], journal=True) as runtime:
        await say(runtime, ("a", "1"), ("b", "ask"))
        middle = await until_quiet(runtime, one)
        await say(runtime, ("a", "2"), ("c", "ask"), ("b", "delete"), ("d", "done"))
        end = await until_quiet(runtime, one)
        found = await runtime.verify_replay(middle)
        assert (found.root, found.mismatches, found.forgotten) == (end.root, (), ())
        assert found.is_equal
        assert end.root != middle.root
        assert (await runtime.verify_replay(end)).is_equal
    assert len(asked.ids) == 2, "nothing begins when it is replayed"


async def test_a_journal_is_a_page_or_a_list(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        await say(runtime, ("a", "0"), ("a", "1"))
        middle = await until_quiet(runtime, one)
        await say(runtime, ("a", "2"), ("b", "1"))
        end = await until_quiet(runtime, one)
        page = await runtime.journal(one)
        later = await runtime.journal(one, cursor=middle.cursor)
        for journal in (page, list(page), list(page)[1:], later, None):
            assert (await runtime.verify_replay(middle, journal)).root == end.root
        first = await runtime.journal(one, limit=2)
        with pytest.raises(DefinitionError, match="not the last one"):
            await runtime.verify_replay(middle, first)
        wrong: Any = ["no entry"]
        with pytest.raises(DefinitionError, match=r"what `client\.journal"):
            await runtime.verify_replay(middle, wrong)
        with pytest.raises(DefinitionError, match=r"what `client\.snapshot"):
            await runtime.verify_replay(wrong)


async def test_an_entry_that_is_missing_is_seen(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"))
        await until_quiet(runtime, one)
        entries = list(await runtime.journal(one))
        lost = [entry for entry in entries if (entry.key, entry.sequence) not in (("a", 1), ("c", 0))]
        found = await runtime.verify_replay(empty, lost)
    assert not found.is_equal
    why = {one.key: one.reason for one in found.mismatches}
    assert sorted(why) == ["a", "c"]
    assert "after 2 transitions, and replay has made 1" in why["a"]
    assert "has not led to this cell" in why["c"]


async def test_code_that_does_something_else_is_seen(driver: Driver) -> None:
    def other(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return Transition([*words, "more"]) if event.key == "b" else None

    one = told()
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "1"), ("b", "1"))
        await until_quiet(runtime, one)
    changed = told(other)
    async with Client(driver, machines=manifest_of(changed)) as client:
        found = await client.verify_replay(empty)
    assert [(one.key, one.reason) for one in found.mismatches] == [("b", "replay has led to another state")]


async def test_what_a_runtime_without_a_journal_takes_is_missing(driver: Driver) -> None:
    one = told()
    async with host(driver, one) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "1"))
        await until_quiet(runtime, one)
        assert [one.key for one in (await runtime.verify_replay(empty)).mismatches] == ["a"]


@pytest.mark.parametrize("comes_again", [False, True])
async def test_cells_that_are_deleted_after_their_end_are_no_mismatch(driver: Driver, comes_again: bool) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "done"), ("b", "1"))
        middle = await until_quiet(runtime, one)
        await runtime.delete(one.instance_id("a"))
        if comes_again:
            await say(runtime, ("a", "anew"))
            await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2)
        end = await until_quiet(runtime, one)
        for snapshot in (empty, middle):
            found = await runtime.verify_replay(snapshot)
            assert (found.root, found.mismatches) == (end.root, ())
            assert found.forgotten == (() if comes_again else ("a",))


async def test_what_goes_on_while_it_is_looked_at_is_no_mismatch(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("a", "wait"), ("b", "ask"))
        for key in "ab":
            await until_cell(runtime, one, key, lambda cell: cell.last_sequence == 1)
        assert (await runtime.verify_replay(empty)).is_equal, "what is in flight has no part in it"


@pytest.mark.parametrize("journal", [False, True])
async def test_cells_that_change_while_they_are_read_are_read_again(driver: Driver, journal: bool) -> None:
    one, meddling = told(), Meddling(driver)
    async with (
        host(driver, one, journal=journal) as runtime,
        Client(as_driver(meddling), machines=manifest_of(one)) as client,
    ):
        for part, scans in enumerate(range(1, 46), 1):
            await say(runtime, ("a", "before"), ("b", "before"))
            before = await until_quiet(runtime, one)

            async def change(part: int = part) -> None:
                for key in "ab":
                    await say(runtime, (key, "between"))
                    await until_cell(runtime, one, key, lambda cell: cell.last_sequence == 2 * part)

            meddling.after_scan = {scans: change}
            taken = await client.snapshot(one)
            if meddling.after_scan:
                break
            assert taken.root in (before.root, (await runtime.snapshot(one)).root), "a mixture of before and after"
        else:
            raise AssertionError("something was to be done in a scan that never came")


async def test_what_is_taken_while_cells_are_verified_is_replayed_too(driver: Driver) -> None:
    one, meddling = told(), Meddling(driver)
    async with (
        host(driver, one, journal=True) as runtime,
        Client(as_driver(meddling), machines=manifest_of(one)) as client,
    ):
        empty = await runtime.snapshot(one)
        for scans in range(1, 60):

            async def change(count: int = scans) -> None:
                await say(runtime, ("a", "more"))
                await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == count)

            meddling.after_scan = {scans: change}
            assert (await client.verify_replay(empty)).is_equal
            if meddling.after_scan:
                break
        else:
            raise AssertionError("something was to be done in a scan that never came")


async def test_a_message_that_comes_while_cells_are_read_is_seen(driver: Driver) -> None:
    one, meddling = told(), Meddling(driver)
    async with Client(as_driver(meddling), machines=manifest_of(one)) as client:
        async with host(driver, one) as runtime:
            await say(runtime, ("a", "1"))
            await until_quiet(runtime, one)
        for scans in range(1, 46):
            meddling.after_scan = {scans: lambda: client.emit(Do("a", "2"))}
            try:
                await client.snapshot(one)
            except InstanceStateError:
                pass
            else:
                assert scans > 30, "it came after all cells had been read twice"
            if meddling.after_scan:
                break
            async with host(driver, one) as runtime:
                await until_quiet(runtime, one)


# Random machines, and workers that die.


def table_of(random: Random) -> list[list[Move]]:
    """What a machine does in each of its stages. It is never stuck, so that it comes to rest."""

    def move() -> Move:
        kind = random.choice(["go"] * 6 + ["chance", "done", "delete"])
        emits = random.choices(KEYS, k=random.randrange(3))
        waits = random.choices(range(20), k=random.randrange(2))
        return Move(kind, random.randrange(STAGES), emits, random.randrange(3), waits)

    return [[move() for _ in range(4)] for _ in range(STAGES)]


@executor(ping, retries=3)
async def pong(params: int, intent: Any) -> int:
    """Answer a ping."""
    return params + 1


async def play(driver: Driver, manifest: Manifest, seed: int, clock: VirtualClock) -> None:
    """Send random events, and wait until there is nothing more to be done; workers die meanwhile."""
    random = Random(seed)
    async with Client(driver, machines=manifest, clock=clock) as client:
        for _ in range(6):
            await client.emit(Play(random.choice(KEYS), str(random.randrange(4))))
    for _ in range(3):
        dying = FaultyDriver(driver, crash_after=random.randrange(1, 30), seed=seed)
        try:
            async with Runtime(dying, machines=manifest, executors=[pong], journal=True, clock=clock) as runtime:
                for name in manifest.machines:
                    await until_quiet(runtime, name)
        except* SimulatedCrash:
            pass


@pytest.mark.parametrize("seed", range(6))
async def test_the_journal_of_random_machines_leads_to_the_same_bytes_whoever_dies(driver: Driver, seed: int) -> None:
    random, clock = Random(seed), VirtualClock(quiet=0.01)
    event = Play | EffectReceipt | EffectRejected
    one, two = (machine_of(name, table_of(random), event) for name in ("one@1", "two@1"))
    manifest = Manifest([one, two], [route(Play, one, "key"), route(Play, two, "key")])
    taken: list[list[StoredSnapshot]] = []
    for part in range(3):
        if part:
            await play(driver, manifest, seed * 10 + part, clock)
        async with Runtime(driver, machines=manifest, executors=[pong], journal=True, clock=clock) as runtime:
            taken.append(await until_all_quiet(runtime, one, two))
            for machine, *snapshots in zip((one, two), *taken, strict=True):
                entries: list[JournalEntry] = list(await runtime.journal(machine))
                for snapshot in snapshots:
                    await runtime.pin(snapshot.root)
                    found = await runtime.verify_replay(snapshot, entries)
                    assert (found.root, found.mismatches) == (snapshots[-1].root, ())
            await runtime.gc()
    assert taken[0][0].count == 0


# What is kept.


async def three_snapshots(runtime: Runtime, one: Machine[Any]) -> list[StoredSnapshot]:
    """Snapshots of one machine, each of other cells."""
    taken: list[StoredSnapshot] = []
    for number in range(3):
        await say(runtime, ("a", str(number)), (f"b{number}", "1"))
        await until_cell(runtime, one, f"b{number}", lambda cell: cell.last_sequence == 1)
        taken.append(await until_quiet(runtime, one))
    return taken


async def test_gc_deletes_what_no_root_leads_to(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        first, middle, last = await three_snapshots(runtime, one)
        await runtime.pin(middle.root)
        before = len(await rows_of(driver))
        deleted = await runtime.gc()
        assert deleted > 0
        assert len(await rows_of(driver)) == before - deleted
        assert await runtime.gc() == 0
        for kept in (middle, last):
            assert (await runtime.verify_replay(kept)).is_equal
        with pytest.raises(CodecError, match="are not there"):
            await runtime.verify_replay(first)
        await runtime.unpin(middle.root)
        await runtime.unpin(middle.root)
        assert await runtime.gc() > 0
        with pytest.raises(CodecError, match="are not there"):
            await runtime.verify_replay(middle)
        assert (await runtime.verify_replay(last)).is_equal


async def test_the_newest_snapshot_of_each_machine_is_kept(driver: Driver) -> None:
    one, other = told(obeys, event=Do), told(obeys, name="other@1", event=Say)
    async with host(driver, one, other, journal=True) as runtime:
        await say(runtime, ("a", "1"))
        await runtime.emit(Say("a", "another"))
        taken = [await until_quiet(runtime, machine) for machine in (one, other)]
        await runtime.gc()
        for snapshot in taken:
            assert (await runtime.verify_replay(snapshot)).is_equal
    async with Client(driver) as client:
        assert await client.gc() == 0, "it needs to know no machine"


async def test_only_what_is_there_can_be_pinned(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        first, *_ = await three_snapshots(runtime, one)
        await runtime.gc()
        wrong: Any = 7
        for root in (first.root, "00" * 32, "no root", wrong):
            with pytest.raises(DefinitionError, match="root"):
                await runtime.pin(root)
        await runtime.unpin(first.root)


async def test_many_rows_are_deleted_some_at_a_time(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one) as runtime:
        await runtime.snapshot(one)
        batch = Batch()
        for number in range(ROWS_AT_ONCE * 2 + 1):
            batch.set(blob_key(f"{number:064x}"), b"left by a worker that died")
        await driver.commit(batch)
    counting = FaultyDriver(driver)
    async with Client(counting) as client:
        assert await client.gc() == ROWS_AT_ONCE * 2 + 1
    assert counting.commits == 3


class Meddling:
    """A driver that does something else before a commit, or after a scan."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.before_commit: Callable[[], Awaitable[Any]] | None = None
        self.after_scan: dict[int, Callable[[], Awaitable[Any]]] = {}
        """In how many scans from now on what is to be done."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def commit(self, batch: Batch) -> None:
        """Commit, after something else."""
        before, self.before_commit = self.before_commit, None
        if before is not None:
            await before()
        await self._driver.commit(batch)

    async def scan(self, begin: bytes, end: bytes, **options: Any) -> Rows:
        """Scan, and do something else."""
        rows = await self._driver.scan(begin, end, **options)
        self.after_scan = {number - 1: what for number, what in self.after_scan.items()}
        if (what := self.after_scan.pop(0, None)) is not None:
            await what()
        return rows


def as_driver(meddling: Any) -> Driver:
    """The same, for the checks of types."""
    driver: Driver = meddling
    return driver


async def test_what_is_pinned_while_others_collect_is_kept(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        first, *_ = await three_snapshots(runtime, one)
        meddling = Meddling(driver)
        meddling.before_commit = lambda: runtime.pin(first.root)
        async with Client(as_driver(meddling)) as client:
            assert await client.gc() > 0
        assert (await runtime.verify_replay(first)).is_equal


async def test_a_snapshot_that_is_taken_while_others_collect_is_whole(driver: Driver) -> None:
    one = told(obeys)
    meddling = Meddling(driver)
    async with (
        host(driver, one, journal=True) as runtime,
        Client(as_driver(meddling), machines=manifest_of(one)) as client,
    ):
        await say(runtime, ("a", "1"))
        await until_quiet(runtime, one)
        await say(runtime, ("a", "2"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2)

        async def collect_later() -> None:
            meddling.before_commit = runtime.gc  # its parts are written by then, and nothing leads to them

        meddling.before_commit = collect_later
        taken = await client.snapshot(one)
        assert meddling.before_commit is None
        assert (await runtime.verify_replay(taken)).is_equal


async def test_damaged_parts_are_seen(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        await say(runtime, ("a", "1"))
        taken = await until_quiet(runtime, one)
        (key, raw), *_ = await rows_of(driver, BLOBS)
        batch = Batch()
        batch.set(key, raw[:-1] + bytes([raw[-1] ^ 1]))
        await driver.commit(batch)
        with pytest.raises(CodecError, match="damaged"):
            await runtime.verify_replay(taken)
        with pytest.raises(CodecError, match="no hash"):
            await runtime.verify_replay(replace(taken, root="no root"))


class Backwards:
    """A codec whose bytes nobody reads by accident."""

    def encode(self, data: bytes) -> bytes:
        """The bytes backwards."""
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        """Forwards again."""
        return data[::-1]


async def test_keys_and_states_in_snapshots_are_stored_as_the_codec_says(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True, codec=Backwards()) as runtime:
        empty = await runtime.snapshot(one)
        await say(runtime, ("key in plaintext", "word in plaintext"))
        await until_cell(runtime, one, "key in plaintext", lambda cell: cell.last_sequence == 1)
        end = await until_quiet(runtime, one)
        assert (await runtime.verify_replay(empty)).root == end.root
        assert (await runtime.verify_replay(end)).is_equal
    stored = b"".join(raw for _, raw in await rows_of(driver))
    assert b"plaintext" not in stored
    assert await rows_of(driver, ROOTS)


async def test_snapshots_that_are_taken_at_once_are_whole(driver: Driver) -> None:
    one = told(obeys)
    async with host(driver, one, journal=True) as runtime:
        await say(runtime, ("a", "1"), ("b", "1"))
        await until_quiet(runtime, one)
        await say(runtime, ("a", "2"))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 2)
        taken: list[StoredSnapshot] = []

        async def take() -> None:
            taken.append(await until_quiet(runtime, one))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(take)
                group.start_soon(runtime.gc)
        assert len({snapshot.root for snapshot in taken}) == 1
        assert (await runtime.verify_replay(taken[0])).is_equal
