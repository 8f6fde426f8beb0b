"""The messages of one run: reading them, and setting aside what no wait can take.

A message is set aside when a wait for it has refused it and no other open wait takes it. Where a run has listened to
the same message with several types, or has not come to all of its waits yet, that is decided only when every branch is
parked: the wait that the message is for may be about to open.
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
"""The types of so many messages are known, those that were listened to first are forgotten."""
SEVERAL = object()

_NO_TYPES: dict[str, object] = {}
"""Shared by all, and never written to."""


class RunMessages:
    """Of one run. A failure of the store ends the run: whoever waited for messages sees that it has halted."""

    __slots__ = ("_session", "_types", "reader", "waits")

    def __init__(self, session: Session, reader: InboxReader, waits: Waits) -> None:
        self._session = session
        self._types: dict[str, object] = _NO_TYPES
        """The types of the messages that this run has listened to lately, by name; SEVERAL if they were several: to
        refuse a message says little then."""
        self.reader: InboxReader = reader
        self.waits: Waits = waits

    # As those know it who send in this process.

    @property
    def handed(self) -> int | None:
        """How many messages were handed over to it in this process; None if they are not counted there."""
        return self._session.journal.about.handed

    @handed.setter
    def handed(self, count: int | None) -> None:
        self._session.journal.about.set(Field.HANDED, None if count is None else CountRow(count))

    @property
    def message_count(self) -> int:
        """How many messages it has not taken, as far as is known here."""
        sent = sum(map(counted, self.reader.sent.values())) + (self.handed or 0)
        return max(0, sent - self._session.journal.unwritten.taken)

    @property
    def lease(self) -> bytes:
        """Under which the instance is run."""
        return self._session.lease

    def awaits(self, message: str | bytes) -> bool:
        """Whether a branch waits for the message."""
        return self.waits.awaits(message)

    # Reading.

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        """A branch begins to listen to messages, and takes those that are of this type."""
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
        """Whether the store may have messages that are to be taken instead of those found, or with them."""
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
        """The same, for the engine itself. `with_lease`: also read who has the instance, and what it was asked for."""
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
        """Set aside what no wait can take, or read on what was passed over; whether there was anything to do."""
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
        """Set aside what a wait has refused and no other wait takes; whether there was any."""
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
        """What a wait has refused and nobody else takes, as far as that can be known now."""
        found: list[tuple[InboxMessage, str]] = []
        for message, reason in list(fit.refused.values()):
            if not self._session.journal.inbox.has(message):
                del fit.refused[message.id]
            elif message.only_for is not None:
                # Nobody else may take it.
                found.append((message, reason))
            elif not all_parked and self._may_be_awaited(message):
                continue
            elif not self.waits.others_take(message, fit):
                found.append((message, reason))
        return found

    def _may_be_awaited(self, message: InboxMessage) -> bool:
        """Whether a branch that runs may be about to wait for a message that others have refused."""
        if self._session.journal.history.loaded or self.waits.unbegun:
            return True
        return self._types.get(str(message.name)) is SEVERAL

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        """Set the result of a task aside, which is not what was asked for; the task is open again."""
        await self._put_aside(message, name, result, reason, task=id)

    async def _put_aside(
        self, message: InboxMessage, name: str, payload: bytes, reason: str, task: str | None = None
    ) -> None:
        """Move a message from the inbox to what is set aside, in one commit with all that comes of it."""
        inbox, answers = self._session.journal.inbox, self._session.host.answers
        if not inbox.has(message):
            return  # it was set aside while another one was
        # From now on nobody else takes it.
        inbox.take(message)
        # It is in the inbox still, as far as there is a limit; which there was not for the result of a task.
        self._session.journal.unwritten.taken -= not message.is_counted
        row = SetAside(name, payload, message.sent_at, self._session.codec.encode(reason))
        text = f"message {name!r} to {self._session.journal.keys.instance_id!r} was set aside: {reason}"
        answer = None if message.reply_to is None else Answer(self._session.codec.encode(text), AnswerKind.UNFIT).pack()
        # Whoever waits here has to know that its row is gone because it is told otherwise.
        take = None if message.reply_to is None else answers.pop(message.reply_to, None)
        told: list[bool] = []

        def stored(is_aside: bool) -> None:
            # Called whoever is cancelled meanwhile: nobody would tell the one who has asked again.
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
