"""The workflows, on Temporal: activities, and a worker in the same process as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from tests.benchmarks.peers.measuring import Setting, Step

__all__ = [
    "Answering",
    "Joining",
    "Local",
    "Resumable",
    "Sequential",
    "Waiting",
    "connected",
    "step",
    "worker",
]

TIMEOUT = timedelta(minutes=1)
step = Step()


@activity.defn
async def nothing() -> int:
    """A step that costs nothing itself."""
    return await step()


@workflow.defn
class Sequential:
    """Steps, one after the other."""

    @workflow.run
    async def run(self, count: int) -> int:
        """Do them."""
        for _ in range(count):
            await workflow.execute_activity(nothing, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class Local:
    """Steps that the worker runs by itself: the server is told of many at once, and of none that a crash cuts off."""

    @workflow.run
    async def run(self, count: int) -> int:
        """Do them."""
        for _ in range(count):
            await workflow.execute_local_activity(nothing, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class Joining:
    """Steps side by side."""

    @workflow.run
    async def run(self, count: int) -> int:
        """Do them."""
        steps = [workflow.execute_activity(nothing, start_to_close_timeout=TIMEOUT) for _ in range(count)]
        return len(await asyncio.gather(*steps))


@workflow.defn
class Resumable:
    """Steps, and then a wait."""

    def __init__(self) -> None:
        self.done = 0

    @workflow.run
    async def run(self, count: int) -> int:
        """Do them."""
        for _ in range(count):
            await workflow.execute_activity(nothing, start_to_close_timeout=TIMEOUT)
            self.done += 1
        await workflow.sleep(timedelta(days=30))
        return count

    @workflow.query
    def steps_done(self) -> int:
        """How far it is."""
        return self.done


@workflow.defn
class Answering:
    """Answers what it is asked, until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = False

    @workflow.run
    async def run(self) -> None:
        """Be there."""
        await workflow.wait_condition(lambda: self.stopped)

    @workflow.update
    async def ask(self, number: int) -> int:
        """One question, and its answer."""
        return number

    @workflow.signal
    def stop(self) -> None:
        """No more questions."""
        self.stopped = True


@workflow.defn
class Waiting:
    """A step, and then a long wait."""

    def __init__(self) -> None:
        self.told = False

    @workflow.run
    async def run(self) -> None:
        """Do it."""
        await workflow.execute_activity(nothing, start_to_close_timeout=TIMEOUT)
        await workflow.wait_condition(lambda: self.told, timeout=timedelta(days=30))

    @workflow.signal
    def message(self) -> None:
        """End the wait."""
        self.told = True


def worker(client: Client, queue: str) -> Worker:
    """A worker with its default settings."""
    workflows = [Sequential, Local, Joining, Resumable, Answering, Waiting]
    return Worker(client, task_queue=queue, workflows=workflows, activities=[nothing])


@asynccontextmanager
async def connected(setting: Setting, queue: str) -> AsyncGenerator[Client]:
    """A client, with a worker beside it."""
    client = await Client.connect(setting.url)
    async with worker(client, queue):
        yield client
