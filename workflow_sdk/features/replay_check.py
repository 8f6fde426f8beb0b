"""Checking that the code at hand fits the histories that other code has written, without executing anything.

An instance is copied into memory, and its workflow is run there over its history. What is recorded answers; what would
call a function waits for ever. So the store is only read, and no step, transaction or handler runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import write
from workflow_sdk.changes.instances import check_form, join_output, read_about
from workflow_sdk.client.directory import Wanted, list_instances
from workflow_sdk.client.info import InstanceInfo
from workflow_sdk.definitions import Workflow
from workflow_sdk.driver import Clear, Driver, Set, Write, open_driver
from workflow_sdk.errors import CodecError, DefinitionError, HistoryDivergedError
from workflow_sdk.instance.clock import Activity, Timeout
from workflow_sdk.instance.results import VALUE_BYTES_LIMIT, RunResult
from workflow_sdk.journal.compensation import Compensation, Progress
from workflow_sdk.operations.handlers import Handler, KnownHandlers, find_handler
from workflow_sdk.operations.types import probe
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import COMPENSATIONS, Field, InstanceKeys
from workflow_sdk.rows.status import Status
from workflow_sdk.rows.wire import Row, shown
from workflow_sdk.values import Codec, SealedError, Wrappers
from workflow_sdk.values.exceptions import is_divergence
from workflow_sdk.worker.run_workflow import run_workflow

MAGIC = b"workflow_sdk histories 1\n"
PAGE = 100
PASSES_MAX = 5
LATER_SECONDS = 365 * 86_400.0
_FAILED = (Status.FAILED, Status.ROLLING_BACK, Status.ROLLED_BACK)
"""The statuses of instances that have failed, whether or not they are rolled back."""

Rows = list[tuple[bytes, bytes]]


class _Dumped(Row, frozen=True):
    """An instance in a dump: its id, and all its rows."""

    WHAT: ClassVar[str] = "an instance in a dump"

    instance_id: str
    rows: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class ReplayProblem:
    """An instance that would not go on with the code as it is."""

    instance_id: str
    workflow: str
    status: str
    """The status of the instance in the store."""
    kind: str
    """`divergence`, `definition`, `failure` or `output`."""
    message: str

    def __str__(self) -> str:
        return f"{self.workflow} {self.instance_id} ({self.status}): {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The outcome of replaying histories."""

    replayed: Counter[str] = field(default_factory=Counter[str])
    """How many instances were replayed, by workflow."""
    unknown: Counter[str] = field(default_factory=Counter[str])
    """How many instances were left out, since their workflow was not given."""
    problems: list[ReplayProblem] = field(default_factory=list[ReplayProblem])

    @property
    def ok(self) -> bool:
        """Whether all of the instances would go on."""
        return not self.problems

    def __str__(self) -> str:
        count, bad = self.replayed.total(), len(self.problems)
        lines = [f"{count} {'history' if count == 1 else 'histories'} replayed, {bad or 'none'} would not go on"]
        lines += [f"  {name}: {number}" for name, number in sorted(self.replayed.items())]
        lines += [f"  {name}: {number} left out, as it was not given" for name, number in sorted(self.unknown.items())]
        lines += [str(problem) for problem in self.problems]
        return "\n".join(lines)


async def replay_check(
    store: str | Path | Driver,
    workflows: Iterable[Workflow[Any, Any]],
    *,
    finished: int = 0,
    codec: Wrappers | None = None,
    max_value_bytes: int = VALUE_BYTES_LIMIT,
    handlers: Iterable[Handler] = (),
) -> ReplayReport:
    """Replay every unfinished instance of a store against the code at hand, and report which would not go on.

    Nothing is executed and nothing is written. `store` is a URL, an open driver, or the path of a file that
    `dump_histories` has written. With `finished`, so many of the newest finished instances of each workflow are
    replayed, too; of the completed, the output has to be the same.
    """
    known = {flow.name: flow for flow in _checked(workflows)}
    known_handlers = KnownHandlers(known.values(), handlers)
    report = ReplayReport()
    async for instance_id, rows in _histories(store, finished, codec):
        name, status = _about(instance_id, rows)
        flow = known.get(name)
        if flow is None:
            report.unknown[name] += 1
            continue
        report.replayed[name] += 1
        found = await _replay(flow, instance_id, rows, codec, max_value_bytes, known_handlers)
        if found is not None:
            report.problems.append(ReplayProblem(instance_id, name, status.value, *found))
    return report


