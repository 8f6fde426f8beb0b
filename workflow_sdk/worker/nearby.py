"""What clients in the process of a runtime need not go to the store for."""

from __future__ import annotations

from collections.abc import Callable

from workflow_sdk.client.access import Resident
from workflow_sdk.journal.inbox import INBOX_MAX_DEFAULT
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.worker.claiming import Claiming
from workflow_sdk.worker.residents import Residents


class Nearby:
    """The instances of the runtime in this process."""

    def __init__(self, residents: Residents, claiming: Claiming) -> None:
        self._residents = residents
        self._claiming = claiming
        residents.host.here = self
        self.answers: dict[bytes, Callable[[bytes], None]] = residents.host.answers
        """Who in this process waits for which answer, by its key."""
        self.inbox_max: int = INBOX_MAX_DEFAULT

    def resident(self, id: str) -> Resident | None:
        """The instance, if it is in memory."""
        run = self._residents.runs.get(id)
        return None if run is None else run.execution.messages

    def is_worker(self, worker: str) -> bool:
        """Whether that is the worker here."""
        return worker == self._claiming.worker

    def message_came(self, id: str) -> None:
        """A message was stored for an instance that the worker here has."""
        run = self._residents.runs.get(id)
        if run is not None:
            run.execution.parking.arrivals.signal(lease=False)
        else:
            self._claiming.missed(id)

    def is_due(self, id: str) -> None:
        """An instance was made due: the runtime looks for it at once."""
        self._claiming.look_for(id)

    async def until_ended(self, id: str) -> InstanceRows | None:
        """Wait for an instance in memory; return its rows if it ended, None if it is not in memory (any more)."""
        return await self._residents.until_ended(id)
