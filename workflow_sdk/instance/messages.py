"""The messages of one run: reading them, and setting aside those that no wait can take.

A message is set aside when a wait has refused it, since its payload does not fit, and no other open wait takes it. If
the run has listened to the same message with several types, or has not come to all of its waits yet, this is decided
only when every branch is parked: until then, the wait that the message is for may be about to open.
"""

from __future__ import annotations

import logging

import anyio

from workflow_sdk.changes.inboxes import set_aside
from workflow_sdk.instance.inbox_reader import InboxReader
from workflow_sdk.instance.session import Session
from workflow_sdk.instance.staging import Staged
from workflow_sdk.instance.waits import Waits
from workflow_sdk.journal.inbox import Answer, AnswerKind, Fit, InboxMessage, SetAside, counted
from workflow_sdk.rows.instance import CountRow
from workflow_sdk.rows.keys import Field

_log = logging.getLogger("workflow_sdk.execution")


TYPES_MAX = 256
"""For how many messages their types are remembered. The oldest are forgotten first."""
SEVERAL = object()

_NO_TYPES: dict[str, object] = {}
"""Shared by all, and never written to."""


class RunMessages:
    """Reads and sets aside messages for one run. A failure of the store is not raised: it ends the run."""

    __slots__ = ("_session", "_types", "reader", "waits")

    def __init__(self, session: Session, reader: InboxReader, waits: Waits) -> None:
        self._session = session
        self._types: dict[str, object] = _NO_TYPES
        """The type with which this run has lately listened to a message, by name. SEVERAL if there were several: then a
        message that one wait refuses may fit another."""
        self.reader: InboxReader = reader
        self.waits: Waits = waits

    # For senders in this process.

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to the instance in this process; None if none was, or nobody knows."""
        return self._session.journal.about.handed

    @handed.setter
    def handed(self, count: int | None) -> None:
        self._session.journal.about.set(Field.HANDED, None if count is None else CountRow(count))

    @property
    def message_count(self) -> int:
        """How many messages the instance has not taken, as far as this process knows."""
        sent = sum(map(counted, self.reader.sent.values())) + (self.handed or 0)
        return max(0, sent - self._session.journal.unwritten.taken)

    @property
    def lease(self) -> bytes:
        """The packed lease under which the instance is run."""
        return self._session.lease

    def awaits(self, message: str | bytes) -> bool:
        """Whether a branch waits for the message."""
        return self.waits.awaits(message)

    # Reading.

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """Note that a branch begins to listen to messages, and takes those that fit this type."""
        if self._types is _NO_TYPES:
            self._types = {}
        types = self._types
        for name in messages:
            if name not in types:
                while len(types) >= TYPES_MAX:
                    del types[next(iter(types))]
                types[name] = type
            elif not _same(types[name], type):
                types[name] = SEVERAL

    def lacks(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        """Whether the store may have messages that are to be taken before those found, or together with them."""
        return self.reader.lacks(messages, found, count)

    async def read_on(self, messages: tuple[str | bytes, ...]) -> None:
        """Read some more of the messages with these names."""
        try:
            with anyio.CancelScope(shield=True):
                await self.reader.read_on(messages)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)

    async def refresh(self) -> None:
        """Read the messages that the store has by now."""
        try:
            with anyio.CancelScope(shield=True):
                await self.reader.refresh(with_lease=True)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)

    async def read_all(self, *, with_lease: bool = True) -> None:
        """Like `refresh`, without a shield. `with_lease`: also read the lease and a request to evict."""
        try:
            await self.reader.refresh(with_lease=with_lease)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)

    async def watch(self) -> bool:
        """Return once a message may have come; False if the store failed."""
        try:
            await self.reader.watch()
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
            return False
        return True

    # Sorting.

    async def sort(self) -> bool:
        """Set aside messages that no wait can take, or read more; return whether there was anything to do."""
        if self.waits.refusing and await self._set_all_aside():
            return True
        names = self.waits.waiting_in_vain(self.reader)
        if not names:
            return False
        try:
            await self.reader.read_on(names)
        except Exception as error:  # noqa: BLE001  # the store failed
            self._session.life.storage_failed(error)
        return True

    async def set_aside(self, fit: Fit) -> bool:
        """Set aside messages that a wait has refused and no other wait takes; return whether there were any."""
        found = self._refused(fit, all_parked=True)
        for message, reason in found:
            await self._put_aside(message, str(message.name), message.payload, reason)
        return bool(found)

    async def _set_all_aside(self) -> bool:
        any_found = False
        for wait in list(self.waits.refusing):
            assert wait.fit is not None, "it has refused something"
            for message, reason in self._refused(wait.fit, all_parked=self.waits.active == 0):
                any_found = True
                await self._put_aside(message, str(message.name), message.payload, reason)
            if not wait.fit.refused:
                self.waits.refusing.pop(wait, None)
        return any_found

    def _refused(self, fit: Fit, *, all_parked: bool) -> list[tuple[InboxMessage, str]]:
        """The messages that a wait has refused and no other wait takes, as far as that is known now."""
        found: list[tuple[InboxMessage, str]] = []
        for message, reason in list(fit.refused.values()):
            if not self._session.journal.inbox.has(message):
                del fit.refused[message.id]
            elif message.only_for is not None:
                # Addressed to this wait: no other one may take it.
                found.append((message, reason))
            elif not all_parked and self._may_be_awaited(message):
                continue
            elif not self.waits.others_take(message, fit):
                found.append((message, reason))
        return found

    def _may_be_awaited(self, message: InboxMessage) -> bool:
        """Whether an active branch may be about to wait for a message that another wait has refused."""
        if self._session.journal.history.loaded or self.waits.unbegun:
            return True
        return self._types.get(str(message.name)) is SEVERAL

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        """Set aside the result of a task, which does not fit its wait, and open the task again."""
        await self._put_aside(message, name, result, reason, task=id)

    async def _put_aside(
        self, message: InboxMessage, name: str, payload: bytes, reason: str, task: str | None = None
    ) -> None:
        """Set a message of the inbox aside, and answer its sender, in one commit."""
        inbox, answers = self._session.journal.inbox, self._session.host.answers
        if not inbox.has(message):
            return  # it was set aside while another one was
        # Removed from memory before the first `await`, so that no other branch takes it.
        inbox.take(message)
        # A message that is set aside still counts against the limit of the inbox. The result of a task was never
        # counted, and is from now on.
        self._session.journal.unwritten.taken -= not message.is_counted
        row = SetAside(name, payload, message.sent_at, self._session.codec.encode(reason))
        text = f"message {name!r} to {self._session.journal.keys.instance_id!r} was set aside: {reason}"
        answer = None if message.reply_to is None else Answer(self._session.codec.encode(text), AnswerKind.UNFIT).pack()
        # A sender in this process is told in memory. Its callback is removed now, so that it does not take the
        # clearing of its row for a lost answer.
        take = None if message.reply_to is None else answers.pop(message.reply_to, None)
        told: list[bool] = []

        def stored(is_aside: bool) -> None:
            # Called even if this branch is cancelled meanwhile: nobody else would tell the sender.
            if is_aside:
                _log.warning("%s", text)
                if take is not None and answer is not None:
                    take(answer)
                told.append(True)

        change = set_aside(
            self._session.journal.keys,
            message,
            row,
            answer,
            task,
            self._session.clock.time(),
            in_memory=take is not None,
        )
        staged = Staged(change, lambda: not self._session.life.halted, stored, len(payload))
        try:
            await self._session.flusher.make(staged)
        finally:
            if take is not None and message.reply_to is not None and not told:
                answers[message.reply_to] = take
        if staged.outcome is not None and staged.outcome.error is not None:
            self._session.life.storage_failed(staged.outcome.error)


def _same(one: object, other: object) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001  # what an author has put into an annotation may answer anything
        return False
