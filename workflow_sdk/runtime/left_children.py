"""Children that a cancelled parent has left to themselves, and that it waits for again when it is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_sdk.core.entries import ChildData, Entry, token_of
from workflow_sdk.core.keys import OUTSIDE, Field, InstanceKeys
from workflow_sdk.core.outside import Ending, Hanging
from workflow_sdk.driver import Batch, Driver
from workflow_sdk.execution.ending import ending_of
from workflow_sdk.execution.posting import Letter, put
from workflow_sdk.execution.snapshot import read_about

__all__ = ["Left", "find_left"]


@dataclass(frozen=True, slots=True)
class Left:
    """A child that nobody waits for any more, though it still tells the instance of its end."""

    hanging: Hanging
    token: bytes
    standing: tuple[bytes, bytes]
    """A row of the child that changes when it ends."""
    ending: Ending | None
    """How it ended, if it has."""
    at: float
    """When it was last written."""

    def wait_again(self, batch: Batch, keys: InstanceKeys, location: bytes) -> None:
        """Wait for the end of the child again; or take it as it is."""
        batch.set(keys.space + OUTSIDE + location, self.hanging.pack())
        batch.check(*self.standing)
        if self.ending is not None:
            put(batch, keys, Letter(self.token, self.ending.pack()), self.at)


async def find_left(driver: Driver, keys: InstanceKeys, at: bytes, entry: Entry, data: ChildData) -> Left | None:
    """The child that an instance waited for at a location, if it still is told of the end."""
    child = InstanceKeys(data.id)
    about = await read_about(driver, child)
    token = token_of(at, entry)
    # One that was to end with the wait has been told to: that it did so is no outcome.
    if data.cancels or not about or (keys.instance_id, token) not in about.watchers:
        return None
    return Left(
        Hanging("child", data.id, data.cancels, entry.since),
        token,
        (child.field(Field.HEAD), about.raw[Field.HEAD]),
        ending_of(about) if about.status.is_terminal else None,
        about.head.changed_at,
    )