async def dump_histories(
    store: str | Driver, path: str | Path, *, finished: int = 0, codec: Wrappers | None = None
) -> int:
    """Write the unfinished instances of a store to a file, for `replay_check` elsewhere; return how many there are.

    It has everything that is recorded of them, inputs and results of steps included.
    """
    count, part = 0, anyio.Path(f"{path}.part")
    try:
        async with await part.open("wb") as file:
            await file.write(MAGIC)
            async for instance_id, rows in _histories(store, finished, codec):
                record = _Dumped(instance_id, tuple(rows)).pack()
                await file.write(len(record).to_bytes(4, "big") + record)
                count += 1
        await part.replace(path)
    finally:
        await part.unlink(missing_ok=True)
    return count


def _checked(workflows: Iterable[Workflow[Any, Any]]) -> Sequence[Workflow[Any, Any]]:
    found = list(workflows)
    for flow in found:
        if not isinstance(flow, Workflow):
            raise DefinitionError(f"workflows are functions decorated with @workflow, not {shown(flow)}")
    return found


# Reading the instances.


async def _histories(
    store: str | Path | Driver, finished: int, codec: Wrappers | None
) -> AsyncIterator[tuple[str, Rows]]:
    if isinstance(store, Path) or (isinstance(store, str) and "://" not in store):
        for found in _read_dump(Path(store)):
            yield found
        return
    async with _opened(store) as driver:
        await apply(driver, check_form())
        reader = Codec(wrapper=codec)
        async for found in _unfinished(driver, reader):
            yield found
        for id in await _newest(driver, reader, finished) if finished else []:
            rows = await driver.scan(*InstanceKeys(id).all())
            if rows and _about(id, rows)[1].is_terminal:  # it may have been deleted, or run again
                yield id, rows


async def _unfinished(driver: Driver, codec: Codec) -> AsyncIterator[tuple[str, Rows]]:
    seen: set[str] = set()
    for _ in range(PASSES_MAX):
        # An instance that changes its status while they are listed may be missed, and is found in the next round.
        before = len(seen)
        for status in (status for status in Status if not status.is_terminal):
            async for info in _listed(driver, codec, status):
                if info.id in seen:
                    continue
                seen.add(info.id)
                rows = await driver.scan(*InstanceKeys(info.id).all())
                if rows and not _about(info.id, rows)[1].is_terminal:  # it may have ended by now
                    yield info.id, rows
        if len(seen) == before:
            break


async def _listed(driver: Driver, codec: Codec, status: Status) -> AsyncIterator[InstanceInfo]:
    cursor: str | None = None
    while True:
        page = await list_instances(driver, codec, Wanted(status=status), created_after=None, limit=PAGE, cursor=cursor)
        for info in page.items:
            yield info
        cursor = page.cursor
        if cursor is None:
            return


async def _newest(driver: Driver, codec: Codec, count: int) -> list[str]:
    """The ids of so many finished instances of each workflow."""
    found: dict[str, list[tuple[float, str]]] = {}
    for status in (status for status in Status if status.is_terminal):
        async for info in _listed(driver, codec, status):
            newest = found.setdefault(info.workflow, [])
            heappush(newest, (info.created_at.timestamp(), info.id))
            if len(newest) > count:
                heappop(newest)
    return [id for newest in found.values() for _, id in sorted(newest)]


@asynccontextmanager
async def _opened(store: str | Driver) -> AsyncGenerator[Driver]:
    driver = await open_driver(store) if isinstance(store, str) else store
    try:
        yield driver
    finally:
        if isinstance(store, str):
            await driver.aclose()


def _read_dump(path: Path) -> Iterable[tuple[str, Rows]]:
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise CodecError(f"{str(path)!r} is not a dump of histories")
        while head := file.read(4):
            record = file.read(int.from_bytes(head, "big"))
            if len(head) < 4 or len(record) < int.from_bytes(head, "big"):
                raise CodecError(f"the dump {str(path)!r} is cut short")
            dumped = _Dumped.unpack(record)
            yield dumped.instance_id, list(dumped.rows)


def _about(instance_id: str, rows: Rows) -> tuple[str, Status]:
    head = _rows_in(InstanceKeys(instance_id), rows).head
    return head.workflow, head.status


def _rows_in(keys: InstanceKeys, rows: Rows) -> InstanceRows:
    """The rows of an instance beside its history, from all of its rows."""
    found = dict(rows)
    return InstanceRows({field: raw for field in Field if (raw := found.get(keys.field(field))) is not None})


# The replay.


class _Dry:
    """A probe of runs that call nothing."""

    dry = True
    seed: bytes | None = None

    def calls(self, path: str, generation: int) -> None:
        raise AssertionError(f"{path} would have been called")


