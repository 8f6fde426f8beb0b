"""What a client learns from the runtime in its own process, without asking the store."""

from __future__ import annotations

from collections.abc import Callable

from workflow_sdk.client.access import Resident
from workflow_sdk.journal.inbox import INBOX_MAX_DEFAULT
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.worker.claiming import Claiming
from workflow_sdk.worker.residents import Residents


class Nearby:
    """Tells clients about the instances of the runtime in this process, and the runtime about what clients stored."""

    def __init__(self, residents: Residents, claiming: Claiming) -> None:
        self._residents = residents
        self._claiming = claiming
        residents.host.here = self
        self.answers: dict[bytes, Callable[[bytes], None]] = residents.host.answers
        """The callbacks of those in this process who wait for an answer, by the key of the answer."""
        self.inbox_max: int = INBOX_MAX_DEFAULT

    def resident(self, id: str) -> Resident | None:
        """The instance, if it is in memory."""
        run = self._residents.runs.get(id)
        return None if run is None else run.messages

    def is_worker(self, worker: str) -> bool:
        """Whether this is the id of the worker in this process."""
        return worker == self._claiming.worker

    def message_came(self, id: str) -> None:
        """Pass on that a message was stored for an instance that the worker in this process has."""
        run = self._residents.runs.get(id)
        if run is not None:
            run.look(lease=False)
        else:
            self._claiming.missed(id)

    def is_due(self, id: str) -> None:
        """Have the runtime look at once for an instance that was made due."""
        self._claiming.look_for(id)

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance in memory; return its rows if it ended, None if it is not in memory or left it."""
        return await self._residents.until_ended(id)
