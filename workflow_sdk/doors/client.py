"""The client: it starts and reaches instances from any process, without running them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from secrets import randbits
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from msgspec.structs import replace

from workflow_sdk.changes import decide
from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.instances import check_form, create, create_claimed, new_rows, read_about
from workflow_sdk.client.access import Access
from workflow_sdk.client.directory import Wanted, list_instances
from workflow_sdk.client.handle import Handle
from workflow_sdk.client.info import InstanceInfo, Page
from workflow_sdk.client.tasks import Tasks
from workflow_sdk.definitions import Workflow
from workflow_sdk.doors.machines import MachineClient
from workflow_sdk.driver import Driver, open_driver
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.features.retention import prune
from workflow_sdk.features.schedules.schedules import Schedule, ScheduleOptions, Schedules
from workflow_sdk.instance.clock import Clock, TimeSource, clock_of, overseen
from workflow_sdk.instance.results import check_value_bytes
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.calling import come_what_may
from workflow_sdk.operations.inputs import check_same_start, encode_input, encode_plain_input
from workflow_sdk.operations.types import new_seed
from workflow_sdk.rows.instance import InstanceRows, Lease
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.rows.retry import Duration, seconds
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import due_at_once, shown
from workflow_sdk.values import VALUE_BYTES_MAX, Codec, Wrappers
from workflow_sdk.verdicts import Verdict

if TYPE_CHECKING:  # who runs no machine is not to load them
    from workflow_sdk.machines.manifest import Manifest

I = TypeVar("I")  # noqa: E741  # the input
T = TypeVar("T")


class Client(MachineClient):
    """Starts, finds and reaches instances, whichever process runs them.

    With `machines=`, a manifest, it also sends events to the cells of machines.
    """

    def __init__(
        self,
        store: str | Driver,
        *,
        clock: TimeSource | None = None,
        codec: Wrappers | None = None,
        max_value_bytes: int = VALUE_BYTES_MAX,
        machines: Manifest | None = None,
    ) -> None:
        self._store = store
        self._manifest = machines
        check_value_bytes(max_value_bytes)
        self._codec = Codec(max_value_bytes=max_value_bytes, wrapper=codec)
        self._clock: Clock = clock_of(clock)
        self._access: Access | None = None
        self._is_open = False
        self._retention: float | None = None
        """How many seconds after their end instances are deleted, if their workflow does not say."""

    @property
    def tasks(self) -> Tasks:
        """The tasks that workflows of this store give to people."""
        return Tasks(lambda: self.access)

    @property
    def access(self) -> Access:
        """The open store."""
        if self._access is None:
            raise DefinitionError(f"{type(self).__name__} is not open; use it in `async with`")
        return self._access

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise DefinitionError(
                f"this {type(self).__name__} is open already; leave its block first, or make another one"
            )
        self._is_open = True
        try:
            driver = await open_driver(self._store) if isinstance(self._store, str) else self._store
            await self._check_form(driver)
        except BaseException:
            self._is_open = False
            raise
        self._access = self._make_access(overseen(driver, self._clock))
        return self

    async def _check_form(self, driver: Driver) -> None:
        """Refuse a store that was written before the first release."""
        try:
            await apply(driver, check_form())
        except CodecError:
            if isinstance(self._store, str):
                await driver.aclose()
            raise
        except Exception:  # noqa: BLE001  # the store failed: the first call that uses it raises that
            return

    def _make_access(self, driver: Driver) -> Access:
        return Access(driver, self._codec, self._clock)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        access, self._access = self._access, None
        try:
            if access is not None and isinstance(self._store, str):
                await access.driver.aclose()
        finally:
            self._is_open = False

    @overload
    async def start(
        self,
        workflow: Workflow[I, T],
        input: I,
        *,
        id: str | None = None,
        completed: Mapping[str, Any] | None = None,
        submissions: Iterable[Sequence[Any]] = (),
    ) -> Handle[T]: ...
    @overload
    async def start(self, workflow: Workflow[None, T], *, id: str | None = None) -> Handle[T]: ...
    @overload
    async def start(self, workflow: str, input: Any = None, *, id: str | None = None) -> Handle[Any]: ...
    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str | None = None,
        completed: Mapping[str, Any] | None = None,
        submissions: Iterable[Sequence[Any]] = (),
    ) -> Handle[Any]:
        """Start an instance. An id that has been started with the same workflow and input gives its handle.

        A graph can go on from what another system has done: `completed` are the outputs of steps that are done, and
        `submissions` the batches of steps that were added.
        """
        access = self.access
        definition = self._definition(workflow)
        if id is not None and name_problem(id) is not None:
            raise DefinitionError(f"an instance id is a text of 1 to 1000 characters, not {shown(id)}")
        name, known, raw = self._prepare(workflow, definition, input)
        batches = list(submissions)
        if batches or completed:
            from workflow_sdk.graphs.outside import encode_begun  # who runs no graph is not to load it

            raw = encode_begun(access.codec, known, input, completed, batches)
        now = access.clock.time()
        keys = InstanceKeys(id if id is not None else _new_id(now))
        retention = None if known is None else self._retention
        rows = new_rows(known or name, Status.PENDING, raw, now, new_seed(), retention, due_at_once(now))
        while not await self._create(known, keys, rows):
            if await self._same(keys, name, raw):
                break
        return Handle(access, keys.instance_id, definition)

    def _prepare(
        self, workflow: Workflow[Any, Any] | str, definition: Workflow[Any, Any] | None, input: object
    ) -> tuple[str, Workflow[Any, Any] | None, bytes]:
        """Check what is to be started; return its name, its workflow if that is known here, and its encoded input."""
        codec = self.access.codec
        name = workflow if isinstance(workflow, str) else workflow.name
        if (problem := name_problem(name)) is not None:
            raise DefinitionError(f"a workflow can't be called {name!r:.100}: {problem}")
        known = definition or self._known(name)
        if definition is not None:
            definition.check()
            raw = encode_input(codec, definition, input)
        elif known is not None:
            known.check()
            raw = encode_plain_input(codec, known, input)
        else:
            raw = codec.encode(input)
        return name, known, raw

    async def _create(self, known: Workflow[Any, Any] | None, keys: InstanceKeys, rows: InstanceRows) -> bool:
        """Create an instance, claimed at once if it can run here, in one commit; False if there is one with this id."""
        driver, lease = self.access.driver, None if known is None else self._seize(keys)
        if lease is None or known is None:
            return await apply(driver, create(keys, rows))
        rows = rows.copy()
        rows.set(Field.HEAD, replace(rows.head, status=Status.RUNNING, alarm=None))
        created: list[bool] = []

        async def commit() -> None:
            is_again = bool(created)
            created.append(False)
            created[-1] = await apply(driver, create_claimed(keys, rows, lease))
            if is_again and not created[-1]:
                # The first try of the commit may have created the instance, before it was cancelled.
                created[-1] = await driver.get(keys.lease) == lease.pack()

        try:
            # A cancellation between the commit and the run would leave the instance claimed, with nobody to release it.
            cancelled = await come_what_may(commit)
        except BaseException:
            self._let_go(keys, is_dropped=True)
            raise
        if created[-1]:
            self._go_on(known, keys, rows, lease)
        else:
            self._let_go(keys, is_dropped=False)
        if cancelled is not None:
            raise cancelled
        return created[-1]

    # A client that is also a worker may claim an instance in the commit that starts it.

    def _seize(self, keys: InstanceKeys) -> Lease | None:
        """Take a slot for an instance that is about to be created; return its lease, None if it can't run here now."""
        return None

    def _let_go(self, keys: InstanceKeys, *, is_dropped: bool) -> None:
        """Give the slot back, since the instance was not created. `is_dropped`: nobody knows whether it was."""

    def _go_on(self, flow: Workflow[Any, Any], keys: InstanceKeys, rows: InstanceRows, lease: Lease) -> None:
        """Run an instance that was created here."""

    async def _same(self, keys: InstanceKeys, name: str, raw: bytes) -> bool:
        """Check that the instance with this id has the same workflow and input; False if it was deleted by now."""
        access = self.access
        found = await read_about(access.driver, keys)
        if not found:
            return False
        check_same_start(access.codec, keys.instance_id, found, (name, raw))
        return True

    def _known(self, name: str) -> Workflow[Any, Any] | None:
        """The workflow of that name, if there is one here."""
        return None

    def _definition(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
        """The workflow that was given; None if it was given by its name, and is not known here."""
        if isinstance(workflow, Workflow):
            return workflow
        if isinstance(workflow, str):
            return None
        raise DefinitionError(f"a workflow is a function decorated with @workflow, or its name, not {shown(workflow)}")

    @overload
    async def run(self, workflow: Workflow[I, T], input: I, *, id: str | None = None) -> T: ...
    @overload
    async def run(self, workflow: Workflow[None, T], *, id: str | None = None) -> T: ...
    @overload
    async def run(self, workflow: str, input: Any = None, *, id: str | None = None) -> Any: ...
    async def run(self, workflow: Workflow[Any, Any] | str, input: Any = None, *, id: str | None = None) -> Any:
        """Start an instance and wait for its output."""
        handle: Handle[Any] = await self.start(workflow, input, id=id)
        return await handle.result()

    @overload
    def handle(self, workflow: Workflow[Any, T], id: str) -> Handle[T]: ...
    @overload
    def handle(self, workflow: str, id: str) -> Handle[Any]: ...
    def handle(self, workflow: Workflow[Any, Any] | str, id: str) -> Handle[Any]:
        """The handle of an instance that was started before."""
        return Handle(self.access, id, self._definition(workflow))

    @overload
    async def schedule(
        self, id: str, workflow: Workflow[I, Any], input: I, **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    @overload
    async def schedule(
        self, id: str, workflow: Workflow[None, Any], **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    @overload
    async def schedule(
        self, id: str, workflow: str, input: Any = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    async def schedule(
        self,
        id: str,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Start an instance at every tick, from now on: with `cron="0 3 * * *"`, or `every=` so often.

        It is stored when this returns. Each tick begins one instance, however many runtimes there are and whichever of
        them die; its id is that of the schedule, a slash, and the time of the tick: `nightly/2026-11-18T03:00:00Z`.
        `timezone` (UTC) is that of `cron`. `overlap` says what a tick does while the instance of the last one has not
        ended: it is left out (`"skip"`), waits for the end (`"queue"`), or starts one all the same (`"allow"`).
        `catch_up` says which of the ticks that came while no runtime was there are made up for: the `"last"`, `"all"`,
        or `"none"`.

        The same id with the same definition changes nothing. With another definition it is replaced: the next tick is
        that of the new one. Whether it is paused, and when it ticked last, stays.
        """
        name, _, raw = self._prepare(workflow, self._definition(workflow), input)
        return await self.schedules.put(id, name, raw, options)

    @property
    def schedules(self) -> Schedules:
        """The schedules of this store."""
        return Schedules(self.access)

    async def list(
        self,
        *,
        workflow: Workflow[Any, Any] | str | None = None,
        status: Status | str | None = None,
        reference: str | None = None,
        created_after: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[InstanceInfo]:
        """Instances, oldest first, a page at a time."""
        access = self.access
        if created_after is not None and (not isinstance(created_after, datetime) or created_after.utcoffset() is None):
            raise DefinitionError(f"created_after is an aware datetime, not {shown(created_after)}")
        if not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise DefinitionError(f"limit is a number of instances from 1 to 1000, not {shown(limit)}")
        return await list_instances(
            access.looking,
            access.codec,
            Wanted(
                workflow.name if isinstance(workflow, Workflow) else workflow,
                None if status is None else _status(status),
                reference,
            ),
            created_after=None if created_after is None else created_after.timestamp(),
            limit=limit,
            cursor=cursor,
        )

    async def submit(self, id: str, nodes: Any) -> Verdict:
        """Add steps to the graph that an instance runs, all of them or none: a list of `node(...)`, or a graph.

        Returns once whoever runs the instance has decided. The verdict is false if they were refused, and says why.
        """
        from workflow_sdk.graphs.outside import submit_to

        return await submit_to(self.access, id, nodes)

    async def delete(self, id: str) -> None:
        """Delete an instance that has ended, with everything about it."""
        await apply(self.access.driver, decide.delete(id))

    async def prune(
        self,
        *,
        older_than: Duration,
        statuses: Iterable[Status | str] = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ROLLED_BACK),
    ) -> int:
        """Delete the instances that ended longer ago than that; return how many."""
        before = self.access.clock.time() - seconds(older_than, "older_than")
        count = 0
        for status in map(_status, statuses):
            if not status.is_terminal:
                raise DefinitionError(f"only instances that have ended can be pruned, not {status.value} ones")
            count += await prune(self.access.driver, status, before)
        return count


def _new_id(now: float) -> str:
    """An id for an instance that was given none: a version 7 UUID (RFC 9562), so that such ids sort by time."""
    milliseconds = int(now * 1000) & (1 << 48) - 1
    return str(UUID(int=milliseconds << 80 | 7 << 76 | randbits(12) << 64 | 2 << 62 | randbits(62)))


def _status(status: Status | str) -> Status:
    try:
        return Status(status if isinstance(status, str) else "")
    except ValueError:
        known = ", ".join(Status)
        raise DefinitionError(f"there is no status {shown(status)}; there are {known}") from None
