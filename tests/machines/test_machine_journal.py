"""The journal of a machine: each message that a cell has taken, once, in the commit that took it."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from tests.machines.cell_parts import (
    Asked,
    Do,
    Say,
    ask,
    host,
    manifest_of,
    tells,
    told,
    until_cell,
    until_count,
    until_gone,
    until_words,
)
from tests.runtime.polling import settle, until
from workflow_sdk import Client, DefinitionError, Driver, Runtime
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    JournalEntry,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    machine,
)
from workflow_sdk.machines.rows import JournalRow, journal_of
from workflow_sdk.rows.location import subtree
from workflow_sdk.testing import FaultyDriver, SimulatedCrash, VirtualClock


def asks_once(words: list[str], event: Any, ctx: MachineContext) -> Any:
    """Ask for what the first event says."""
    return ask("what") if isinstance(event, Do) else None


def brief(entries: Any) -> list[tuple[Any, ...]]:
    """What the tests look at."""
    return [(one.key, one.kind, one.sequence) for one in entries]


async def until_entries(runtime: Runtime, machine: Machine[Any], expected: list[tuple[Any, ...]]) -> None:
    """Return once the journal has as many entries; they are these."""

    async def is_so() -> bool:
        return len(await runtime.journal(machine)) >= len(expected)

    await until(is_so)
    assert brief(await runtime.journal(machine)) == expected


async def rows_of(driver: Driver, name: str) -> list[JournalRow]:
    """The rows of a journal."""
    return [JournalRow.unpack(raw) for _, raw in await driver.scan(*subtree(journal_of(name)))]


async def test_events_and_receipts_are_written_down_with_machine_key_and_intent(driver: Driver) -> None:
    one, asked = told(asks_once), Asked()
    async with host(driver, one, executors=[asked.by(tells("yes"))], journal=True) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1", "ok ask@1: yes")
        event, receipt = await runtime.journal(one)
    assert (event.machine, event.key, event.kind, event.schema) == ("told@1", "a", "event", "test/Do@1")
    assert (event.value, event.intent_id, event.sequence) == ({"key": "a", "word": "1"}, None, 0)
    assert (receipt.key, receipt.kind, receipt.intent_id, receipt.sequence) == ("a", "receipt", asked.ids[0], 1)
    assert receipt.value["intent_id"] == asked.ids[0]
    assert receipt.value["payload"] == {"text": "yes"}
    assert event.at.tzinfo is UTC
    assert event.at <= receipt.at
    assert event.cursor < receipt.cursor


async def test_nothing_is_written_down_without_a_journal(driver: Driver) -> None:
    one = told()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1")
        assert list(await runtime.journal(one)) == []
    assert await rows_of(driver, one.name) == []


async def test_each_machine_has_a_journal_of_its_own_in_the_order_of_commits(driver: Driver) -> None:
    tells_other = told(lambda words, event, ctx: Transition(words, events=[Say(event.key, "said")]), event=Do)
    # The names are prefixes of each other.
    other = told(name="told@10", event=Say)
    async with host(driver, tells_other, other, journal=True) as runtime:
        for number in range(5):
            key = "ab"[number % 2]
            await runtime.emit(Do(key, str(number)))
            await until_count(runtime, tells_other, key, number // 2 + 1)
        await until_words(runtime, other, "a", *["said"] * 3)
        await until_words(runtime, other, "b", *["said"] * 2)
        mine, others = await runtime.journal(tells_other), await runtime.journal("told@10")
    assert [one.value["word"] for one in mine] == ["0", "1", "2", "3", "4"]
    assert brief(mine) == [
        ("a", "event", 0),
        ("b", "event", 0),
        ("a", "event", 1),
        ("b", "event", 1),
        ("a", "event", 2),
    ]
    assert {one.schema for one in others} == {"test/Say@1"}
    assert sorted(brief(others)) == [("a", "event", n) for n in range(3)] + [("b", "event", n) for n in range(2)]


async def test_a_receipt_that_is_taken_without_a_transition_is_written_down(driver: Driver) -> None:
    deaf, asked = told(asks_once, event=Do), Asked()
    async with host(driver, deaf, executors=[asked.by()], journal=True) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_entries(runtime, deaf, [("a", "event", 0), ("a", "receipt", 1)])


async def test_a_cell_that_fails_at_an_answer_has_taken_it(driver: Driver) -> None:
    one, asked = told(asks_once, event=Do | EffectReceipt), Asked()
    async with host(driver, one, executors=[], journal=True) as runtime:
        await runtime.emit(Do("a", "1"))
        cell = await until_words(runtime, one, "a", "1")
        await runtime.settle(next(iter(cell.inflight)), {"no": "answer"})
        await until_cell(runtime, one, "a", lambda cell: cell.status is CellStatus.FAILED)
        assert brief(await runtime.journal(one)) == [("a", "event", 0), ("a", "receipt", 1)]
    assert not asked.ids


async def test_what_nobody_takes_is_not_written_down(driver: Driver) -> None:
    def refuses(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return Transition(words, done=True) if event.word == "done" else "no transition"

    one = told(refuses, event=Do)
    async with host(driver, one, journal=True) as runtime:
        await runtime.emit(Do("stuck", "1"))
        await until_cell(runtime, one, "stuck", lambda cell: cell.status is CellStatus.STUCK)
        await runtime.emit(Do("over", "done"))
        await until_cell(runtime, one, "over", lambda cell: cell.status is CellStatus.COMPLETED)
        await runtime.emit(Do("over", "late"))
        await settle(driver)
        assert brief(await runtime.journal(one)) == [("over", "event", 0)]


async def test_late_answers_are_not_written_down(driver: Driver) -> None:
    def asks_and_ends(words: list[str], event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, Do):
            return Transition(None if event.word == "delete" else words, effects=[ask("what")])
        return None

    one, asked = told(asks_and_ends), Asked()
    async with host(driver, one, executors=[asked.by()], journal=True) as runtime:
        await runtime.emit(Do("a", "delete"))
        await until_gone(runtime, one, "a")
        await asked.began.wait()
        await settle(driver)
        assert brief(await runtime.journal(one)) == [("a", "event", 0)]


async def test_a_deleted_cell_that_comes_again_counts_on(driver: Driver) -> None:
    one = told(lambda words, event, ctx: Transition(None if event.word == "delete" else words), event=Do)
    async with host(driver, one, journal=True) as runtime:
        for word in ("1", "delete", "2"):
            await runtime.emit(Do("a", word))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 3)
        assert brief(await runtime.journal(one)) == [("a", "event", 0), ("a", "event", 1), ("a", "event", 2)]
    assert [row.begins for row in await rows_of(driver, one.name)] == [True, False, True]


async def test_annotations_are_in_the_journal(driver: Driver) -> None:
    @machine("noted@1", state=int, event=Do, key=str, effects=[], annotations=dict[str, str])
    def noted(state: int | None, event: Do, ctx: MachineContext) -> Transition[int]:
        return Transition(1, annotations={"why": event.word} if event.word else None)

    async with host(driver, noted, journal=True) as runtime:
        await runtime.emit(Do("a", "so"))
        await runtime.emit(Do("a", ""))
        await until_cell(runtime, noted, "a", lambda cell: cell.last_sequence == 2)
        assert [one.annotations for one in await runtime.journal(noted)] == [{"why": "so"}, None]


async def test_a_machine_without_keys_has_a_journal_too(driver: Driver) -> None:
    one = told(key=None, event=Do)
    async with host(driver, one, journal=True) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, None, "1")
        assert brief(await runtime.journal(one)) == [(None, "event", 0)]


async def test_the_journal_is_read_a_page_at_a_time_by_any_client(driver: Driver) -> None:
    one = told(event=Do)
    async with host(driver, one, journal=True) as runtime:
        for number in range(7):
            await runtime.emit(Do("a", str(number)))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 7)
    async with Client(driver) as client:
        found: list[JournalEntry] = []
        cursor: str | None = None
        sizes: list[int] = []
        while True:
            page = await client.journal(one.name, limit=3, cursor=cursor)
            found += page
            sizes.append(len(page))
            if (cursor := page.cursor) is None:
                break
        assert sizes == [3, 3, 1]
        assert [entry.value["word"] for entry in found] == list(map(str, range(7)))
        assert list(await client.journal(one.name)) == found
        assert list(await client.journal(one.name, cursor=found[4].cursor)) == found[5:]
        assert not list(await client.journal(one.name, cursor=found[-1].cursor))


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": True}, {"limit": 10_001}, {"cursor": "no"}, {"cursor": 7}])
async def test_what_is_no_page_of_a_journal_is_refused(driver: Driver, options: dict[str, Any]) -> None:
    async with Client(driver) as client:
        with pytest.raises(DefinitionError):
            await client.journal("told@1", **options)


def test_a_journal_is_on_or_off() -> None:
    wrong: Any = "yes"
    with pytest.raises(DefinitionError, match="journal is True or False"):
        Runtime("memory://", machines=Manifest(), journal=wrong)


class Backwards:
    """A codec whose bytes nobody reads by accident."""

    def encode(self, data: bytes) -> bytes:
        """The bytes backwards."""
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        """Forwards again."""
        return data[::-1]


async def test_what_is_of_an_author_is_stored_as_its_codec_says(driver: Driver) -> None:
    @machine("secret@1", state=str, event=Do, key=str, effects=[], annotations=str)
    def secret(state: str | None, event: Do, ctx: MachineContext) -> Transition[str]:
        return Transition(event.word, annotations="annotated plaintext")

    async with Runtime(driver, machines=manifest_of(secret), journal=True, codec=Backwards()) as runtime:
        await runtime.emit(Do("key in plaintext", "word in plaintext"))
        await until_cell(runtime, secret, "key in plaintext", lambda cell: cell.last_sequence == 1)
        (entry,) = await runtime.journal(secret)
        assert (entry.key, entry.value["word"]) == ("key in plaintext", "word in plaintext")
        assert entry.annotations == "annotated plaintext"
    stored = b"".join(raw for _, raw in await driver.scan(*subtree(journal_of(secret.name))))
    assert b"plaintext" not in stored


@pytest.mark.parametrize("commit", range(1, 11))
async def test_a_message_is_written_down_once_wherever_its_worker_dies(driver: Driver, commit: int) -> None:
    one = told(asks_once)
    async with Client(driver, machines=manifest_of(one)) as client:
        await client.emit(Do("a", "1"))
    faulty, clock, asked = FaultyDriver(driver, crash_after=commit), VirtualClock(quiet=0.05), Asked()
    try:
        async with host(faulty, one, executors=[asked.by(tells("yes"))], journal=True, clock=clock) as runtime:
            await until_words(runtime, one, "a", "1", "ok ask@1: yes")
    except* SimulatedCrash:
        pass
    async with host(driver, one, executors=[asked.by(tells("yes"))], journal=True, clock=clock) as runtime:
        await until_words(runtime, one, "a", "1", "ok ask@1: yes")
        assert brief(await runtime.journal(one)) == [("a", "event", 0), ("a", "receipt", 1)]


async def test_the_journal_is_read_from_its_end(driver: Driver) -> None:
    one = told(event=Do)
    async with host(driver, one, journal=True) as runtime:
        for number in range(5):
            await runtime.emit(Do("a", str(number)))
        await until_cell(runtime, one, "a", lambda cell: cell.last_sequence == 5)
        whole = list(await runtime.journal(one))
        last = await runtime.journal(one, limit=2, newest_first=True)
        assert list(last) == [whole[4], whole[3]]
        assert list(await runtime.journal(one, newest_first=True, cursor=last.cursor)) == whole[2::-1]


async def test_a_trace_has_what_asked_for_an_effect_and_its_answer(driver: Driver) -> None:
    one, other, asked = told(asks_once, event=Do | EffectReceipt), told(name="another@1", event=Say), Asked()
    async with host(driver, one, other, journal=True) as runtime:
        for key in "ab":
            await runtime.emit(Say(key, "noise"))
            await runtime.emit(Do(key, "1"))
            await until_words(runtime, one, key, "1")
        (intent,) = (await runtime.cell(one, "b")).inflight
        assert [(entry.key, entry.kind) for entry in await runtime.trace(intent)] == [("b", "event")]
        await runtime.settle(intent, {"text": "yes"})
        await until_words(runtime, one, "b", "1", "ok ask@1: yes")
        found = await runtime.trace(intent)
        assert brief(found) == [("b", "event", 0), ("b", "receipt", 1)]
        assert found[1].intent_id == intent
        assert await runtime.trace("no intent") == []
        wrong: Any = 7
        with pytest.raises(DefinitionError):
            await runtime.trace(wrong)
    assert not asked.ids
