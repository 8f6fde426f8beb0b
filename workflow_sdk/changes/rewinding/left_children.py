"""Children that a cancelled parent has left to themselves, and that it waits for again when it is restarted."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_bytes

from workflow_sdk.changes.change import Get, Steps
from workflow_sdk.changes.deliver import Letter, put
from workflow_sdk.changes.ending import ending_of
from workflow_sdk.changes.snapshot import find
from workflow_sdk.changes.trial import as_writes
from workflow_sdk.core.entries import ChildData, Entry, token_of
from workflow_sdk.core.keys import OUTSIDE, Field, InstanceKeys
from workflow_sdk.core.outside import Ending, Hanging
from workflow_sdk.driver import Batch

__all__ = ["Left", "find_left"]


@dataclass(frozen=True, slots=True)
class Left:
    """A child that nobody waits for any more, though it still tells the instance of its end."""

    hanging: Hanging
    token: bytes
    ending: Ending | None
    """How it ended, if it has."""
    at: float
    """When it was last written."""

    def wait_again(self, batch: Batch, keys: InstanceKeys, location: bytes) -> None:
        """Wait for the end of the child again; or take it as it is."""
        batch.set(keys.space + OUTSIDE + location, self.hanging.pack())
        if self.ending is not None:
            batch.writes += as_writes(put(keys, Letter(self.token, self.ending.pack()), self.at), token_bytes(16))


def find_left(keys: InstanceKeys, at: bytes, entry: Entry, data: ChildData) -> Steps[Left | None]:
    """The child that an instance waited for at a location, if it still is told of the end."""
    child = InstanceKeys(data.id)
    about = (yield from find(child)).about
    token = token_of(at, entry)
    # One that was to end with the wait has been told to: that it did so is no outcome.
    if data.cancels or not about or (keys.instance_id, token) not in about.watchers:
        return None
    # It changes when the child ends.
    yield Get(child.field(Field.HEAD))
    return Left(
        Hanging("child", data.id, data.cancels, entry.since),
        token,
        ending_of(about) if about.status.is_terminal else None,
        about.head.changed_at,
    )
