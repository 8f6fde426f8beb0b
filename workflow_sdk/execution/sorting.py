"""Mail that nobody can take: it is set aside, and the instance goes on waiting.

A message is set aside when a wait for it has refused it and no other open wait takes it. Where a run has listened to
the same message with several types, or has not come to all of its waits yet, that is decided only when every branch is
parked: the wait that the message is for may be about to open.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from msgspec.structs import replace

from workflow_sdk.core.answers import Answer, AnswerKind, is_answer
from workflow_sdk.core.entries import read_token
from workflow_sdk.core.inbox import Fit, InboxMessage, SetAside
from workflow_sdk.core.instance import WaitRow
from workflow_sdk.core.keys import ASIDE, INBOX, waits_of
from workflow_sdk.core.tasks import TaskEvent, TaskRow, TaskStatus, task_key
from workflow_sdk.driver import Batch
from workflow_sdk.execution.flushing import Part, PartState
from workflow_sdk.execution.reaching import Reaching
from workflow_sdk.execution.tasks import change_task

__all__ = ["Sorting"]

_log = logging.getLogger("workflow_sdk.execution")


class Sorting(Reaching):
    """The part of an execution that sets messages aside."""

    __slots__ = ()

    def will_listen(self, messages: tuple[str, ...], type: object) -> None:
        self._waits.will_listen(messages, type)

    async def set_aside(self, fit: Fit) -> bool:
        found = self._refused(fit, all_parked=True)
        for message, reason in found:
            await self._put_aside(message, str(message.name), message.payload, reason)
        if self.halted:
            await self.never()
        return bool(found)

    async def sort_mail(self) -> bool:
        if self._waits.refusing and await self._set_all_aside():
            return True
        names = self._waits.hungry(self.mail)
        if not names:
            return False
        try:
            await self.mail.read_on(names)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
        return True

    async def read_mail(self, messages: tuple[str | bytes, ...]) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.mail.read_on(messages)
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
        if self.halted:
            await self.never()

    def lacks_mail(self, messages: tuple[str | bytes, ...], found: list[InboxMessage], count: int) -> bool:
        return self.mail.lacks(messages, found, count)

    async def _set_all_aside(self) -> bool:
        any_found = False
        for wait in list(self._waits.refusing):
            assert wait.fit is not None, "it has refused something"
            for message, reason in self._refused(wait.fit, all_parked=self.active == 0):
                any_found = True
                await self._put_aside(message, str(message.name), message.payload, reason)
            if not wait.fit.refused:
                self._waits.refusing.pop(wait, None)
        return any_found

    def _refused(self, fit: Fit, *, all_parked: bool) -> list[tuple[InboxMessage, str]]:
        """What a wait has refused and nobody else takes, as far as that can be known now."""
        found: list[tuple[InboxMessage, str]] = []
        for message, reason in list(fit.refused.values()):
            if not self.journal.inbox.has(message):
                del fit.refused[message.id]
            elif message.only_for is not None:
                # Nobody else may take it.
                found.append((message, reason))
            elif not all_parked and (self.journal.loaded or self._waits.has_several_types(message.name)):
                continue
            elif not self._waits.others_take(message, fit):
                found.append((message, reason))
        return found

    async def reopen_task(self, id: str, name: str, message: InboxMessage, result: bytes, reason: str) -> None:
        async def reopen(batch: Batch) -> None:
            raw = await self.driver.get(task_key(id))
            if raw is None:
                return
            row = TaskRow.unpack(raw)
            batch.check(task_key(id), raw)
            if row.status is TaskStatus.COMPLETED:
                after = replace(row, status=TaskStatus.OPEN, by=None, ended_at=None, result=None)
                change_task(batch, row, after, TaskEvent("reopened", None, self.now()))

        await self._put_aside(message, name, result, reason, reopen)
        if self.halted:
            await self.never()

    async def _put_aside(
        self,
        message: InboxMessage,
        name: str,
        payload: bytes,
        reason: str,
        more: Callable[[Batch], Awaitable[None]] | None = None,
    ) -> None:
        """Move a message from the inbox to what is set aside, in one commit with all that comes of it."""
        inbox = self.journal.inbox
        if not inbox.has(message):
            return  # it was set aside while another one was
        # From now on nobody else takes it.
        inbox.take(message)
        # It is in the inbox still, as far as there is a limit; which there was not for the result of a task.
        self.journal.taken -= not message.is_counted
        space = self.journal.keys.space
        row = SetAside(name, payload, message.sent_at, self.codec.encode(reason)).pack()
        while not self.halted:
            batch = Batch()
            batch.check(space + INBOX + message.id, message.pack())
            batch.clear(space + INBOX + message.id)
            batch.set(space + ASIDE + message.id, row)
            try:
                if more is not None:
                    await more(batch)
                await self._promise_less(batch, message)
                tell = await self._tell_asker(batch, message, f"{self._what(name)} was set aside: {reason}")
            except Exception as error:  # noqa: BLE001  # the store failed
                self.storage_failed(error)
                return
            part = Part(f"message {message.id.hex()}", batch, _nothing, _done, lambda: not self.halted, len(payload))
            self.flusher.stage(part)
            await self.flusher.flush()
            tell(part.state is PartState.STORED)
            if part.state is PartState.STORED:
                _log.warning("%s was set aside: %s", self._what(name), reason)
                return
            if part.state is PartState.MOVED_ON and await self._is_gone(message):
                return

    def _what(self, name: str) -> str:
        return f"message {name!r} to {self.instance_id!r}"

    async def _is_gone(self, message: InboxMessage) -> bool:
        """Whether somebody has discarded the message meanwhile."""
        try:
            return await self.driver.get(self.journal.keys.space + INBOX + message.id) is None
        except Exception as error:  # noqa: BLE001  # the store failed
            self.storage_failed(error)
            return True

    async def _promise_less(self, batch: Batch, message: InboxMessage) -> None:
        """The wait that the message was addressed to may be sent another one."""
        if message.only_for is None:
            return
        _, location = read_token(message.only_for)
        key = self.journal.keys.space + waits_of(message.name) + location
        raw = await self.driver.get(key)
        if raw is not None:
            row = WaitRow.unpack(raw)
            batch.check(key, raw)
            batch.set(key, replace(row, promised=max(0, row.promised - 1)).pack())

    async def _tell_asker(self, batch: Batch, message: InboxMessage, text: str) -> Callable[[bool], None]:
        """Have the one who asked get an error. What is returned is to be told whether that is stored."""
        key = message.reply_to
        if key is None:
            return _nobody_here
        raw = Answer(self.codec.encode(text), AnswerKind.UNFIT).pack()
        # Whoever waits here has to know that its row is gone because it is told otherwise.
        take = self.host.answers.pop(key, None)
        if take is None:
            asked = await self.driver.get(key)
            if asked is not None and not is_answer(asked):
                batch.check(key, asked)
                batch.set(key, raw)
            return _nobody_here
        batch.clear(key)

        def hand_over(stored: bool) -> None:
            if stored:
                take(raw)
            else:
                self.host.answers[key] = take

        return hand_over


def _nothing(version: int) -> list[tuple[bytes, bytes]]:
    return []


def _done() -> None:
    pass


def _nobody_here(stored: bool) -> None:
    pass
