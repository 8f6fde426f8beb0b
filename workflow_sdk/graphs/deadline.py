"""The time that the code of a firing has, waits of its operations included: it goes on while the instance is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from workflow_sdk.operations.calling import is_failure_of_scope
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.types import Unwound, Wait, Waiter
from workflow_sdk.operations.waiting import wait_for


class Deadline:
    """Runs a body until a time. When that is over, the body is cancelled, and does nothing any more."""

    def __init__(self, who: Waiter, engine: Engine, scope: Scope, until: float, since: int) -> None:
        """`since`: the version of the instance that began to wait for it."""
        self._who = who
        self._engine = engine
        self._scope = scope
        self._until = until
        self._since = since
        self._limit = anyio.CancelScope()
        self._has_begun = False
        self._is_over = False
        self.value: Any = None
        self._failure: BaseException | None = None

    async def run(self, body: Callable[[], Awaitable[Any]]) -> bool:
        """Run the body; whether it has ended in time. Raises what it has raised."""
        scope, waits = self._scope, self._engine.parking.waits
        around = scope.race
        # Once the time is over, it does nothing any more, as if it had lost a race.
        scope.race = around.branch()
        waits.active += 1
        waits.unbegun += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._expire)
                await self._call(body)
                group.cancel_scope.cancel()
        finally:
            if around.within is not None:
                around.within.discard(scope.race)
            if not self._has_begun:
                waits.active -= 1
                waits.unbegun -= 1
        scope.race = around
        if around.lost or self._engine.life.halted:
            await self._engine.life.never()
        if self._is_over:
            if self._failure is not None:
                raise self._failure
            return True
        scope.forgotten()
        return False

    async def _call(self, body: Callable[[], Awaitable[Any]]) -> None:
        with self._limit:
            try:
                self.value = await body()
            except BaseException as error:
                if isinstance(error, Unwound) and self._scope.race.lost:
                    return
                if not is_failure_of_scope(error, self._engine.life, is_own_task=True):
                    raise
                # Raised once the timer is gone: a task group would put it into a group of errors.
                self._failure = error
            self._is_over = not self._scope.race.lost

    async def _expire(self) -> None:
        """Wait for the time, and end the body."""
        self._has_begun = True
        self._engine.parking.waits.unbegun -= 1
        try:
            await wait_for(self._engine, Wait(self._who, "timer", self._until, since=self._since))
            if not self._is_over:
                self._scope.race.lose()
                self._limit.cancel()
                # Until the body has counted itself as active again: else the instance would be taken to wait.
                await anyio.sleep_forever()
        finally:
            self._engine.parking.rest()
