"""The handle of one instance, by which any process reaches the instance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio

from workflow_sdk.changes import decide, rewind
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.instances import read_about, read_output
from workflow_sdk.client import handle as control
from workflow_sdk.client.access import Access
from workflow_sdk.client.asking import Delivery, NewMessage, ask, deliver, encode_payload
from workflow_sdk.client.history import History, read_history
from workflow_sdk.client.inboxes import QueuedMessage, discard, read_inbox
from workflow_sdk.client.info import InstanceInfo, read_info
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver
from workflow_sdk.errors import (
    DefinitionError,
    InstanceNotFoundError,
    InstanceStateError,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStuckError,
)
from workflow_sdk.instance.cleanups import cancelled_by_request, run_cleanups
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.types import GRAPH_MESSAGE
from workflow_sdk.rows.instance import InstanceRows, error_of
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import unpack_error_info


async def cancel(driver: Driver, instance_id: str, codec: Codec, now: float, *, rollback: bool) -> None:
    """End an instance, and its children. With `rollback`, what they did is undone first."""
    cancelled, cleanups, tries = cancelled_by_request(codec), None, 0
    while cleanups is None:  # it changed too often, so that its lease was taken away first: now it stands still
        cleanups = await apply(driver, decide.cancel(instance_id, cancelled, now, rollback=rollback, tries=tries))
        tries += 1
    await run_cleanups(driver, codec, lambda: now, cleanups)


async def restart_from(driver: Driver, instance_id: str, path: str | None, now: float) -> None:
    """Delete the entry at `path` (without a path, all) and what finished after it, and have the instance run again."""
    change = rewind.restart_from(instance_id, path, now)
    while (cleanups := await apply(driver, change)) is None:
        pass  # a worker had it, and its lease was taken away: now that it stands still, its history is read again
    await run_cleanups(driver, Codec(), lambda: now, cleanups)


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Handle(Generic[T_co]):
    """An instance, whichever process runs it."""

    def __init__(self, access: Access, id: str, workflow: Workflow[Any, T_co] | None) -> None:
        self._access: Access = access
        self.id: str = id
        self._workflow: Workflow[Any, T_co] | None = workflow

    async def result(self, timeout: Duration | None = None) -> T_co:
        """Wait for the end of the instance and return its output; if it ended in another way, raise an error for that.

        A timeout or a cancellation ends only this call. The instance goes on.
        """
        if timeout is None:
            return await self._result()
        limit = seconds(timeout, "timeout")
        if limit <= 0:
            # Without time to wait, the call still looks once.
            driver, keys = self._access.looking, InstanceKeys(self.id)
            about = await read_about(driver, keys)
            if (status := self._status(about)).is_terminal or status is Status.STUCK:
                with suppress(InstanceStateError):  # it was restarted meanwhile
                    return self._outcome(status, about, await read_output(driver, keys, about))
            raise TimeoutError
        with anyio.fail_after(limit):
            return await self._result()

    def _status(self, about: InstanceRows) -> Status:
        """The status of the instance; an error if there is none, or if it runs another workflow than this handle."""
        if not about:
            raise InstanceNotFoundError(f"there is no instance {self.id!r}")
        recorded = about.head.workflow
        if self._workflow is not None and self._workflow.name != recorded:
            raise DefinitionError(f"instance {self.id!r} runs workflow {recorded!r}, not {self._workflow.name!r}")
        return about.status

    async def _result(self) -> T_co:
        driver, here = self._access.driver, self._access.here
        keys = InstanceKeys(self.id)
        while True:
            about = None if here is None else await here.until_ended(self.id)
            if about is None:
                about = await read_about(driver, keys)
            status = self._status(about)
            if status.is_terminal or status is Status.STUCK:
                try:
                    raw = await read_output(driver, keys, about)
                except InstanceStateError:
                    continue  # it was restarted meanwhile, and will have another end
                return self._outcome(status, about, raw)
            await driver.changed(keys.field(Field.HEAD), about.raw[Field.HEAD])

    def _outcome(self, status: Status, about: InstanceRows, raw: bytes | None) -> T_co:
        """Return the output of an instance that completed; for any other end, raise the error that tells it."""
        codec = self._access.codec
        if status is Status.COMPLETED:
            hint = Any if self._workflow is None else self._workflow.output_hint
            output: T_co = codec.decode(raw or b"", hint, plain=self._workflow is None)
            return output
        info = unpack_error_info(error_of(about), codec)
        if status is Status.STUCK:
            raise WorkflowStuckError(self.id, status, info)
        kind = WorkflowCancelledError if status is Status.CANCELLED else WorkflowFailedError
        failure = kind(self.id, status, info)
        if raw is not None:
            hint = Any if self._workflow is None else self._workflow.output_hint
            failure.result = codec.decode(raw, hint, plain=self._workflow is None)
        raise failure

    async def send(
        self,
        message: str,
        payload: object = None,
        *,
        key: str | None = None,
        token: str | None = None,
        expected_version: int | None = None,
    ) -> Delivery:
        """Put a message into the inbox of the instance. The message is stored when this returns."""
        if key is not None and (problem := name_problem(key)) is not None:
            raise DefinitionError(f"the key of a message can't be {shown(key)}: {problem}")
        if token is not None and not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"a token is a text, as `info().waits` has it, not {shown(token)}")
        version = expected_version
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected_version is a number, as `info().version` has it, not {shown(version)}")
        raw = encode_payload(self._access.codec, self.id, message, payload)
        new = NewMessage(message, raw, key, token, expected_version)
        return await self._deliver(new)

    async def _deliver(self, new: NewMessage) -> Delivery:
        access = self._access
        return await deliver(access.driver, self.id, new, access.clock.time(), access.here)

    async def patch(self, **values: Any) -> Delivery:
        """Change the context of a graph. Steps that were denied are asked again whether they may start."""
        raw = encode_payload(self._access.codec, self.id, GRAPH_MESSAGE, {"patch": values})
        return await self._deliver(NewMessage(GRAPH_MESSAGE, raw))

    async def ask(self, message: str, payload: object = None, *, timeout: Duration | None = None) -> Any:
        """Send a message, and wait for the answer; `InstanceStateError` if the instance ends without one."""
        raw = encode_payload(self._access.codec, self.id, message, payload)
        with anyio.fail_after(None if timeout is None else seconds(timeout, "timeout")):
            answer = await ask(self._access, self.id, message, raw)
        return self._access.codec.decode(answer)

    async def inbox(self, *, limit: int = 1000, after: str | None = None) -> list[QueuedMessage]:
        """The messages that have come and were not taken, oldest first; those that were set aside have a `reason`.

        `after` is the id of a message: only those that came after it are returned. So a long list can be read in parts.
        """
        return await read_inbox(self._access, self.id, limit, after)

    async def discard(self, message_id: str) -> bool:
        """Remove a message from the inbox, set aside or not; False if it is not there. Its key stays used."""
        return await discard(self._access, self.id, message_id)

    async def info(self) -> InstanceInfo:
        """What can be seen of it now."""
        return await read_info(self._access.looking, self.id, self._access.codec, self._workflow)

    async def watch(self) -> AsyncIterator[InstanceInfo]:
        """The info of the instance now, and again whenever that changes, until it has ended."""
        driver, keys = self._access.driver, InstanceKeys(self.id)
        last: InstanceInfo | None = None
        while True:
            # These rows are read before the info: whatever changes between the two reads ends the wait below at once.
            about = await read_about(driver, keys)
            info = await self.info()
            if info != last:
                yield info
            last = info
            if info.status.is_terminal:
                return
            await self._until_changed(keys, about)

    async def _until_changed(self, keys: InstanceKeys, about: InstanceRows) -> None:
        """Return once a commit has changed the instance, or its head has changed."""
        failures: list[Exception] = []
        async with anyio.create_task_group() as group:

            async def changed(field: Field) -> None:
                try:
                    await self._access.driver.changed(keys.field(field), about.raw.get(field))
                except Exception as error:  # noqa: BLE001  # the store failed: raised as it is, and not in a group
                    failures.append(error)
                group.cancel_scope.cancel()

            for field in (Field.TALLY, Field.HEAD):
                group.start_soon(changed, field)
        if failures:
            raise failures[0]

    async def history(self) -> History:
        """Everything that the instance has recorded. `print` draws it as a tree."""
        return await read_history(self._access.looking, self.id, codec=self._access.codec.wrapper)

    async def cancel(self, *, rollback: bool = False) -> None:
        """End the instance, whatever it does. With `rollback`, what it did is undone first. To cancel twice is fine."""
        access = self._access
        await control.cancel(access.driver, self.id, access.codec, access.clock.time(), rollback=rollback)

    async def wake(self) -> None:
        """Have the instance run now. Timers that are not due go on waiting."""
        await apply(self._access.driver, decide.wake(self.id, self._access.clock.time()))

    async def evict(self) -> None:
        """Have the worker that has the instance in memory evict it. A running step may end first."""
        await apply(self._access.driver, decide.evict(self.id))

    async def restart_from(self, path: str | None = None) -> None:
        """Delete the entry at `path` (without a path, all) and what finished after it, and run the instance again.

        The messages that the deleted part had taken are in the inbox again. A run that is under way ends at once. This
        can be done in any status.
        """
        await control.restart_from(self._access.driver, self.id, path, self._access.clock.time())

    async def recover(self) -> None:
        """Have a failed or stuck instance run again, with fresh attempts for what made it fail."""
        await apply(self._access.driver, rewind.recover(self.id, self._access.clock.time()))

    def __repr__(self) -> str:
        return f"<handle of {self.id!r}>"
