"""The active manifest: the first one of a store, and only those that are equal to it after that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machines.cell_parts import (
    Answer,
    Ask,
    Do,
    Say,
    ask,
    cell_or_none,
    host,
    manifest_of,
    told,
    until_cell,
    until_words,
)
from workflow_sdk import Client, Context, DefinitionError, Driver, Runtime, workflow
from workflow_sdk.machines import EffectReceipt, MachineContext, Manifest, Transition, effect, machine, route, timer

other_ask = effect("ask@1", params=Answer, receipt=Answer)
more = effect("more@1", params=Ask, receipt=Answer)


@machine("told@1", state=dict[str, int], event=Do, key=str, effects=[])
def another(state: Any, event: Do, ctx: MachineContext) -> Transition[Any]:
    """A machine of the same name, whose state is another."""
    return Transition({})


OTHERS: dict[str, Manifest] = {
    "another machine": manifest_of(told(), told(name="other@1")),
    "no machine": Manifest(),
    "another state": manifest_of(another),
    "another key": Manifest(machines=[told(key=int)]),
    "another event": manifest_of(told(event=Do | EffectReceipt)),
    "other effects": manifest_of(told(effects=[ask, timer, more])),
    "fewer effects": manifest_of(told(effects=[ask])),
    "other params of an effect": manifest_of(told(effects=[other_ask, timer])),
    "another version": manifest_of(told(version=2)),
    "fewer routes": Manifest(machines=[told()]),
    "another key field": Manifest(
        machines=[one := told()], routes=[route(Do, one, key_field="word"), route(Say, one, key_field="key")]
    ),
    "an effect of its own": manifest_of(told(), effects=[more]),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_a_runtime_with_another_manifest_is_refused_at_its_start(driver: Driver, name: str) -> None:
    one = told()
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "1"))
        await until_words(runtime, one, "a", "1")
        with pytest.raises(DefinitionError, match="manifest"):
            async with Runtime(driver, machines=OTHERS[name]):
                raise AssertionError("it has begun")
        await runtime.emit(Do("a", "2"))
        await until_words(runtime, one, "a", "1", "2")
    # It is refused when nobody is there, too.
    with pytest.raises(DefinitionError, match="manifest"):
        async with Runtime(driver, machines=OTHERS[name]):
            raise AssertionError("it has begun")
    async with host(driver, one) as runtime:
        await runtime.emit(Do("a", "3"))
        await until_words(runtime, one, "a", "1", "2", "3")


@pytest.mark.parametrize("name", OTHERS)
async def test_a_client_with_another_manifest_emits_nothing(driver: Driver, name: str) -> None:
    one = told()
    async with Client(driver, machines=manifest_of(one)) as client:
        await client.emit(Do("a", "1"))
    async with Client(driver, machines=OTHERS[name]) as other:
        with pytest.raises(DefinitionError, match="manifest"):
            await other.emit(Do("b", "1"))
    async with Client(driver, machines=manifest_of(one)) as client:
        assert await cell_or_none(client, one, "b") is None


async def test_an_equal_manifest_is_no_other(driver: Driver) -> None:
    """Made again, in another order of its arms, with other code."""

    def does_more(words: list[str], event: Any, ctx: MachineContext) -> Any:
        return ask("x") if isinstance(event, Do) else None

    one, other = told(event=Do | Say | EffectReceipt), told(does_more, event=EffectReceipt | Say | Do)
    first = Manifest(machines=[one], routes=[route(Do, one, "key"), route(Say, one, "key")])
    second = Manifest(machines=[other], routes=[route(Do, other, "key"), route(Say, other, "key")])
    assert first.hash == second.hash
    async with Runtime(driver, machines=first) as here, Runtime(driver, machines=second) as there:
        await here.emit(Say("a", "1"))
        await there.emit(Say("a", "2"))
        await until_words(here, one, "a", "1", "2")


def test_a_manifest_depends_on_what_it_declares_only() -> None:
    assert manifest_of(told()).hash == manifest_of(told()).hash
    assert len({found.hash for found in OTHERS.values()} | {manifest_of(told()).hash}) == len(OTHERS) + 1


async def test_a_runtime_without_machines_leaves_cells_to_others(driver: Driver) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        return "done"

    one = told()
    async with Runtime(driver, workflows=[flow]) as bare, Client(driver, machines=manifest_of(one)) as client:
        await client.emit(Do("a", "1"))
        assert await bare.run(flow, None) == "done"
        async with host(driver, one):
            await until_words(client, one, "a", "1")
        assert await bare.run(flow, None) == "done"


async def test_the_context_of_a_transition_is_the_same_whenever_it_is_taken_again(driver: Driver) -> None:
    seen: list[Any] = []

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        seen.append((ctx.key, ctx.machine, ctx.version, ctx.sequence, ctx.manifest_hash, ctx.now(), ctx.uuid(),
                     ctx.uuid(), ctx.random.random()))  # fmt: skip
        if len(seen) < 3:
            raise ValueError("again")

    one = told(notes)
    manifest = manifest_of(one)
    async with Client(driver, machines=manifest) as client:
        await client.emit(Do("a", "1"))
        (info,) = (await client.list(workflow=one)).items
        for _ in range(2):
            async with Runtime(driver, machines=manifest):
                await until_stuck(client, one)
                await client.handle(one, info.id).recover()
        async with Runtime(driver, machines=manifest):
            await until_words(client, one, "a", "1")
    assert len(seen) >= 3
    assert len({repr(one) for one in seen}) == 1, seen
    key, name, version, sequence, found, _, first, second, _ = seen[0]
    assert (key, name, version, sequence, found) == ("a", "told@1", 1, 0, manifest.hash)
    assert first != second


async def until_stuck(client: Client, one: Any) -> None:
    """Return once the cell is stuck."""
    await until_cell(client, one, "a", lambda cell: cell.status == "stuck")


async def test_chance_differs_between_cells_and_transitions(driver: Driver) -> None:
    seen: list[Any] = []

    def notes(words: list[str], event: Any, ctx: MachineContext) -> Any:
        seen.append(ctx.uuid())
        seen.append(ctx.random.random())

    left, right = told(notes, name="left@1"), told(notes, name="right@1")
    async with host(driver, left, right) as runtime:
        for word in "123":
            for key in "ab":
                await runtime.emit(Do(key, word))
        for one in (left, right):
            for key in "ab":
                await until_words(runtime, one, key, "1", "2", "3")
    assert len(set(seen)) == len(seen) == 24
