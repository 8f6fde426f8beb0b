"""Asking an instance, and waiting for its answer.

The question and a row for the answer are one commit. The answer takes the place of that row, in the commit that records
that it was given; if the one who asks is in the same process, it is handed over in memory, and the row is gone. Whoever
gives up takes the row away, and an answer that finds none goes nowhere.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

import anyio

from workflow_sdk.changes.answers import go_on_waiting
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import clear
from workflow_sdk.changes.deliver import Delivery, Letter
from workflow_sdk.changes.snapshot import read_about
from workflow_sdk.core.answers import Answer, AnswerKind, is_answer
from workflow_sdk.core.keys import Field, InstanceKeys, answer_key
from workflow_sdk.errors import CodecError, InstanceStateError, WorkflowSDKError
from workflow_sdk.runtime.access import Access
from workflow_sdk.runtime.delivery import deliver

__all__ = ["ask"]

ALIVE_SECONDS = 600.0
"""Who waits says so this often: what nobody waits for is forgotten, see `runtime.answers`."""
HERE_SECONDS = 1.0
"""An answer from an instance in the memory here is awaited for so long before the store is watched for it, too."""


async def ask(access: Access, instance_id: str, message: str, payload: bytes) -> bytes:
    """The answer of an instance, encoded."""
    question = _Question(access, instance_id, message)
    try:
        return await question.ask(Letter(message, payload, reply_to=question.key))
    except BaseException:
        await question.give_up()
        raise


class _Question:
    def __init__(self, access: Access, instance_id: str, message: str) -> None:
        self._access = access
        self._id = instance_id
        self._message = message
        self.key: bytes = answer_key(instance_id, uuid4().hex)
        self._row = b""
        """What its row holds, as long as there is no answer."""
        self._is_forgotten = False
        self._answered = anyio.Event()
        self._answer: Answer | None = None
        self._is_asked = False

    async def ask(self, letter: Letter) -> bytes:
        access, here = self._access, self._access.here
        if here is not None:
            here.answers[self.key] = self._take
        self._is_asked = True
        delivery = await deliver(access.driver, self._id, letter, access.clock.time(), here)
        if delivery is Delivery.CLOSED:
            self._is_asked = False
            raise self._ended()
        if here is not None and here.resident(self._id) is not None:
            with anyio.move_on_after(HERE_SECONDS):
                await self._answered.wait()
        if self._answer is None:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_for_answer)
                group.start_soon(self._watch_for_end)
                await self._answered.wait()
                group.cancel_scope.cancel()
        if here is not None:
            here.answers.pop(self.key, None)
        if self._answer is None and self._is_forgotten:
            raise InstanceStateError(
                f"the question {self._message!r} to {self._id!r} was forgotten, since nothing was heard of who asked"
            )
        if self._answer is None:
            raise self._ended()
        if self._answer.kind is not AnswerKind.ANSWERED:
            text = str(access.codec.decode(self._answer.value, str))
            raise (CodecError if self._answer.kind is AnswerKind.UNFIT else InstanceStateError)(text)
        return self._answer.value

    def _ended(self) -> InstanceStateError:
        return InstanceStateError(f"instance {self._id!r} has ended, and answers no {self._message!r} any more")

    def _take(self, answer: bytes) -> None:
        self._answer = Answer.unpack(answer)
        self._answered.set()

    async def _watch_for_answer(self) -> None:
        driver, here = self._access.driver, self._access.here
        while True:
            with anyio.move_on_after(ALIVE_SECONDS):
                await driver.changed(self.key, self._row)
            raw = await driver.get(self.key)
            if raw is None:
                # It is handed over here, or was forgotten with the instance; or only the answer was.
                if (here is None or self.key in here.answers) and not await self._has_ended():
                    self._is_forgotten = True
                    self._answered.set()
                return
            if is_answer(raw):
                # Known before the row is gone: that the instance has ended does not matter any more.
                self._answer = Answer.unpack(raw)
                await apply(driver, clear([self.key]))
                self._answered.set()
                return
            row = await apply(driver, go_on_waiting(self.key))
            # If it is answered just now, it is not what it was.
            self._row = self._row if row is None else row

    async def _watch_for_end(self) -> None:
        driver, keys = self._access.driver, InstanceKeys(self._id)
        while True:
            about = await read_about(driver, keys)
            if not about or about.status.is_terminal:
                break
            await driver.changed(keys.field(Field.HEAD), about.raw[Field.HEAD])
        # What it said before it ended counts. Without a row, it was to be handed over here, and never will be.
        if not is_answer(await driver.get(self.key)) and self._answer is None:
            await self.give_up()
            self._answered.set()

    async def _has_ended(self) -> bool:
        about = await read_about(self._access.driver, InstanceKeys(self._id))
        return not about or about.status.is_terminal

    async def give_up(self) -> None:
        """Nobody waits for an answer any more."""
        if self._access.here is not None:
            self._access.here.answers.pop(self.key, None)
        if not self._is_asked:
            return
        self._is_asked = False
        with anyio.CancelScope(shield=True), suppress(WorkflowSDKError, OSError):
            await apply(self._access.driver, clear([self.key]))
