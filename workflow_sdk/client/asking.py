"""Sending messages to an instance, and waiting for the answer to one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import anyio

from workflow_sdk.changes import deliver as changes
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import clear
from workflow_sdk.changes.deliver import Delivery, NewMessage, Posted, check_room, go_on_waiting
from workflow_sdk.changes.instances import Snapshot, read_about
from workflow_sdk.client.access import Access, Here, Resident
from workflow_sdk.driver import Driver
from workflow_sdk.errors import CodecError, DefinitionError, InstanceStateError, WorkflowSDKError
from workflow_sdk.instance.clock import TimeSource, overseen
from workflow_sdk.journal.inbox import Answer, AnswerKind, counted, is_answer
from workflow_sdk.journal.names import name_problem
from workflow_sdk.rows.keys import Field, InstanceKeys, answer_key
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec, Wrappers

__all__ = ["Delivery", "NewMessage", "ask", "deliver", "encode_payload", "send_message"]


async def send_message(
    driver: Driver,
    instance_id: str,
    message: str,
    payload: object = None,
    *,
    clock: TimeSource | None = None,
    codec: Wrappers | None = None,
) -> Delivery:
    """Put a message into the inbox of an instance, and have its worker look at the inbox, in one commit."""
    new = NewMessage(message, encode_payload(Codec(wrapper=codec), instance_id, message, payload))
    if clock is None:
        return await deliver(driver, instance_id, new, time.time())
    return await deliver(overseen(driver, clock), instance_id, new, clock.time())


def encode_payload(codec: Codec, instance_id: str, message: str, payload: object) -> bytes:
    """Encode the payload of a message; the error names the message."""
    if (problem := name_problem(message)) is not None:
        raise DefinitionError(f"a message can't be called {shown(message)}: {problem}")
    try:
        return codec.encode(payload)
    except CodecError as error:
        raise type(error)(f"the payload of message {message!r} to {instance_id!r}: {error}") from None


async def deliver(driver: Driver, instance_id: str, new: NewMessage, now: float, here: Here | None = None) -> Delivery:
    """Deliver a message to an instance. If the runtime `here` has the instance, it is told in memory."""
    keys = InstanceKeys(instance_id)
    if here is None:
        return (await apply(driver, changes.deliver(keys, new, now))).delivery
    if (there := here.resident(instance_id)) is not None:
        try:
            done = await _hand_over(driver, keys, new, now, there, here.inbox_max)
        except BaseException:
            here.message_came(instance_id)  # the message may be stored even so
            raise
        if done is not None:
            here.message_came(instance_id)
            return done

    posted = await apply(driver, changes.deliver(keys, new, now, here.is_worker), _teller(here, instance_id))
    if posted.count is not None and (there := here.resident(instance_id)) is not None:
        there.reader.sent.update([posted.count])
    return posted.delivery


async def deliver_after(access: Access, seen: Snapshot, new: NewMessage) -> Delivery | None:
    """Deliver a message to an instance that nobody has and that is still as it was seen; None if it is not."""
    here, now = access.here, access.clock.time()
    if here is None:
        posted = await apply(access.driver, changes.deliver_after(seen.keys, new, now, seen))
    else:
        deciding = changes.deliver_after(seen.keys, new, now, seen, here.is_worker)
        posted = await apply(access.driver, deciding, _teller(here, seen.keys.instance_id))
    return None if posted is None else posted.delivery


def _teller(here: Here, instance_id: str) -> Callable[[Posted | None], None]:
    """What tells the runtime in this process of a message that was delivered."""

    def tell(posted: Posted | None) -> None:
        # Also called if nobody knows whether the commit was applied: to look once too often does no harm.
        if posted is None or posted.worker is None or not here.is_worker(posted.worker):
            here.is_due(instance_id)
        else:
            here.message_came(instance_id)

    return tell


async def _hand_over(
    driver: Driver, keys: InstanceKeys, new: NewMessage, now: float, there: Resident, most: int
) -> Delivery | None:
    """Deliver a message to an instance in memory, without a read; None if that is not possible: nothing is stored."""
    if not new.is_plain:
        return None
    if there.message_count:
        # Other processes may have sent messages that this process does not know yet, and they count, too.
        there.reader.sent = dict(await driver.scan(keys.stamp + b"\x00", keys.stamp + b"\xff"))
        check_room(keys.instance_id, there.message_count, most)
    before = there.handed
    accepted = there.awaits(new.message)
    # Set before the first `await`, so that another call that hands over meanwhile counts on from here.
    there.handed = (before or 0) + 1
    try:
        count = await apply(driver, changes.hand_over(keys, there.lease, before, new, now))
    except BaseException:
        there.handed = None  # nobody knows whether it was counted: the next call that hands over finds out from the row
        raise
    if count is None:
        raw = await driver.get(keys.field(Field.HANDED))
        there.handed = None if raw is None else counted(raw)
        return None
    return Delivery.ACCEPTED if accepted else Delivery.QUEUED


ALIVE_SECONDS = 600.0
"""How often whoever waits for an answer shows that it is alive. The row of an answer nobody waits for is deleted."""
HERE_SECONDS = 1.0
"""How long to wait for an answer of an instance in this process before the store is watched for it, too."""


async def ask(access: Access, instance_id: str, message: str, payload: bytes) -> bytes:
    """Ask an instance a question, and return its encoded answer."""
    question = _Question(access, instance_id, message)
    try:
        return await question.ask(NewMessage(message, payload, reply_to=question.key))
    except BaseException:
        await question.give_up()
        raise


class _Question:
    """One question to an instance, and what is known of the answer."""

    def __init__(self, access: Access, instance_id: str, message: str) -> None:
        self._access = access
        self._id = instance_id
        self._message = message
        self.key: bytes = answer_key(instance_id, uuid4().hex)
        self._row = b""
        """The value of the answer's row as long as there is no answer."""
        self._is_forgotten = False
        self._answered = anyio.Event()
        self._answer: Answer | None = None
        self._is_asked = False

    async def ask(self, new: NewMessage) -> bytes:
        access, here = self._access, self._access.here
        if here is not None:
            here.answers[self.key] = self._take
        self._is_asked = True
        delivery = await deliver(access.driver, self._id, new, access.clock.time(), here)
        if delivery is Delivery.CLOSED:
            self._is_asked = False
            raise self._ended()
        if here is not None and here.resident(self._id) is not None:
            with anyio.move_on_after(HERE_SECONDS):
                await self._answered.wait()
        if self._answer is None:
            await self._watch()
        if here is not None:
            here.answers.pop(self.key, None)
        return self._value()

    async def _watch(self) -> None:
        """Watch the store until there is an answer, or none can come any more."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_for_answer)
            group.start_soon(self._watch_for_end)
            await self._answered.wait()
            group.cancel_scope.cancel()

    def _value(self) -> bytes:
        """Return the answer; raise an error if there is none, or if the answer is an error."""
        if self._answer is None and self._is_forgotten:
            raise InstanceStateError(
                f"the question {self._message!r} to {self._id!r} was forgotten, since nothing was heard of who asked"
            )
        if self._answer is None:
            raise self._ended()
        if self._answer.kind is not AnswerKind.ANSWERED:
            text = str(self._access.codec.decode(self._answer.value, str))
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
                # The row is gone. Either the answer was handed over in this process, in memory; or the instance has
                # ended, and `_watch_for_end` sees to it; or the row was deleted since we seemed dead.
                if (here is None or self.key in here.answers) and not await self._has_ended():
                    self._is_forgotten = True
                    self._answered.set()
                return
            if is_answer(raw):
                # Kept before the row is cleared: `_watch_for_end`, which runs beside this, finds either of the two.
                self._answer = Answer.unpack(raw)
                await apply(driver, clear([self.key]))
                self._answered.set()
                return
            row = await apply(driver, go_on_waiting(self.key))
            # None if the answer came just now: the old value differs from it, so `changed` returns at once.
            self._row = self._row if row is None else row

    async def _watch_for_end(self) -> None:
        driver, keys = self._access.driver, InstanceKeys(self._id)
        while True:
            about = await read_about(driver, keys)
            if not about or about.status.is_terminal:
                break
            await driver.changed(keys.field(Field.HEAD), about.raw[Field.HEAD])
        # An answer that was given before the instance ended counts. It is either stored, or was handed over in memory.
        if not is_answer(await driver.get(self.key)) and self._answer is None:
            await self.give_up()
            self._answered.set()

    async def _has_ended(self) -> bool:
        about = await read_about(self._access.driver, InstanceKeys(self._id))
        return not about or about.status.is_terminal

    async def give_up(self) -> None:
        """Stop waiting for the answer, and clear its row."""
        if self._access.here is not None:
            self._access.here.answers.pop(self.key, None)
        if not self._is_asked:
            return
        self._is_asked = False
        with anyio.CancelScope(shield=True), suppress(WorkflowSDKError, OSError):
            await apply(self._access.driver, clear([self.key]))
