"""A store that was written before the first release, in rows of another form, is refused with words that say so."""

from __future__ import annotations

import cbor2
import pytest

from workflow_sdk import Client, CodecError, Context, Driver, Runtime, open_driver, run_workflow, workflow
from workflow_sdk.driver import Batch
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.location import pack_segment

SAYS = "before its first release, whose rows had another form; begin with a new store"


@workflow
async def nothing(ctx: Context) -> None:
    """Do nothing."""


async def written_before(driver: Driver) -> None:
    """An instance as it was stored then, or the part of it that tells."""
    batch, keys = Batch(), InstanceKeys("i")
    fields: dict[int, list[object]] = {1: ["sleeping"], 4: ["nothing", 1, "", 2, 1.5], 5: [b"\xf6"], 6: [1.5, b"seed"]}
    for number, field in fields.items():
        key = keys.space + pack_segment(4) + pack_segment(number)
        batch.set(key, b"\x01" + cbor2.dumps(field, canonical=True))
    await driver.commit(batch)


@pytest.mark.leaves("rows of another form")
async def test_a_client_is_not_opened(driver: Driver) -> None:
    await written_before(driver)
    for _ in range(2):
        with pytest.raises(CodecError, match=SAYS):
            async with Client(driver):
                pass
    await driver.get(b"it is not ours to close")


@pytest.mark.leaves("rows of another form")
async def test_a_runtime_is_not_opened(driver: Driver) -> None:
    await written_before(driver)
    with pytest.raises(CodecError, match=SAYS):
        async with Runtime(driver, workflows=[nothing]):
            pass


@pytest.mark.leaves("rows of another form")
@pytest.mark.parametrize("id", ["i", "another"])
async def test_nothing_is_run(driver: Driver, id: str) -> None:
    await written_before(driver)
    with pytest.raises(CodecError, match=SAYS):
        await run_workflow(nothing, driver=driver, instance_id=id)


async def test_a_store_that_it_opened_is_closed(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    driver = await open_driver(url)
    await written_before(driver)
    await driver.aclose()
    client = Client(url)
    for _ in range(2):
        with pytest.raises(CodecError, match=SAYS):
            await client.__aenter__()
