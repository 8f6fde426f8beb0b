"""Reading, while an instance is run, what of its history was not loaded with it."""

from __future__ import annotations

from workflow_sdk.instance.loading import HistoryCursor, load_history, read_branches, read_page
from workflow_sdk.instance.parking import RunParking
from workflow_sdk.instance.session import Session
from workflow_sdk.rows.entries import Entry
from workflow_sdk.rows.keys import HISTORY


class StoredHistory:
    """What of the history of one instance is in the store and not in memory. If it can't be read, the run ends."""

    __slots__ = ("_parking", "_session")

    def __init__(self, session: Session, parking: RunParking) -> None:
        self._session = session
        self._parking = parking

    async def branch_values(self, location: bytes) -> dict[bytes, Entry]:
        """The entries of the branches of a join, race or map, read from the store."""
        try:
            return await read_branches(self._session.driver, self._session.journal.keys, location)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()

    async def read(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The rows of the instance's own space whose keys begin with `part`, by what follows it."""
        begin = self._session.journal.keys.space + part
        try:
            rows = await self._session.driver.scan(begin, begin + b"\xff")
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()
        return [(key[len(begin) :], raw) for key, raw in rows]

    async def shared(self, key: bytes) -> bytes | None:
        """A row that all instances share."""
        try:
            return await self._session.driver.get(key)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()

    async def load_under(self, location: bytes) -> None:
        """Load what is recorded under a location, which was passed over when the instance was loaded."""
        try:
            await load_history(self._session.driver, HistoryCursor(self._session.journal, HISTORY, location))
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            await self._session.life.never()

    async def archive(self, location: bytes) -> None:
        """Copy the history under a location into the archive before it is cleared: handlers may be found in it."""
        after: bytes | None = b""
        while after is not None:
            # Each page is a commit of its own. A crash in between does no harm: the copies are made again.
            await self._parking.flush()
            try:
                rows, after = await read_page(self._session.driver, self._session.journal.keys, location, after)
            except Exception as error:  # noqa: BLE001  # the store failed
                self._session.life.storage_failed(error)
                await self._session.life.never()
            self._session.journal.history.keep_in_archive(rows)