class _Stopped:
    """A clock that stands still."""

    def __init__(self, at: float) -> None:
        self._at = at

    def time(self) -> float:
        return self._at

    def monotonic(self) -> float:
        return self._at

    async def wait(
        self,
        event: anyio.Event,
        until: float | None,
        activity: Callable[[], Activity],
        *,
        by: float | None = None,
        lazily: float | None = None,
    ) -> None:
        if until is None or until > self._at:
            await event.wait()
        else:
            await anyio.lowlevel.checkpoint()

    async def beat(self, seconds: float, fn: Callable[[], Awaitable[None]]) -> NoReturn:
        await anyio.sleep_forever()
        raise AssertionError("for ever has an end")

    def life(self, worker: str) -> AbstractContextManager[None]:
        return nullcontext()

    def is_alive(self, worker: str) -> bool:
        return True

    def timeout(self, seconds: float) -> AbstractContextManager[Timeout]:
        raise AssertionError("nothing is called")


async def _replay(
    flow: Workflow[Any, Any],
    instance_id: str,
    rows: Rows,
    codec: Wrappers | None,
    max_value_bytes: int,
    handlers: KnownHandlers,
) -> tuple[str, str] | None:
    """Replay an instance in memory; return what keeps it from going on, or None."""
    keys = InstanceKeys(instance_id)
    found = _rows_in(keys, rows)
    head, status = found.head, found.status
    # A stuck instance that had failed before that became stuck during its rollback.
    undoing = status is Status.ROLLING_BACK or found.result.original is not None
    driver = await open_driver("memory://")
    copied: list[Write] = [Set(key, value) for key, value in rows]
    copied.append(Clear(keys.lease))
    again = Status.ROLLING_BACK if undoing else Status.RUNNING
    head = replace(head, status=again, cancelled=head.cancelled and undoing)
    copied.append(Set(keys.field(Field.HEAD), head.pack()))
    if not undoing:
        copied.append(Clear(keys.field(Field.RESULT)))
    await apply(driver, write(copied))
    # The clock stands still at the last write of the instance, so no timer fires. But compensations that wait for
    # their next attempt are looked at now.
    at = head.changed_at + (LATER_SECONDS if undoing else 0.0)
    recorded = await join_output(driver, keys, found.result)
    token = probe.set(_Dry())
    try:
        result = await run_workflow(
            flow,
            driver=driver,
            instance_id=instance_id,
            clock=_Stopped(at),
            codec=codec,
            max_value_bytes=max_value_bytes,
            handlers=handlers,
        )
        output = await join_output(driver, keys, (await read_about(driver, keys)).result)
    except SealedError as error:
        return "failure", f"it would not be run: {error}"
    finally:
        probe.reset(token)
        await driver.aclose()
    gone = _gone(rows, keys, handlers) if not status.is_terminal else None
    if gone is not None:
        return "definition", gone
    values = Codec(max_value_bytes=max_value_bytes, wrapper=codec)
    same = _same_output(values, output, recorded)
    return _problem(result, status, undoing, is_same=same)


def _gone(rows: Rows, keys: InstanceKeys, known: KnownHandlers) -> str | None:
    """The error of a handler that is recorded by name and that this code does not have; None if there is none."""
    begin, end = keys.range(COMPENSATIONS)
    for key, raw in rows:
        if begin <= key < end:
            compensation = Compensation.unpack(0, raw)
            if compensation.handler is not None and compensation.progress is not Progress.DONE:
                try:
                    find_handler(known, compensation.handler)
                except HistoryDivergedError as error:
                    return str(error)
    return None


def _same_output(codec: Codec, output: bytes | None, recorded: bytes | None) -> bool:
    """Whether two outputs are the same value. Their bytes may differ: encryption gives others each time."""
    if output is None or recorded is None:
        return output is recorded
    return codec.is_same(output, recorded)


def _problem(result: RunResult[Any], status: Status, undoing: bool, *, is_same: bool) -> tuple[str, str] | None:
    """The kind of problem and its message, from the outcome of a replay; None if there is no problem.

    `status`: what the instance has in the store. `undoing`: it is being rolled back, and so is to fail.
    """
    error = result.error
    if error is not None:
        if result.status is Status.STUCK:
            return ("divergence" if is_divergence(error) else "definition"), error.message
        if result.status in _FAILED and not undoing and status not in _FAILED:
            return "failure", f"it would fail now: {error}"
    if status is Status.COMPLETED and (result.status is not Status.COMPLETED or not is_same):
        return "output", "it has completed, and would not end with the same output now"
    return None
