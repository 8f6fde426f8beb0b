"""Rows that name functions: whichever there are in this process, only those that were given are called."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import hostile
from tests.laws.fuzzing.instances import FLOWS, undo
from tests.runtime.parts import opened
from workflow_sdk import Batch, Status, run_workflow
from workflow_sdk.definitions import Step
from workflow_sdk.instance.loading import sequence_of
from workflow_sdk.journal.compensation import Compensation, HandlerRef
from workflow_sdk.operations.handlers import KnownHandlers
from workflow_sdk.rows.keys import COMPENSATIONS, InstanceKeys

pytestmark = pytest.mark.law(18)

FLOW = FLOWS["unwinds"]
KNOWN = KnownHandlers([FLOW])
HOME = FLOW.__module__


@cache
def loaded() -> tuple[str, ...]:
    """The names of everything that can be called in the modules of this process, as far as two names lead."""
    found: set[str] = {"planted:function", "this:s", "antigravity:fly"}
    for module_name, module in list(sys.modules.items()):
        if type(module) is not ModuleType:
            continue
        for name, value in list(vars(module).items()):
            found.add(f"{module_name}:{name}")
            if isinstance(value, (type, ModuleType)):
                found |= {f"{module_name}:{name}.{inner}" for inner in vars(value)}
    return tuple(sorted(found))


names = st.deferred(lambda: st.sampled_from(loaded())) | st.text() | st.text().map(lambda name: f"{HOME}:{name}")


@given(st.lists(names, min_size=1, max_size=20))
@examples(500)
def test_a_name_leads_to_a_step_or_a_function_of_the_module_of_a_workflow(chosen: list[str]) -> None:
    before = set(sys.modules)
    for name in chosen:
        found: Any = KNOWN.find(name)
        if found is not None:
            assert not isinstance(found, type)
            assert f"{found.__module__}:{found.__qualname__}" == name
            assert type(found) is Step or found.__module__ == HOME
    assert set(sys.modules) == before


def test_every_function_of_the_module_is_found() -> None:
    assert KNOWN.find(f"{HOME}:undo") is undo


@given(names, st.lists(hostile, max_size=2), st.dictionaries(st.text(max_size=3), hostile, max_size=2))
@examples(60)
def test_an_instance_whose_rows_name_anything_calls_nothing_else(
    name: str, args: list[bytes], kwargs: dict[str, bytes]
) -> None:
    ref = HandlerRef(name, tuple(args), tuple(kwargs.items()))

    async def go() -> None:
        async with opened("memory://") as driver:
            assert (await run_workflow(FLOW, driver=driver, instance_id="i")).status is Status.ROLLING_BACK
            keys, batch = InstanceKeys("i"), Batch()
            for key, raw in await driver.scan(*keys.range(COMPENSATIONS)):
                found = Compensation.unpack(sequence_of(keys, key), raw)
                batch.set(key, replace(found, handler=ref, retry_at=None).pack())
            await driver.commit(batch)
            result = await run_workflow(FLOW, driver=driver, instance_id="i")
            if KNOWN.find(name) is None:
                assert result.status is Status.STUCK
                assert result.error is not None
                assert result.error.kind == "consistency"

    anyio.run(go)
