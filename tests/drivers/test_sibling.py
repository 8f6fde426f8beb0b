"""A driver that comes with us can be opened once more, in a thread of its own, while its event loop is blocked."""

from __future__ import annotations

from threading import Thread

import anyio
import pytest

from tests.patience import PATIENCE
from workflow_sdk import Batch, Driver
from workflow_sdk.driver import sibling_of
from workflow_sdk.errors import StorageError

KEY, VALUE = b"key", b"value"


async def test_a_sibling_writes_while_the_loop_is_blocked(driver: Driver) -> None:
    opener = sibling_of(driver)
    assert opener is not None
    seen: list[bytes | None] = []
    batch = Batch()
    batch.set(KEY, b"before")
    await driver.commit(batch)

    async def write() -> None:
        sibling = await opener.sibling()
        seen.append(await sibling.get(KEY))
        batch = Batch()
        batch.check(KEY, b"before")
        batch.set(KEY, VALUE)
        await sibling.commit(batch)
        await sibling.aclose()

    thread = Thread(target=lambda: anyio.run(write), daemon=True)
    thread.start()
    thread.join(PATIENCE)  # and this loop stands still
    assert not thread.is_alive()
    assert seen == [b"before"]
    with anyio.fail_after(PATIENCE):
        await driver.changed(KEY, b"before")
    assert await driver.get(KEY) == VALUE


async def test_a_closed_driver_has_no_sibling(driver: Driver) -> None:
    opener = sibling_of(driver)
    assert opener is not None
    sibling = await opener.sibling()
    await sibling.aclose()
    assert await driver.get(KEY) is None, "it is left open"
    await driver.aclose()
    with pytest.raises(StorageError):
        await opener.sibling()
