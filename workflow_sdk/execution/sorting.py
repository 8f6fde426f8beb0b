"""Mail that nobody can take: it is set aside, and the instance goes on waiting.

A message is set aside when a wait for it has refused it and no other open wait takes it. Where a run has listened to
the same message with several types, or has not come to all of its waits yet, that is decided only when every branch is
parked: the wait that the message is for may be about to open.
"""

from __future__ import annotations

import logging

import anyio

from workflow_sdk.changes.inboxes import set_aside
from workflow_sdk.core.answers import Answer, AnswerKind
from workflow_sdk.core.inbox import Fit, InboxMessage, SetAside
from workflow_sdk.execution.flushing import Staged
from workflow_sdk.execution.reaching import Reaching

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
        await self._put_aside(message, name, result, reason, task=id)
        if self.halted:
            await self.never()

    async def _put_aside(
        self, message: InboxMessage, name: str, payload: bytes, reason: str, task: str | None = None
    ) -> None:
        """Move a message from the inbox to what is set aside, in one commit with all that comes of it."""
        inbox = self.journal.inbox
        if not inbox.has(message):
            return  # it was set aside while another one was
        # From now on nobody else takes it.
        inbox.take(message)
        # It is in the inbox still, as far as there is a limit; which there was not for the result of a task.
        self.journal.taken -= not message.is_counted
        row = SetAside(name, payload, message.sent_at, self.codec.encode(reason))
        text = f"{self._what(name)} was set aside: {reason}"
        answer = None if message.reply_to is None else Answer(self.codec.encode(text), AnswerKind.UNFIT).pack()
        # Whoever waits here has to know that its row is gone because it is told otherwise.
        take = None if message.reply_to is None else self.host.answers.pop(message.reply_to, None)
        told: list[bool] = []

        def stored(is_aside: bool) -> None:
            # Called whoever is cancelled meanwhile: nobody would tell the one who has asked again.
            if is_aside:
                _log.warning("%s", text)
                if take is not None and answer is not None:
                    take(answer)
                told.append(True)

        change = set_aside(self.journal.keys, message, row, answer, task, self.now(), in_memory=take is not None)
        staged = Staged(change, lambda: not self.halted, stored, len(payload))
        self.flusher.stage(staged)
        try:
            await self.flusher.flush()
            while staged.has_moved_on:
                staged = Staged(change, lambda: not self.halted, stored, len(payload), retries=staged.retries + 1)
                self.flusher.stage(staged)
                await self.flusher.flush()
        finally:
            if take is not None and message.reply_to is not None and not told:
                self.host.answers[message.reply_to] = take
        if staged.outcome is not None and staged.outcome.error is not None:
            self.storage_failed(staged.outcome.error)

    def _what(self, name: str) -> str:
        return f"message {name!r} to {self.instance_id!r}"
