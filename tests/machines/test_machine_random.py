"""Random machines and random events: the journal leads to the same bytes, and reopening changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.machines.shop import Do, State, does, ping
from workflow_sdk.machines import (
    CellStatus,
    EffectReceipt,
    EffectRejected,
    Harness,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    route,
    timer,
)
from workflow_sdk.machines.index import index_of, replay
from workflow_sdk.machines.kernel import Kernel

KEYS = "abc"
STAGES = 4
NAMES = ("one@1", "two@1")


@dataclass(frozen=True)
class Move:
    """What a machine does in one of its stages, when it takes an event of one kind."""

    kind: str
    to: int
    emits: list[str] = field(default_factory=list[str])
    pings: int = 0
    waits: list[int] = field(default_factory=list[int])


moves = st.builds(
    Move,
    st.sampled_from(["go"] * 8 + ["chance", "done", "delete", "refuse", "raise"]),
    st.integers(0, STAGES - 1),
    st.lists(st.sampled_from(KEYS), max_size=2),
    st.integers(0, 2),
    st.lists(st.integers(0, 20), max_size=1),
)
tables = st.lists(st.lists(moves, min_size=4, max_size=4), min_size=STAGES, max_size=STAGES)
actions = st.one_of(
    st.tuples(st.just("emit"), st.sampled_from(KEYS), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(1, 5)),
    st.tuples(st.just("run")),
    st.tuples(st.just("answer"), st.integers(0, 9), st.sampled_from(["ok", "misfit", "error", "again"])),
    st.tuples(st.just("advance"), st.integers(1, 30)),
    st.tuples(st.just("recover"), st.sampled_from(KEYS)),
)
Script = list[tuple[Any, ...]]
scripts = st.lists(actions, min_size=1, max_size=25)


def machine_of(name: str, table: list[list[Move]], event: Any) -> Machine[Any]:
    """The machine that moves as the table says. How far its events go is said in them, so that all of it ends."""

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        before = state.words[:-1]
        stage = int(before[0]) if before else 0
        move = table[stage][_kind(event)]
        if move.kind == "raise":
            raise ValueError("as the table says")
        if move.kind == "refuse":
            return Transition(state, effects=[ping(1)] * 65)
        if move.kind == "delete":
            return Transition(None)
        far = int(event.word) if isinstance(event, Do) else 0
        emits = [Do(key, str(far - 1)) for key in move.emits] if far > 0 else []
        effects: list[Any] = [ping(move.to)] * move.pings if far > 0 else []
        effects += [timer(after=after) for after in move.waits] if far > 0 else []
        noted = [str(ctx.uuid()), ctx.now().isoformat(), ctx.random.choice(KEYS)] if move.kind == "chance" else []
        after = State([str(move.to), str(ctx.sequence), *before[-5:], *noted])
        return Transition(after, emits, effects, done=move.kind == "done")

    return does(did, name=name, event=event)


def _kind(event: Any) -> int:
    if isinstance(event, Do):
        return int(event.word) % 2
    return 2 if isinstance(event, EffectReceipt) and event.status == "ok" else 3


def harness_of_tables(tables: list[list[list[Move]]], hears_rejections: bool) -> Harness:
    """Two machines that hear the same events; one has a cell for every key, the other only one."""
    event = Do | EffectReceipt | EffectRejected if hears_rejections else Do | EffectReceipt
    one, two = (machine_of(name, table, event) for name, table in zip(NAMES, tables, strict=True))
    return Harness(Manifest([one, two], [route(Do, one, "key"), route(Do, two, "key")]))


def play(harness: Harness, script: Script, between: Callable[[int], None] = lambda number: None) -> list[Any]:
    """Do what a script says; give what every call has given."""
    given: list[Any] = []
    for number, (what, *options) in enumerate(script):
        between(number)
        given.append(_do(harness, what, *options))
    return given


def _do(harness: Harness, what: str, *options: Any) -> Any:
    match what, *options:
        case "emit", key, far:
            return harness.emit(Do(key, str(far)))
        case "step", count:
            return [harness.kernel.step() for _ in range(count)]
        case ("run",):
            return harness.run_to_idle()
        case "answer", number, how:
            return _answer(harness, number, how)
        case "advance", count:
            harness.clock.advance(count)
        case "recover", key:
            return [harness.kernel.retry(name, harness.manifest.machines[name].key_bytes(key)) for name in NAMES]
        case _:
            pass
    return None


def _answer(harness: Harness, number: int, how: str) -> Any:
    intents = harness.effects()
    if not intents:
        return None
    intent = intents[number % len(intents)]
    if how == "error":
        return harness.receipt(intent, "broken", status="error")
    payload = "no number" if how == "misfit" else None if intent.effect == "timer" else 5
    first = harness.receipt(intent, payload)
    return [first, harness.receipt(intent, payload)] if how == "again" else first


def seen(kernel: Kernel) -> Any:
    """All that there is."""
    return (kernel.cells, dict(kernel.queues), list(kernel.ready), kernel.intents, kernel.journal, kernel.problems)


@given(st.lists(tables, min_size=2, max_size=2), scripts, st.booleans())
@examples(150)
def test_the_journal_leads_to_the_same_bytes(tables: list[Any], script: Script, hears: bool) -> None:
    harness = harness_of_tables(tables, hears)
    play(harness, script)
    kernel = harness.kernel
    for name in NAMES:
        expected = index_of(cell for id, cell in kernel.cells.items() if id[0] == name)
        machine = harness.manifest.machines[name]
        found = replay(machine, (), kernel.journal, expected, manifest_hash=harness.manifest.hash)
        assert (found.root, found.mismatches) == (expected.root, ())


@given(st.lists(tables, min_size=2, max_size=2), scripts, st.booleans(), st.sets(st.integers(0, 24)))
@examples(150)
def test_reopening_at_any_point_gives_the_same_end(
    tables: list[Any], script: Script, hears: bool, points: set[int]
) -> None:
    one, other = (harness_of_tables(tables, hears) for _ in range(2))
    given_to_one = play(one, script)
    given_to_other = play(other, script, lambda number: _reopen_at(other, number, points))
    other.reopen()
    assert given_to_one == given_to_other
    assert seen(one.kernel) == seen(other.kernel)
    assert one.kernel.stored() == other.kernel.stored()
    assert one.effects() == other.effects()


def _reopen_at(harness: Harness, number: int, points: set[int]) -> None:
    if number in points:
        harness.reopen()


@given(st.lists(tables, min_size=2, max_size=2), scripts, st.booleans())
@examples(150)
def test_what_holds_at_every_moment(tables: list[Any], script: Script, hears: bool) -> None:
    harness = harness_of_tables(tables, hears)
    kernel, ids = harness.kernel, dict[str, Any]()

    def check(number: int) -> None:
        ready = list(kernel.ready)
        assert len(set(ready)) == len(ready)
        for id, cell in kernel.cells.items():
            queue = kernel.queues.get(id, ())
            assert (id in ready) == (bool(queue) and cell.status is CellStatus.WAITING)
            assert (cell.status is CellStatus.STUCK) <= bool(queue)
            if cell.status.is_terminal or cell.state is None:
                assert not cell.inflight
            assert not (cell.status.is_terminal and queue)
            answers = {m.event.value for m in queue if m.is_receipt}
            still_open = sum(intent in kernel.intents for intent in cell.inflight)
            assert len(cell.inflight) <= still_open + len(answers)
        for intent_id, intent in kernel.intents.items():
            assert ids.setdefault(intent_id, intent) is intent, "an intent id came twice"

    play(harness, script, check)
    check(len(script))
    assert len(kernel.journal) <= sum(cell.sequence for cell in kernel.cells.values()) + len(ids)
    assert all(entry.sequence >= 0 for entry in kernel.journal)
