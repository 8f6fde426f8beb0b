"""`run_workflow`: one instance, and the children that it starts, with no runtime around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload
from uuid import uuid4

import anyio
from msgspec import Struct

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.claim import Claimant, new_lease
from workflow_sdk.changes.instances import check_workflow, new_rows, read_about, read_output, read_snapshot
from workflow_sdk.changes.workers import leave
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Driver, is_driver
from workflow_sdk.errors import DefinitionError, LeaseLostError
from workflow_sdk.instance.clock import Activity, Clock, TimeSource, clock_of, overseen
from workflow_sdk.instance.execution import Mode
from workflow_sdk.instance.results import (
    RunResult,
    check_value_bytes,
    innermost,
    read_troubles,
    read_waits,
    stored_result,
)
from workflow_sdk.instance.run import Run
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.handlers import Handler, KnownHandlers
from workflow_sdk.operations.inputs import encode_input
from workflow_sdk.operations.types import new_seed
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import Field, InstanceKeys, WorkerKeys, worker_keys
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import VALUE_BYTES_MAX, Codec, Wrappers
from workflow_sdk.worker.alone import Alone, Family
from workflow_sdk.worker.lease import claim, lives, living

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

LEASE_SECONDS = 10.0


@overload
async def run_workflow(
    workflow: Workflow[InputT, OutputT],
    input: InputT,
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[OutputT]: ...
@overload
async def run_workflow(
    workflow: Workflow[Any, OutputT],
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[OutputT]: ...
async def run_workflow(
    workflow: Workflow[Any, Any],
    input: Any = None,
    *,
    driver: Driver,
    instance_id: str | None = None,
    mode: Mode = "yield",
    clock: TimeSource | None = None,
    lease_ttl: Duration = LEASE_SECONDS,
    max_value_bytes: int = VALUE_BYTES_MAX,
    codec: Wrappers | None = None,
    handlers: Iterable[Handler] = (),
    workflows: Iterable[Workflow[Any, Any]] = (),
) -> RunResult[Any]:
    """Run an instance until it ends or, in `mode="yield"`, until all it does is wait; go on where it was.

    A new id starts an instance; a known one goes on with the input it was started with. The run takes the instance
    over at once, whoever has it: of two runs of one id, the older can't write any more, and raises `LeaseLostError`.
    The result says how the workflow ended, even if it failed. What is raised is a mistake of the call, a failure of the
    store, or the cancellation of the run. `handlers` are functions that undo steps. They are needed only for functions
    that are neither in the module of the workflow nor decorated with `@step`.

    The same call runs the children of the instance: in `mode="yield"` as far as they go, in `mode="live"` until they
    end. `workflows` are those of children that the code starts by name. A child that another worker runs is left to it.
    """
    _check_call(workflow, instance_id, mode, max_value_bytes)
    if not is_driver(driver):
        raise DefinitionError(f"driver is an open store, as `await open_driver(url)` gives it, not {shown(driver)}")
    keys = InstanceKeys(instance_id if instance_id is not None else str(uuid4()))
    clock = clock_of(clock)
    values = Codec(max_value_bytes=max_value_bytes, wrapper=codec)
    ttl = seconds(lease_ttl, "lease_ttl")
    if ttl <= 0:
        raise DefinitionError(f"lease_ttl must be positive, got {lease_ttl!r}")
    driver = overseen(driver, clock)
    flows = [*workflows]
    family = Family(driver, clock, flows)
    call = _Call(driver, clock, values, KnownHandlers.of(flows, handlers), ttl, mode, family)
    call.family.meet(workflow)
    try:
        if mode == "live":
            root = partial(call.run_once, workflow, keys, _everybody, input, creates=True)
            return await call.family.together(root, call.run_once)
        return await call.run(workflow, keys, _everybody, input, creates=True)
    except BaseExceptionGroup as group:
        raise innermost(group) from None


def _everybody(worker: str) -> bool:
    return True


def _nobody(worker: str) -> bool:
    return False


class _Call(Struct, frozen=True):
    """The arguments of one call of `run_workflow`, with which its instance and its children are run."""

    driver: Driver
    clock: Clock
    codec: Codec
    known: KnownHandlers
    ttl: float
    mode: Mode
    family: Family

    async def run(
        self,
        workflow: Workflow[Any, Any],
        keys: InstanceKeys,
        takes_over: Callable[[str], bool],
        value: object = None,
        *,
        creates: bool = False,
    ) -> RunResult[Any]:
        """Run an instance and its children as far as they go."""
        while True:
            left = await self.run_once(workflow, keys, takes_over, value, creates=creates)
            children = await self.family.as_far_as_they_go(left, self._run_child)
            if not any(child.status.is_terminal for child in children):
                break
            # A child has ended, so the instance can go on. It is run again, unless somebody else has claimed it by now.
            takes_over, creates = _nobody, False
        times = [child.wake_at for child in (left, *children) if child.wake_at is not None]
        waits = [wait for child in (left, *children) for wait in child.waits]
        return replace(left, wake_at=min(times, default=None), waits=waits)

    async def _run_child(self, id: str) -> RunResult[Any] | None:
        return await self.family.run_child(id, self.run)

    async def run_once(
        self,
        workflow: Workflow[Any, Any],
        keys: InstanceKeys,
        takes_over: Callable[[str], bool],
        value: object = None,
        *,
        creates: bool = False,
    ) -> RunResult[Any]:
        """Run one instance until it ends or waits."""
        driver, clock, codec, worker = self.driver, self.clock, self.codec, worker_keys(uuid4().hex)
        known = self.known.beside(workflow)
        # The worker counts as alive before its first heartbeat is stored, since others may read that at once.
        with clock.life(worker.worker), living(worker.worker):
            while True:
                claimant = Claimant(
                    keys,
                    partial(check_workflow, workflow, keys.instance_id),
                    codec,
                    clock.time,
                    new_lease(worker.worker, self.ttl),
                    takes_over=takes_over,
                    lives=lambda worker: lives(worker, is_alive=clock.is_alive(worker)),
                    new=partial(self._new, workflow, value) if creates else None,
                )
                claimed = await claim(driver, claimant)
                if claimed.lease is None:
                    about = claimed.about
                    output = await read_output(driver, keys, about)
                    return await self._shown(stored_result(workflow, codec, about, output, keys.instance_id))
                host = Alone(driver, clock, worker, self.ttl, self.family)
                run = Run(workflow, driver, keys, codec, known, clock, claimed, self.mode, host)
                try:
                    await run.go()
                except LeaseLostError:
                    if not await _goes_on(driver, clock, keys, worker):
                        raise
                except BaseExceptionGroup as group:
                    raise innermost(group) from None
                else:
                    return await self._shown(await run.result())

    def _new(self, workflow: Workflow[Any, Any], value: object) -> InstanceRows:
        """The rows of an instance that is created."""
        raw = encode_input(self.codec, workflow, value)
        return new_rows(workflow, Status.RUNNING, raw, self.clock.time(), new_seed())

    async def _shown(self, result: RunResult[Any]) -> RunResult[Any]:
        """The result, with what the instance waits for added."""
        if result.status.is_terminal or result.status is Status.STUCK:
            return result
        keys = InstanceKeys(result.instance_id)
        about = await read_about(self.driver, keys)
        seed = about.birth.seed if about else b""
        troubles = await read_troubles(self.driver, keys)
        return replace(result, waits=await read_waits(self.driver, keys, self.codec, troubles, seed))


async def _goes_on(driver: Driver, clock: Clock, keys: InstanceKeys, worker: WorkerKeys) -> bool:
    """After the lease was lost: wait until the instance is to be run again, and return whether this call is to do that.

    A client may have taken the lease away to cancel or change the instance. Then nobody runs it, and this call runs it
    on. If another worker has taken it over, or it is not to be run, the answer is no.
    """
    while True:
        found = await read_snapshot(driver, keys)
        if found.lease is not None or not found.about:
            return False
        status, due = found.about.status, found.about.head.alarm
        if status is Status.CANCELLED:
            # The run that wrote the worker's heartbeat and signals was fenced, and could not clear them.
            await apply(driver, leave(worker))
            return True
        if status not in (Status.RUNNING, Status.ROLLING_BACK) or due is None:
            return False
        if due <= clock.time():
            return True
        # A client took the lease away first, and changes the instance with a second commit.
        await _until_changed(driver, clock, keys.field(Field.HEAD), found.about.raw[Field.HEAD], due)


async def _until_changed(driver: Driver, clock: Clock, key: bytes, since: bytes, due: float) -> None:
    """Return when the value of the key differs from `since`, or when it is due."""
    told = anyio.Event()

    async def tell() -> None:
        await driver.changed(key, since)
        told.set()

    async with anyio.create_task_group() as group:
        # `clock.wait` returns when `told` is set or the time has come; the task that watches is then not needed.
        group.start_soon(tell)
        await clock.wait(told, due, lambda: Activity.NONE)
        group.cancel_scope.cancel()


def _check_call(workflow: object, instance_id: object, mode: str, max_value_bytes: object) -> None:
    if not isinstance(workflow, Workflow):
        raise DefinitionError(f"run_workflow takes a function decorated with @workflow, not {shown(workflow)}")
    workflow.check()
    if mode not in ("yield", "live"):
        raise DefinitionError(f'mode is "yield" or "live", not {shown(mode)}')
    if instance_id is not None and name_problem(instance_id) is not None:
        raise DefinitionError(
            f"an instance id is a text of 1 to 1000 characters, which can be encoded; not {instance_id!r:.100}"
        )
    check_value_bytes(max_value_bytes)
