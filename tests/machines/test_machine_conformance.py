"""The paragraphs of a document on workflows as state machines, as far as machines in memory can show them.

Each test is named after its paragraph; docs/machines-conformance.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from tests.machines.shop import (
    Charge,
    Charged,
    Do,
    Notes,
    Order,
    OrderCreated,
    OrderPaid,
    Say,
    State,
    charge,
    does,
    harness_of,
    notes,
    order,
    ping,
    shop,
)
from workflow_sdk import CodecError, DefinitionError, Delivery, InstanceNotFoundError, InstanceStateError
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Harness,
    Machine,
    MachineContext,
    Manifest,
    Transition,
    canonical,
    effect,
    machine,
    route,
    timer,
)
from workflow_sdk.machines.index import reachable

CELL = "cell@1"


def charging(key: str = "o-1") -> Harness:
    """An order that waits for its charge."""
    harness = Harness(shop)
    harness.emit(OrderCreated(key, 5))
    harness.run_to_idle()
    return harness


def give(found: Any) -> Any:
    """What a machine does that always answers the same."""
    return lambda state, event, ctx: found


def stuck_by(found: Any, **options: Any) -> str:
    """Why a cell is stuck whose machine answers so; nothing of it was kept."""
    harness = harness_of(give(found), **options)
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert (harness.cell(CELL, "a").status, harness.cell(CELL, "a").state) == ("stuck", None)
    assert harness.effects() == []
    assert harness.journal(CELL) == []
    return harness.problem(CELL, "a") or ""


# 3.1 Effects.


def test_3_1_only_machines_originate_effects() -> None:
    harness = Harness(shop)
    with pytest.raises(CodecError):
        harness.emit(charge("o-1", 5))
    harness.emit(OrderPaid("o-1"))
    assert harness.effects() == []
    assert {intent.machine for intent in charging().effects()} == {order.name}


def test_3_1_a_machine_must_declare_its_effects() -> None:
    with pytest.raises(DefinitionError, match=r"effects=\[\] if there are none"):
        machine("m@1", state=State, event=Do)
    assert does(effects=[]).effects == {}


def test_3_1_effects_are_named_objects_and_no_texts() -> None:
    with pytest.raises(DefinitionError):
        Transition(State(), effects=["payment/charge@1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError):
        does(effects=["payment/charge@1"])
    assert "has it not" in stuck_by(Transition(State(), effects=[effect("ping", params=int)(1)]))


def test_3_1_an_undeclared_effect_is_refused_before_anything_is_recorded() -> None:
    assert "has it not" in stuck_by(Transition(State(), effects=[charge("o", 1)]), effects=[ping])


def test_3_1_several_effects_in_one_transition_within_limits() -> None:
    harness = harness_of(give(Transition(State(), effects=[ping(number) for number in range(64)])))
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert [intent.params for intent in harness.effects()] == list(range(64))
    assert "at most 64" in stuck_by(Transition(State(), effects=[ping(1)] * 65))
    assert "at most 256" in stuck_by(Transition(State(), [OrderPaid("a")] * 257))
    assert "1,048,576" in stuck_by(Transition(State(["x" * (1 << 20)])))


# 3.2 Canonical forms.


@dataclass(frozen=True)
class Priced:
    """With a number that can be written in two ways."""

    key: str
    price: float
    word: str = ""


def test_3_2_event_payloads_are_canonicalized_on_ingress() -> None:
    harness = harness_of(event=Priced)
    harness.emit(Priced("a", 5))
    harness.emit(Priced("a", 5.0))
    harness.run_to_idle()
    first, second = harness.journal(CELL)
    assert first.value == second.value == canonical.bare({"key": "a", "price": 5.0, "word": ""})


def test_3_2_event_payloads_are_validated_on_ingress() -> None:
    harness = Harness(shop)
    with pytest.raises(CodecError):
        harness.emit(OrderCreated("o-1", "5"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert harness.cells(order) == []


def test_3_2_params_are_validated_and_canonicalized_before_the_intent_has_its_id() -> None:
    priced = effect("priced", params=Priced)
    ids: list[str] = []
    for price in (5, 5.0):
        harness = harness_of(give(Transition(State(), effects=[priced("a", price)])), effects=[priced])
        harness.emit(Do("a"))
        harness.run_to_idle()
        ids += [intent.id for intent in harness.effects()]
    assert ids[0] == ids[1]
    with pytest.raises(DefinitionError, match="the parameters"):
        priced("a", "5")


def test_3_2_receipt_payloads_are_validated_and_canonicalized_before_they_are_delivered() -> None:
    seen: list[Any] = []
    asking = effect("asking", receipt=Priced)

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(event)
        return asking() if isinstance(event, Do) else None

    harness = harness_of(did, effects=[asking])
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.receipt(harness.effects()[0], {"key": "a", "price": 5})
    harness.run_to_idle()
    assert seen[1].payload == Priced("a", 5.0)
    assert type(seen[1].payload.price) is float


def test_3_2_the_journal_and_snapshots_have_the_canonical_forms() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    for entry in harness.journal(order):
        assert canonical.encode(canonical.decode(entry.value)) == canonical.TAG + entry.value
    [cell] = harness.snapshot(order).cells()
    assert cell.state is not None
    assert canonical.decode(cell.state) == {"id": "o-1", "stage": "paid", "told": "c"}
    assert canonical.encode(canonical.decode(cell.state)) == canonical.TAG + cell.state


def test_3_2_what_is_not_canonical_is_not_read() -> None:
    event = {"schema": "acme/OrderPaid@1", "value": bytes.fromhex("bf686f726465725f6964616fff")}
    with pytest.raises(CodecError, match="not the canonical ones"):
        notes.invoke_bytes(canonical.encode({"version": 1, "state": None, "event": event}))


# 3.3 Where receipts go.


def test_3_3_a_receipt_goes_to_the_cell_that_asked() -> None:
    harness = Harness(shop)
    for key in ("o-1", "o-2"):
        harness.emit(OrderCreated(key, 5))
    harness.run_to_idle()
    _, of_second = harness.effects()
    harness.receipt(of_second, Charged("c"))
    harness.run_to_idle()
    assert [cell.state.stage for cell in harness.cells(order)] == ["charging", "paid"]


def test_3_3_the_id_of_an_intent_binds_machine_version_and_key() -> None:
    ids: list[str] = []
    for options in ({}, {"name": "other@1"}, {"name": "cell@2"}, {"key": None}):
        for key in "ab":
            harness = harness_of(give(ping(1)), **options)
            harness.emit(Do(key))
            harness.run_to_idle()
            ids += [intent.id for intent in harness.effects()]
    assert len(set(ids)) == 7, "with one cell, both events reach the same"


def test_3_3_receipts_consult_no_route() -> None:
    harness = charging()
    [intent] = harness.effects()
    harness.reopen(Manifest([order, notes]))
    assert harness.emit(OrderCreated("o-2", 5)) == []
    assert harness.receipt(intent, Charged("c")) == Delivery.ACCEPTED
    harness.run_to_idle()
    assert harness.cell(order, "o-1").state.stage == "paid"


@pytest.mark.parametrize("forged", [EffectReceipt(order.name, "o-1"), EffectRejected(order.name, "o-1")])
def test_3_3_routes_are_for_events_only(forged: Any) -> None:
    with pytest.raises(DefinitionError, match="without a route"):
        route(type(forged), order, key_field="key")
    with pytest.raises(CodecError, match="comes from effects only"):
        Harness(shop).emit(forged)
    assert "comes from effects only" in stuck_by(Transition(State(), [forged]))


# 3.4 and 3.5 Receipts.


@pytest.mark.parametrize("keyed", [True, False])
def test_3_4_a_receipt_carries_origin_intent_effect_executor_issuer_payload_status_and_sequence(keyed: bool) -> None:
    seen: list[Any] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(event)
        return charge("o", 5).tagged("payments") if isinstance(event, Do) and event.word == "ask" else None

    harness = harness_of(did, key=str if keyed else None)
    harness.emit(Do("a", "first"))
    harness.emit(Do("a", "ask"))
    harness.run_to_idle()
    [intent] = harness.effects()
    harness.receipt(intent, Charged("c"))
    harness.run_to_idle()
    assert seen[-1] == EffectReceipt(
        machine=CELL,
        key="a" if keyed else None,
        intent_id=intent.id,
        effect="payment/charge@1",
        executor=None,
        issuer="payments",
        status="ok",
        payload=Charged("c"),
        sequence=2,
    )


def test_3_5_a_payload_that_can_not_be_read_settles_its_intent() -> None:
    harness = charging()
    [intent] = harness.effects()
    assert harness.receipt(intent, 5) == Delivery.ACCEPTED
    assert harness.effects() == []
    harness.run_to_idle()
    assert harness.cell(order, "o-1").inflight == {}
    assert harness.receipt(intent, Charged("c")) == Delivery.STALE


def test_3_5_the_machine_is_told_of_it_if_its_event_has_that_arm() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], 5)
    harness.run_to_idle()
    assert harness.cell(order, "o-1").state.stage == "rejected"
    assert harness.cell(order, "o-1").status == "waiting"


def test_3_5_else_the_cell_has_failed_and_its_other_receipts_are_dropped() -> None:
    harness = harness_of(give(Transition(State(), effects=[ping(1), ping(2), ping(3)])), event=Do | EffectReceipt)
    harness.emit(Do("a"))
    harness.emit(Do("b"))
    harness.run_to_idle()
    bad, queued, late, *_ = harness.effects()
    harness.receipt(bad, "no number")
    harness.receipt(queued, 5)
    harness.run_to_idle()
    cell = harness.cell(CELL, "a")
    assert (cell.status, cell.inflight, cell.last_sequence) == ("failed", {}, 1)
    assert harness.receipt(late, 5) == Delivery.CLOSED
    assert harness.cell(CELL, "b").status == "waiting", "other cells go on"


# 3.6 What is kept of a cell.


def test_3_6_state_inflight_status_and_sequence_are_kept() -> None:
    harness = charging()
    before = harness.cell(order, "o-1")
    assert (before.state, before.status, before.last_sequence) == (Order("o-1", "charging"), "waiting", 1)
    assert list(before.inflight) == [intent.id for intent in harness.effects()]
    harness.reopen()
    assert harness.cell(order, "o-1") == before


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (Transition(State()), "waiting"),
        (Transition(State(), done=True), "completed"),
        (5, "stuck"),
    ],
)
def test_3_6_the_status_says_what_the_cell_is_doing(found: Any, status: str) -> None:
    harness = harness_of(give(found))
    harness.emit(Do("a"))
    harness.run_to_idle()
    harness.reopen()
    assert harness.cell(CELL, "a").status == status


def test_3_6_replay_restores_the_same_state() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    found = harness.verify_replay(harness.snapshot(order))
    assert (found.root, found.mismatches) == (harness.snapshot(order).root, ())


# 4 The way of an event.


def test_4_an_event_is_routed_taken_and_its_answer_comes_back() -> None:
    harness = Harness(shop)
    assert harness.emit(OrderCreated("o-1", 5)) == [Delivery.ACCEPTED]
    assert harness.run_to_idle() == 1
    [intent] = harness.effects()
    assert (intent.params, intent.key) == (Charge("o-1", 5), "o-1")
    harness.receipt(intent, Charged("c"))
    assert harness.run_to_idle() == 2, "the receipt, and the event that the order tells to the notes"
    assert harness.cell(order, "o-1").state.stage == "paid"
    assert harness.cell(notes).state == Notes(["o-1"])


def test_4_a_machine_is_called_with_the_current_state_and_the_event() -> None:
    seen: list[Any] = []

    @machine("m@1", state=int, event=Do, effects=[])
    def counting(state: int | None, event: Do, ctx: MachineContext) -> Transition[int]:
        seen.append((state, event))
        return Transition((state or 0) + 1)

    harness = Harness(counting)
    for word in "ab":
        harness.emit(Do("x", word))
    harness.run_to_idle()
    assert seen == [(None, Do("x", "a")), (1, Do("x", "b"))]


# 5 What a machine declares.


def test_5_a_machine_declares_state_event_annotations_key_and_effects() -> None:
    @machine("m@3", state=Order, event=Do | EffectReceipt, key=int, effects=[ping], annotations=Notes)
    def declared(state: Any, event: Any, ctx: MachineContext) -> Transition[Order]:
        return Transition(Order("o", "s"), annotations=Notes([]))

    assert (declared.state.hint, declared.annotations.hint, declared.version) == (Order, Notes, 3)
    assert declared.key is not None
    assert declared.key.hint is int
    assert (list(declared.effects), declared.hears_receipts) == (["ping"], True)


def test_5_annotations_have_to_fit() -> None:
    @machine(CELL, state=State, event=Do, key=str, effects=[], annotations=Notes)
    def wrong(state: Any, event: Any, ctx: MachineContext) -> Transition[State]:
        return Transition(State(), annotations=5)

    harness = Harness(wrong, routes=[route(Do, wrong, "key")])
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert "annotations" in (harness.problem(CELL, "a") or "")


def test_5_the_context_has_time_chance_journal_manifest_and_identity() -> None:
    seen: list[MachineContext] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(ctx)

    harness = harness_of(did)
    for _ in range(2):
        harness.emit(Do("a"))
        harness.clock.advance(5)
    harness.run_to_idle()
    one, other = seen
    assert (other.key, other.machine, other.version, other.sequence) == ("a", CELL, 1, 1)
    assert other.manifest_hash == harness.manifest.hash
    assert (other.now() - one.now()).total_seconds() == 5
    again = MachineContext("a", machine=CELL, sequence=1)
    assert (other.uuid(), other.random.random()) == (again.uuid(), again.random.random())
    assert one.uuid() != again.uuid()


# 6 Routes.


def test_6_a_route_needs_an_event_and_a_machine() -> None:
    for given in ((Do, None), (None, order), ("Do", order)):
        with pytest.raises(DefinitionError):
            route(*given)  # pyright: ignore[reportArgumentType]


def test_6_a_machine_with_keys_needs_a_key_field_and_no_other_has_one() -> None:
    with pytest.raises(DefinitionError, match="needs a key_field"):
        route(OrderCreated, order)
    with pytest.raises(DefinitionError, match="one cell, without a key"):
        route(OrderPaid, notes, key_field="order_id")


def test_6_routes_are_asked_in_the_order_of_the_manifest_and_fan_out() -> None:
    one, other, third = does(name="a@1"), does(name="b@1"), does(name="c@1", key=None)
    routes = [route(Do, third), route(Do, other, "key"), route(Say, one, "key"), route(Do, one, "word")]
    harness = Harness(one, other, third, routes=routes)
    assert harness.emit(Do("k", "w")) == [Delivery.ACCEPTED] * 3
    harness.run_to_idle()
    assert [(entry.machine) for entry in harness.kernel.journal] == ["c@1", "b@1", "a@1"]


def test_6_a_route_delivers_the_type_of_a_machine_or_one_arm_of_its_union_as_that_arm() -> None:
    seen: list[Any] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append(event)

    exact, union = does(did, name="a@1", event=Do), does(did, name="b@1", event=Say | Do)
    harness = Harness(exact, union, routes=[route(Do, exact, "key"), route(Do, union, "key")])
    harness.emit(Do("k"))
    harness.run_to_idle()
    assert seen == [Do("k"), Do("k")]
    with pytest.raises(DefinitionError, match="does not take it"):
        route(Say, exact, key_field="key")


# 7.1 and 7.2 Cells.


def test_7_1_a_cell_has_its_own_state_and_pending_work() -> None:
    harness = Harness(shop)
    for key in ("o-1", "o-2"):
        harness.emit(OrderCreated(key, 5))
    harness.run_to_idle()
    one, other = harness.cells(order)
    assert (one.state, other.state) == (Order("o-1", "charging"), Order("o-2", "charging"))
    assert not one.inflight.keys() & other.inflight.keys()


@pytest.mark.parametrize("made", [order, notes])
def test_7_2_machines_with_and_without_keys_have_the_same_envelope(made: Machine[Any]) -> None:
    name, value = {
        "acme/order@1": ("acme/OrderCreated@1", {"order_id": "o-1", "cents": 5}),
        "acme/notes@1": ("acme/OrderPaid@1", {"order_id": "o-1"}),
    }[made.name]
    event = {"schema": name, "value": canonical.encode(value)}
    if made.is_keyed:
        event["key"] = canonical.encode("o-1")
    facts = canonical.encode({"now_ns": 0, "sequence": 0, "key": event.get("key"), "cell_mode": made.is_keyed})
    raw = canonical.encode({"version": 1, "state": None, "event": event, "ctx": facts})
    out = canonical.decode(made.invoke_bytes(raw))
    assert isinstance(out["state"], bytes)
    assert set(out) <= {"state", "domain_events", "effects", "ann", "done"}
    assert made.invoke_bytes(raw) == made.invoke_bytes(raw)


def test_7_2_the_key_is_required_where_there_are_keys() -> None:
    event = {"schema": "acme/OrderCreated@1", "value": canonical.encode({"order_id": "o-1", "cents": 5})}
    with pytest.raises(CodecError, match="no key was given"):
        order.invoke_bytes(canonical.encode({"version": 1, "state": None, "event": event}))


def test_7_2_a_machine_is_told_the_state_of_its_own_cell_only() -> None:
    seen: list[Any] = []

    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        seen.append((ctx.key, state.words))

    harness = harness_of(did)
    for key in "aba":
        harness.emit(Do(key, key))
    harness.run_to_idle()
    assert seen == [("a", ["a"]), ("b", ["b"]), ("a", ["a", "a"])]


def test_7_2_the_state_null_deletes_the_cell() -> None:
    harness = harness_of(lambda state, event, ctx: Transition(None) if event.word == "end" else None)
    for word in ("go", "end"):
        harness.emit(Do("a", word))
    harness.run_to_idle()
    with pytest.raises(InstanceNotFoundError):
        harness.cell(CELL, "a")


# 7.3 Keys of events.


def test_7_3_the_key_is_taken_from_the_event_and_has_to_fit() -> None:
    harness = harness_of(key=int, event=Loose)
    harness.emit(Loose(5))
    harness.run_to_idle()
    assert harness.cell(CELL, 5).key == 5
    with pytest.raises(CodecError, match="key"):
        harness.emit(Loose("five"))


@dataclass(frozen=True)
class Loose:
    """Its key may be anything."""

    key: Any
    word: str = ""


@dataclass(frozen=True)
class Note:
    """Inside an event."""

    note_id: str


@dataclass(frozen=True)
class Noted:
    """An event with a key inside."""

    note: Note
    note_id: str = "n-2"
    word: str = ""


def test_7_3_the_key_field_may_be_a_path_into_the_value() -> None:
    made = does(event=Noted)
    routes = [route(Noted, made, "$value.note_id"), route(Noted, made, "note.note_id")]
    harness = Harness(made, routes=routes)
    harness.emit(Noted(Note("n-1")))
    harness.run_to_idle()
    assert [cell.key for cell in harness.cells(CELL)] == ["n-2", "n-1"]


def test_7_3_a_missing_cell_begins_with_the_state_null() -> None:
    seen: list[Any] = []

    @machine(CELL, state=State, event=Do, key=str, effects=[])
    def begins(state: State | None, event: Do, ctx: MachineContext) -> Transition[State]:
        seen.append(state)
        return Transition(State())

    harness = Harness(begins, routes=[route(Do, begins, "key")])
    harness.emit(Do("a"))
    harness.run_to_idle()
    assert seen == [None]


# 7.4 Turns and receipts.


def test_7_4_every_cell_has_its_own_messages_in_order() -> None:
    harness = harness_of()
    for word in "123":
        for key in "ab":
            harness.emit(Do(key, word))
    harness.run_to_idle()
    assert [cell.state.words for cell in harness.cells(CELL)] == [["1", "2", "3"]] * 2


def test_7_4_cells_take_turns() -> None:
    harness = harness_of()
    for key in "aaabbc":
        harness.emit(Do(key))
    harness.run_to_idle()
    keys = [canonical.restored(entry.key or b"") for entry in harness.journal(CELL)]
    assert keys == ["a", "b", "c", "a", "b", "a"]


def test_7_4_receipts_are_never_delivered_to_another_cell() -> None:
    harness = harness_of(lambda state, event, ctx: ping(1) if isinstance(event, Do) else None)
    for key in "abc":
        harness.emit(Do(key))
    harness.run_to_idle()
    for intent in reversed(harness.effects()):
        harness.receipt(intent, 5)
        harness.run_to_idle()
        told = {cell.key for cell in harness.cells(CELL) if len(cell.state.words) == 2}
        assert intent.key in told
        assert told == {one for one in "abc" if one >= intent.key}


# 7.5 and 7.7 Snapshots.


def test_7_5_the_index_has_key_state_hash_size_and_last_activity_of_every_cell() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    snapshot = harness.snapshot(order)
    [entry] = snapshot.entries()
    [cell] = snapshot.cells()
    assert cell.state is not None
    assert (entry.key, entry.size) == (canonical.bare("o-1"), len(cell.state))
    assert entry.last_active == harness.clock.now().timestamp() * 1_000_000_000


def test_7_7_a_snapshot_requires_quiescence() -> None:
    harness = charging()
    with pytest.raises(InstanceStateError, match="in flight"):
        harness.snapshot(order)
    harness.emit(OrderPaid("x"))
    with pytest.raises(InstanceStateError, match="queued"):
        harness.snapshot(notes)


def test_7_7_every_machine_has_a_root_of_its_own_that_follows_its_cells() -> None:
    harness = harness_of(lambda state, event, ctx: Transition(None) if event.word == "end" else None)
    roots: list[str] = [harness.snapshot().root]
    for key, word in (("a", "go"), ("b", "go"), ("b", "end"), ("a", "end")):
        harness.emit(Do(key, word))
        harness.run_to_idle()
        roots.append(harness.snapshot().root)
    assert roots[0] == roots[4], "without cells again"
    assert roots[1] == roots[3], "the second cell has come and gone"
    assert len(set(roots)) == 3


def test_7_7_a_root_leads_to_all_that_has_to_be_kept() -> None:
    harness = harness_of()
    for key in "abc":
        harness.emit(Do(key, key))
    harness.run_to_idle()
    before = harness.snapshot()
    harness.emit(Do("a", "more"))
    harness.run_to_idle()
    after = harness.snapshot()
    shared = reachable(before.root, before.read) & reachable(after.root, after.read)
    states = {entry.state_hash.hex() for entry in before.entries()}
    assert len(states & shared) == 2, "the states that have not changed are kept once"
    assert [cell.key for cell in before.cells()] == [cell.key for cell in after.cells()]


# 7.8 The journal.


def test_7_8_entries_of_the_journal_have_machine_key_and_intent() -> None:
    harness = charging()
    [intent] = harness.effects()
    harness.receipt(intent, Charged("c"))
    harness.run_to_idle()
    told = [(entry.machine, entry.key, entry.kind, entry.intent_id) for entry in harness.journal(order)]
    key = canonical.bare("o-1")
    assert told == [(order.name, key, "event", None), (order.name, key, "receipt", intent.id)]


# 8 Patterns.


def test_8_a_retries_and_compensation_are_transitions_of_one_machine() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, EffectReceipt) and event.status == "ok":
            return Transition(state, done=True)
        return charge("o", 5) if len(state.words) < 3 else Transition(state, effects=[ping(0)], done=True)

    def after(*answers: Literal["ok", "error"]) -> Harness:
        harness = harness_of(did)
        harness.emit(Do("a", "go"))
        harness.run_to_idle()
        for status in answers:
            harness.receipt(harness.effects()[0], Charged("c") if status == "ok" else "declined", status=status)
            harness.run_to_idle()
        return harness

    retried = after("error", "ok")
    assert (retried.cell(CELL, "a").status, retried.effects()) == ("completed", [])
    compensated = after("error", "error")
    assert compensated.cell(CELL, "a").status == "completed"
    assert [intent.effect for intent in compensated.effects()] == ["ping"]


def test_8_b_machines_communicate_through_events() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    assert harness.cell(notes).state == Notes(["o-1"])


def test_8_c_timers_and_receipts_drive_a_machine() -> None:
    def did(state: State, event: Any, ctx: MachineContext) -> Any:
        if isinstance(event, Do):
            return Transition(state, effects=[charge("o", 5), timer(after=3600).tagged("deadline")])
        return Transition(state, done=True)

    for late in (False, True):
        harness = harness_of(did)
        harness.emit(Do("a"))
        harness.run_to_idle()
        asked, _ = harness.effects()
        harness.clock.advance(3600 if late else 3599)
        harness.run_to_idle()
        assert harness.receipt(asked, Charged("c")) == (Delivery.CLOSED if late else Delivery.ACCEPTED)
        harness.run_to_idle()
        last = "timer" if late else "payment/charge@1"
        assert harness.cell(CELL, "a").state.words[1] == f"EffectReceipt ok {last}"


# 9 and 11 Examples and tests.


def test_9_a_transition_and_a_route_as_sketched() -> None:
    created = OrderCreated("o-1", 5)
    assert order(None, created, MachineContext("o-1")) == Transition(
        Order("o-1", "charging"), effects=[charge("o-1", 5).tagged("payments")]
    )
    assert [way.key_field for way in shop.routes] == ["order_id", None]


def test_11_1_a_transition_is_tested_by_a_call() -> None:
    charged = EffectReceipt(status="ok", payload=Charged("c"))
    assert order(Order("o-1", "charging"), charged, MachineContext("o-1")) == Transition(
        Order("o-1", "paid", "c"), events=[OrderPaid("o-1")], done=True
    )


@pytest.mark.parametrize("status", ["ok", "error", "timeout", "fault"])
def test_11_2_receipts_of_every_status_progress_a_cell(status: Any) -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c") if status == "ok" else "why", status=status)
    harness.run_to_idle()
    assert harness.cell(order, "o-1").state.stage == ("paid" if status == "ok" else status)


def test_11_3_replay_or_die() -> None:
    harness = charging()
    harness.receipt(harness.effects()[0], Charged("c"))
    harness.run_to_idle()
    snapshot, journal = harness.snapshot(order), harness.journal(order)
    assert harness.verify_replay(snapshot, journal).is_equal
    tampered = [journal[0], replace(journal[1], at=journal[1].at + 1)]
    [mismatch] = harness.verify_replay(snapshot, tampered).mismatches
    assert mismatch.key == "o-1"


def test_11_4_nothing_is_delivered_to_another_cell() -> None:
    harness = Harness(shop)
    for number in range(100):
        harness.emit(OrderCreated(f"o-{number}", 5))
    harness.run_to_idle()
    for intent in reversed(harness.effects()):
        harness.receipt(intent, Charged(f"of {intent.key}"))
    harness.run_to_idle()
    assert all(cell.state.told == f"of {cell.key}" for cell in harness.cells(order))
