"""Declaring machines, routes and manifests, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict
from uuid import UUID

import pytest

from tests.machines.shop import Do, Order, OrderCreated, OrderPaid, Say, State, charge, does, notes, order, ping, shop
from workflow_sdk import CodecError, DefinitionError
from workflow_sdk.machines import (
    EffectReceipt,
    EffectRejected,
    Machine,
    MachineContext,
    Manifest,
    Route,
    Transition,
    effect,
    event,
    machine,
    route,
)
from workflow_sdk.machines.stepping import event_data


def transition(state: Any, event: Any, ctx: MachineContext) -> Transition[Any]:
    """What most machines of this module do: nothing."""
    return Transition(state)


def made(name: str = "m@1", **options: Any) -> Machine[Any]:
    """A machine with these options."""
    given: dict[str, Any] = {"state": State, "event": Do, "effects": []}
    return machine(name, **{**given, **options})(transition)


# Machines.


def test_a_machine_is_called_as_it_was_written() -> None:
    ctx = MachineContext("o-1")
    assert order(None, OrderCreated("o-1", 5), ctx) == Transition(
        Order("o-1", "charging"), effects=[charge("o-1", 5).tagged("payments")]
    )
    assert order.__doc__ == "Charges, and is done when it is paid."
    assert "acme/order@1" in repr(order)


def test_the_version_is_what_the_name_ends_with_unless_it_is_given() -> None:
    assert made("a@7").version == 7
    assert made("a").version == 1
    assert made("a@7", version=3).version == 3
    assert made("a@x").version == 1


def test_the_arms_of_its_event_are_what_it_takes_from_outside() -> None:
    assert list(order.arms) == ["acme/OrderCreated@1"]
    assert (order.hears_receipts, order.hears_rejections) == (True, True)
    assert (notes.hears_receipts, notes.hears_rejections) == (False, False)
    assert made(event=EffectReceipt).arms == {}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"effects": None}, r"effects=\[\] if there are none"),
        ({"effects": charge}, "takes a list"),
        ({"effects": ["charge"]}, "what `effect` gives"),
        ({"effects": [ping, effect("ping")]}, "two effects named"),
        ({"version": 0}, "whole number"),
        ({"version": True}, "whole number"),
        ({"version": "1"}, "whole number"),
        ({"event": None}, "classes"),
        ({"event": list[Do]}, "classes"),
        ({"event": Any}, "classes"),
        ({"event": str}, "a class of its own"),
        ({"event": Do | None}, "a class of its own"),
        ({"event": Do | dict}, "a class of its own"),
        ({"retention": -1}, "retention"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
    ],
)
def test_machines_that_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        made(**options)


def test_a_machine_says_which_effects_it_asks_for() -> None:
    with pytest.raises(DefinitionError, match="says which effects it asks for"):
        machine("m@1", state=State, event=Do)
    assert made(effects=[]).effects == {}


def test_a_dict_is_no_event() -> None:
    class Told(TypedDict):
        a: int

    with pytest.raises(DefinitionError, match="a class of its own"):
        made(event=Told)


def test_two_events_of_a_machine_have_two_names() -> None:
    def one() -> Any:
        @event("x@1")
        @dataclass
        class Told:
            a: int

        return Told

    with pytest.raises(DefinitionError, match="the same name"):
        made(event=one() | one())


def test_a_machine_is_a_plain_function_of_three() -> None:
    async def waits(state: Any, event: Any, ctx: Any) -> Any: ...

    def yields(state: Any, event: Any, ctx: Any) -> Iterator[Any]:
        yield

    async def does_both(state: Any, event: Any, ctx: Any) -> AsyncIterator[Any]:
        yield

    def of_two(state: Any, event: Any) -> Any: ...

    class Callable:
        def __call__(self, state: Any, event: Any, ctx: Any) -> Any: ...

    declare = machine("m@1", state=State, event=Do, effects=[])
    refused: tuple[Any, ...] = (waits, yields, does_both, of_two, Callable(), None)
    for fn in refused:
        with pytest.raises(DefinitionError, match="machine 'm@1'"):
            declare(fn)


def test_keys_of_a_machine() -> None:
    keyed = made(key=int)
    data = keyed.key_bytes(5)
    assert keyed.key_of(data) == 5
    for key in ("5", None, 5.0, True):
        with pytest.raises(DefinitionError, match="the key"):
            keyed.key_bytes(key)
    assert made().key_bytes(None) is None
    with pytest.raises(DefinitionError, match="one cell, without a key"):
        made().key_bytes(5)


@pytest.mark.parametrize(
    ("hint", "keys"),
    [
        (str, ["a", "b", "01", "6161"]),
        (int, [1, 2, -1]),
        (UUID, [UUID(int=1), UUID(int=2)]),
        (str | int, ["01", 1, "6161", "aa"]),
        (bytes, [b"a", b"b"]),
        (tuple[str, int], [("a", 1), ("a", 2)]),
        (Any, ["01", 1, None, [1]]),
    ],
)
def test_every_key_has_a_cell_of_its_own(hint: Any, keys: list[Any]) -> None:
    keyed = made(key=hint)
    ids = [keyed.cell_id(keyed.key_bytes(key)) for key in keys]
    assert len(set(ids)) == len(ids)
    assert all(id.startswith("m@1/") for id in ids)


def test_the_cell_of_a_text_is_named_after_it() -> None:
    assert order.cell_id(order.key_bytes("o-1")) == "acme/order@1/o-1"
    assert notes.cell_id(None) == "acme/notes@1"


# Routes.


@dataclass(frozen=True)
class Inner:
    """Inside an event."""

    note_id: str


@dataclass(frozen=True)
class Wrapped:
    """With a key inside a field."""

    value: Inner
    other: Inner | None = None
    any: Any = None


@pytest.mark.parametrize("path", ["value.note_id", "$value.value.note_id", "any.x", "other.note_id"])
def test_the_key_of_an_event_may_be_inside_it(path: str) -> None:
    keyed = made(event=Wrapped, key=str)
    manifest = Manifest([keyed], [route(Wrapped, keyed, key_field=path)])
    sent = Wrapped(Inner("n-1"), Inner("n-1"), {"x": "n-1"})
    assert [target.key for target in manifest.targets(event_data(sent))] == [keyed.key_bytes("n-1")]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("other.note_id", Wrapped(Inner("n"))),
        ("any.x", Wrapped(Inner("n"), any={"y": "n"})),
        ("any.x", Wrapped(Inner("n"), any=[1])),
        ("any.x", Wrapped(Inner("n"), any={"x": 5})),
    ],
)
def test_an_event_without_a_key_is_refused(path: str, sent: Wrapped) -> None:
    keyed = made(event=Wrapped, key=str)
    manifest = Manifest([keyed], [route(Wrapped, keyed, key_field=path)])
    with pytest.raises(CodecError, match=path):
        manifest.targets(event_data(sent))


@pytest.mark.parametrize("path", [None, "", ".", "value.", ".note_id", "nothing", "value.nothing", "$value.nothing", 5])
def test_paths_to_keys_that_are_refused(path: Any) -> None:
    with pytest.raises(DefinitionError, match=r"the route of .*Wrapped"):
        route(Wrapped, made(event=Wrapped, key=str), key_field=path)


def test_routes_that_are_refused() -> None:
    keyed, single = made(key=str), made("single@1")
    refused: list[tuple[Any, ...]] = [
        (Do, single, "key"),  # there is one cell
        (Do, keyed),  # where is the key?
        (Say, keyed, "key"),  # it does not take it
        (EffectReceipt, keyed, "key"),
        (EffectRejected, keyed, "key"),
        (Do("a"), keyed, "key"),
        (Do, "m@1", "key"),
        (Do | Say, keyed, "key"),
    ]
    for given in refused:
        with pytest.raises(DefinitionError):
            route(*given)


def test_receipts_have_no_route_though_the_machine_hears_them() -> None:
    with pytest.raises(DefinitionError, match="without a route"):
        route(EffectReceipt, order, key_field="key")


def test_another_class_of_the_same_name_has_no_route() -> None:
    @event("acme/OrderCreated@1")
    @dataclass
    class Other:
        order_id: str

    with pytest.raises(DefinitionError, match="does not take it"):
        route(Other, order, key_field="order_id")


# Manifests.


def test_events_reach_all_that_they_are_routed_to_in_order() -> None:
    one, other, third = does(name="a@1"), does(name="b@1"), does(name="c@1", key=None)
    manifest = Manifest(
        [third, one, other],
        [
            route(Do, other, "key"),
            route(Say, one, "key"),
            route(Do, third),
            route(Do, one, "word"),
            route(Do, one, "key"),
        ],
    )
    assert [(to.machine, to.key) for to in manifest.targets(event_data(Do("k", "w")))] == [
        (other, other.key_bytes("k")),
        (third, None),
        (one, one.key_bytes("w")),
        (one, one.key_bytes("k")),
    ]
    assert manifest.targets(event_data(OrderPaid("o-1"))) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"machines": ["m"]}, "takes machines"),
        ({"machines": [made(), made()]}, "two machines are named"),
        ({"machines": [made("a"), made("a/b")]}, "can't be in one manifest"),
        ({"machines": [], "routes": [route(Do, made())]}, "not in the manifest"),
        ({"machines": [made()], "routes": [route(Do, made())]}, "not in the manifest"),
        ({"machines": [notes], "routes": [route(OrderPaid, notes)] * 2}, "twice"),
        ({"routes": ["x"]}, "takes routes"),
        ({"effects": ["x"]}, "takes effects"),
        ({"machines": [made(effects=[ping])], "effects": [effect("ping")]}, "two effects are named"),
    ],
)
def test_manifests_that_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        Manifest(**options)


def test_a_manifest_has_the_effects_of_its_machines_and_more() -> None:
    assert list(Manifest([order], effects=[ping]).effects) == ["ping", "payment/charge@1"]


def test_a_manifest_knows_every_type_of_event() -> None:
    assert set(shop.events) == {"acme/OrderCreated@1", "acme/OrderPaid@1"}


def test_the_hash_follows_what_is_declared_and_not_the_code() -> None:
    def other(state: Any, event: Any, ctx: MachineContext) -> Transition[Any]:
        return Transition(None)

    def hash_of(*, fn: Any = transition, path: str = "key", effects: Any = (), more: Any = (), **options: Any) -> str:
        given: dict[str, Any] = {"state": State, "event": Do | Say, "key": str}
        one = machine("m@1", **{**given, **options}, effects=effects)(fn)
        return Manifest([one], [route(Do, one, path)], more).hash

    plain = hash_of()
    assert hash_of(fn=other) == plain
    changed = [
        hash_of(path="word"),
        hash_of(effects=[ping]),
        hash_of(more=[ping]),
        hash_of(state=Order),
        hash_of(event=Do),
        hash_of(event=Do | Say | EffectReceipt),
        hash_of(event=Do | Say | EffectRejected),
        hash_of(version=2),
        hash_of(effects=[effect("ping", params=str)]),
        hash_of(effects=[effect("ping", receipt=str)]),
        hash_of(annotations=int),
    ]
    assert len({plain, *changed}) == 1 + len(changed)


def test_routes_compare_by_value() -> None:
    assert route(OrderPaid, notes) == Route(OrderPaid, notes)
    assert repr(shop).startswith("<manifest ")
