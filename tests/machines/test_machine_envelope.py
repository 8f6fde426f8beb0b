"""`invoke_bytes`: one transition as canonical bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.machines.shop import Do, OrderPaid, State, charge, does, notes, order
from workflow_sdk import CodecError, DefinitionError
from workflow_sdk.machines import Machine, MachineContext, Transition, canonical, machine, timer
from workflow_sdk.machines.envelope import context_bytes
from workflow_sdk.machines.stepping import EventData, Given

encode, decode = canonical.encode, canonical.decode

CREATED = {"schema": "acme/OrderCreated@1", "value": encode({"order_id": "o-1", "cents": 5}), "key": encode("o-1")}
ORDER = encode({"id": "o-1", "stage": "charging", "told": ""})


def envelope(**changed: Any) -> bytes:
    """The first event of an order, with these changes."""
    data = {"version": 1, "state": None, "event": CREATED, **changed}
    return encode({name: value for name, value in data.items() if value is not ...})


def invoked(made: Machine[Any], **changed: Any) -> dict[str, Any]:
    """What comes out for the envelope with these changes."""
    out: dict[str, Any] = decode(made.invoke_bytes(envelope(**changed)))
    return out


def receipt(**changed: Any) -> dict[str, Any]:
    """The answer to a charge."""
    told = {
        "machine": order.name, "key": "o-1", "intent_id": "i", "effect": charge.name, "executor": None, "issuer": None,
        "status": "ok", "payload": {"charge_id": "c"}, "sequence": 1,
    }  # fmt: skip
    return {"schema": "sys/EffectReceipt@1", "value": encode({**told, **changed}), "key": encode("o-1")}


def test_a_transition_of_bytes_to_bytes() -> None:
    out = invoked(order)
    assert decode(out.pop("state")) == {"id": "o-1", "stage": "charging", "told": ""}
    [asked] = out.pop("effects")
    assert decode(asked.pop("params")) == {"order_id": "o-1", "cents": 5}
    assert len(asked.pop("intent_id")) == 40
    assert asked == {"effect": "payment/charge@1", "issuer": "payments"}
    assert out == {}, "what there is none of is left out"


def test_a_receipt_of_bytes() -> None:
    out = invoked(order, state=ORDER, event=receipt())
    assert decode(out["state"]) == {"id": "o-1", "stage": "paid", "told": "c"}
    assert [(one["schema"], decode(one["value"])) for one in out["domain_events"]] == [
        ("acme/OrderPaid@1", {"order_id": "o-1"})
    ]
    assert out["done"] is True
    rejected = invoked(order, state=ORDER, event={**receipt(reason="odd"), "schema": "sys/EffectRejected@1"})
    assert decode(rejected["state"])["told"] == "odd"


def test_a_deletion_has_the_state_null() -> None:
    deletes = does(lambda state, event, ctx: Transition(None))
    event = {"schema": next(iter(deletes.arms)), "value": encode({"key": "a", "word": ""}), "key": encode("a")}
    assert invoked(deletes, event=event) == {"state": None}


def test_annotations_are_in_the_envelope() -> None:
    noting = does(lambda state, event, ctx: Transition(state, annotations={"why": [1]}))
    event = {"schema": next(iter(noting.arms)), "value": encode({"key": "a", "word": ""}), "key": encode("a")}
    assert decode(invoked(noting, event=event)["ann"]) == {"why": [1]}


def test_the_same_bytes_give_the_same_bytes() -> None:
    chance = does(lambda state, event, ctx: Transition(State([str(ctx.uuid()), str(ctx.random.random())])))
    event = {"schema": next(iter(chance.arms)), "value": encode({"key": "a", "word": ""}), "key": encode("a")}
    outs = [invoked(chance, event=event, ctx=encode({"sequence": n})) for n in (0, 0, 1)]
    assert outs[0] == outs[1]
    assert outs[0] != outs[2]


def test_the_tag_may_be_missing_everywhere() -> None:
    def bare(value: Any) -> bytes:
        return encode(value).removeprefix(canonical.TAG)

    event = {"schema": CREATED["schema"], "value": bare({"order_id": "o-1", "cents": 5}), "key": bare("o-1")}
    raw = bare({"version": 1, "state": None, "event": event, "ctx": bare({"key": bare("o-1")})})
    assert order.invoke_bytes(raw) == order.invoke_bytes(envelope())


def test_fields_with_defaults_may_be_missing() -> None:
    event = receipt()
    assert invoked(order, state=encode({"id": "o-1", "stage": "charging"}), event=event) == invoked(
        order, state=ORDER, event=event
    )


def test_the_key_may_be_in_the_context() -> None:
    event = {name: value for name, value in CREATED.items() if name != "key"}
    assert invoked(order, event=event, ctx=encode({"key": encode("o-1")})) == invoked(order)


@machine("tells@1", state=dict[str, Any], event=Do, key=str, effects=[])
def tells(state: Any, event: Do, ctx: MachineContext) -> Transition[dict[str, Any]]:
    """Tells what it was told."""
    return Transition(
        {"key": ctx.key, "now": ctx.now(), "sequence": ctx.sequence, "hash": ctx.manifest_hash, "version": ctx.version}
    )


def test_a_machine_is_told_what_the_context_says() -> None:
    now = datetime(2030, 1, 2, tzinfo=UTC)
    event = EventData(next(iter(tells.arms)), canonical.bare({"key": "a", "word": ""}))
    facts = context_bytes(Given(None, event, canonical.bare("a"), now.timestamp(), 7, "hash"))
    assert decode(facts)["cell_mode"] is True
    out = invoked(tells, event={"schema": event.schema, "value": encode({"key": "a", "word": ""})}, ctx=facts)
    assert decode(out["state"]) == {
        "key": "a", "now": "2030-01-02T00:00:00Z", "sequence": 7, "hash": "hash", "version": 1,
    }  # fmt: skip
    assert decode(context_bytes(Given(None, event, None, 0.0, 0)))["cell_mode"] is False


BAD: dict[str, dict[str, Any]] = {
    "no version": {"version": ...},
    "another version": {"version": 2},
    "no state": {"state": ...},
    "no event": {"event": ...},
    "more than there is": {"more": 1},
    "an event that is no map": {"event": [1]},
    "an event without a schema": {"event": {"value": CREATED["value"]}},
    "a schema that is no text": {"event": {**CREATED, "schema": 5}},
    "more in the event": {"event": {**CREATED, "more": 1}},
    "a value that is no bytes": {"event": {**CREATED, "value": {"order_id": "o-1", "cents": 5}}},
    "a value that is no cbor": {"event": {**CREATED, "value": b"\xff"}},
    "a value that is not canonical": {"event": {**CREATED, "value": b"\x18\x00"}},
    "a value that does not fit": {"event": {**CREATED, "value": encode({"order_id": "o-1", "cents": "5"})}},
    "a state that is no bytes": {"state": {"id": "o-1"}},
    "a state that does not fit": {"state": encode({"id": 5})},
    "a state that is not canonical": {"state": bytes.fromhex("a2626964616164616161")},
    "no key": {"event": {"schema": CREATED["schema"], "value": CREATED["value"]}},
    "a key that does not fit": {"event": {**CREATED, "key": encode(5)}},
    "a key that is no bytes": {"event": {**CREATED, "key": "o-1"}},
    "two keys": {"ctx": encode({"key": encode("o-2")})},
    "a context that is no map": {"ctx": encode([1])},
    "a context that is no bytes": {"ctx": {"sequence": 1}},
    "a sequence that is no number": {"ctx": encode({"sequence": "1"})},
    "a sequence that is negative": {"ctx": encode({"sequence": -1})},
    "a time that no clock shows": {"ctx": encode({"now_ns": 2**80})},
    "a hash that is no text": {"ctx": encode({"manifest_hash": [1]})},
    "a receipt that is none": {"event": {**receipt(more=1)}},
    "a receipt whose payload does not fit": {"event": receipt(payload=5)},
}


@pytest.mark.parametrize("what", BAD)
def test_an_envelope_that_is_refused(what: str) -> None:
    with pytest.raises(CodecError):
        order.invoke_bytes(envelope(**BAD[what]))


def test_a_machine_without_keys_is_given_none() -> None:
    event = {"schema": "acme/OrderPaid@1", "value": encode({"order_id": "o-1"})}
    assert decode(invoked(notes, event=event)["state"]) == {"paid": ["o-1"]}
    with pytest.raises(CodecError, match="without a key"):
        notes.invoke_bytes(envelope(event={**event, "key": encode("o-1")}))


def test_a_transition_that_is_refused_raises() -> None:
    def raises(state: Any, event: Any, ctx: Any) -> Any:
        raise ValueError("broken")

    event = {"schema": next(iter(does().arms)), "value": encode({"key": "a", "word": ""}), "key": encode("a")}
    with pytest.raises(DefinitionError, match="broken"):
        does(raises).invoke_bytes(envelope(event=event))
    with pytest.raises(DefinitionError, match="no arm"):
        order.invoke_bytes(envelope(event={**CREATED, "schema": "unknown"}))


@given(st.binary(max_size=40))
@examples(200)
def test_any_bytes_are_answered_or_refused(raw: bytes) -> None:
    with pytest.raises((CodecError, DefinitionError)):
        order.invoke_bytes(raw)


@given(st.lists(st.sampled_from(["a", "b"]), max_size=3), st.integers(0, 10), st.integers(0, 2**60))
@examples(100)
def test_any_transition_is_the_same_again(words: list[str], sequence: int, now: int) -> None:
    busy = does(
        lambda state, event, ctx: Transition(
            state, events=[OrderPaid(str(ctx.uuid()))], effects=[charge(str(ctx.now()), 1), timer(after=ctx.sequence)]
        )
    )
    event = {"schema": next(iter(busy.arms)), "value": encode({"key": "a", "word": "w"}), "key": encode("a")}
    raw = envelope(state=encode({"words": words}), event=event, ctx=encode({"sequence": sequence, "now_ns": now}))
    assert busy.invoke_bytes(raw) == busy.invoke_bytes(raw)


def test_what_a_machine_emits_is_read_by_another() -> None:
    paid = invoked(order, state=ORDER, event=receipt())["domain_events"][0]
    assert decode(invoked(notes, event=paid)["state"]) == {"paid": ["o-1"]}
