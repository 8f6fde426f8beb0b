"""Making another manifest the active one, while nothing is under way under the one before.

Nobody is kept waiting for that. The row of the active manifest is marked, then the store is looked at, and the other
manifest is stored only if the mark is still there. Whoever begins something meanwhile takes the mark back in the same
commit, as `emitting.under` says, and then it is looked again.

What is not bound to the manifest goes on all the same: effects are settled, cells are claimed and released. That makes
no difference to what is found, since an effect is looked for before the inbox that its receipt would go to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from workflow_sdk.changes.apply import apply as apply_change
from workflow_sdk.changes.apply import side_by_side
from workflow_sdk.changes.change import Draw, Get, Steps, change
from workflow_sdk.driver import Driver, Set, Write
from workflow_sdk.errors import ApplyBlockedError, DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.describing import descriptions
from workflow_sdk.machines.effects import timer
from workflow_sdk.machines.emitting import active_row, make_active, unmarked
from workflow_sdk.machines.manifest import Manifest
from workflow_sdk.machines.rows import ACTIVE, ActiveRow, IntentRow, all_intents
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import INBOX, Field, InstanceKeys, all_by_workflow, last_of
from workflow_sdk.rows.wire import shown

Rows: TypeAlias = list[tuple[bytes, bytes]]

TRIES_MAX: Final = 64
"""How often the store is looked at again since something has begun meanwhile, and was over when it was looked at."""
PAGE: Final = 64
"""How many rows are read at once."""


@dataclass
class UnderWay:
    """What is under way in a store, by machine."""

    cells: Counter[str] = field(default_factory=Counter[str])
    intents: Counter[str] = field(default_factory=Counter[str])
    timers: Counter[str] = field(default_factory=Counter[str])
    queued: Counter[str] = field(default_factory=Counter[str])

    def blocks(self, *, allow_idle: bool, allow_timers: bool) -> bool:
        """Whether no other manifest may be applied."""
        idle = not self.cells or allow_idle
        return not idle or bool(self.intents or self.queued) or bool(self.timers and not allow_timers)

    def error(self, *, allow_idle: bool, allow_timers: bool) -> ApplyBlockedError:
        """What is in the way, as an error."""
        found: list[str] = [
            *(() if allow_idle else _said(self.cells, "cell has not ended", "cells have not ended")),
            *_said(self.intents, "effect is in flight", "effects are in flight"),
            *(() if allow_timers else _said(self.timers, "timer is pending", "timers are pending")),
            *_said(self.queued, "message is queued", "messages are queued"),
        ]
        why = "; ".join(found) or "something new was under way whenever it was tried"
        return ApplyBlockedError(
            f"the manifest was not applied, since there is something under way under the active one: {why}",
            cells=self.cells.total(),
            intents=self.intents.total(),
            timers=self.timers.total(),
            queued=self.queued.total(),
        )


def _said(found: Counter[str], one: str, many: str) -> Iterator[str]:
    if found:
        by_machine = ", ".join(f"{name}: {found[name]}" for name in sorted(found))
        yield f"{found.total()} {one if found.total() == 1 else many} ({by_machine})"


async def apply(driver: Driver, manifest: Manifest, now: float, *, allow_idle: bool, allow_timers: bool) -> None:
    """Make a manifest the active one; ApplyBlockedError, if something is under way under another one."""
    if not isinstance(manifest, Manifest):
        raise DefinitionError(f"what is applied is a Manifest, not {shown(manifest)}")
    made, described = active_row(manifest, now), descriptions(manifest)
    found = UnderWay()
    for _ in range(TRIES_MAX):
        marked = await apply_change(driver, mark(manifest.hash, made, described))
        if marked is None:
            return
        found = await look(driver, {*machines_of(ActiveRow.unpack(marked)), *manifest.machines})
        if found.blocks(allow_idle=allow_idle, allow_timers=allow_timers):
            await apply_change(driver, take_mark_back(marked))
            break
        if await apply_change(driver, replace_active(marked, made, described)):
            return
    raise found.error(allow_idle=allow_idle, allow_timers=allow_timers)


def machines_of(active: ActiveRow) -> list[str]:
    """The machines of the active manifest, by name. Their code may not be known here."""
    data: dict[str, Any] = canonical.restored(active.data)
    return [str(one["name"]) for one in data["machines"]]


@change
def mark(hash: str, made: bytes, described: Sequence[Write]) -> Steps[bytes | None]:
    """Mark the row of the active manifest, and return it; None if this one is active, as in a store without any now."""
    raw = yield Get(ACTIVE)
    if raw is None:
        yield from make_active(made, described)
        return None
    row = ActiveRow.unpack(raw)
    if row.hash == hash:
        return None
    word: int = yield Draw(1 << 128)
    marked = replace(row, judged=f"{word:032x}").pack()
    yield Set(ACTIVE, marked)
    return marked


@change
def take_mark_back(marked: bytes) -> Steps[None]:
    """Have the active manifest as it was before it was marked."""
    if (yield Get(ACTIVE)) == marked:
        yield Set(ACTIVE, unmarked(marked)[1])


@change
def replace_active(marked: bytes, made: bytes, described: Sequence[Write]) -> Steps[bool]:
    """Make another manifest the active one; False if the mark is not there any more."""
    if (yield Get(ACTIVE)) != marked:
        return False
    yield from make_active(made, described)
    return True


async def look(driver: Driver, machines: Iterable[str]) -> UnderWay:
    """What is under way: effects of whomever, and cells of these machines."""
    found = UnderWay()

    async def count_intents(rows: Rows) -> None:
        for _, raw in rows:
            intent = IntentRow.unpack(raw)
            (found.timers if intent.effect == timer.name else found.intents)[intent.machine] += 1

    async def count_cells(name: str, rows: Rows) -> None:
        queued = await side_by_side([partial(_queued, driver, InstanceKeys(last_of(key))) for key, _ in rows])
        live = [count for count in queued if count is not None]
        found.cells[name] += len(live)
        found.queued[name] += sum(live)

    # Effects first: a receipt that comes meanwhile is found in the inbox.
    await _each_page(driver, *all_intents(), count_intents)
    for name in sorted(machines):
        # By machine, and not by status: while the list is read, cells go from one status to another.
        await _each_page(driver, *all_by_workflow(name), partial(count_cells, name))
    found.cells, found.queued = +found.cells, +found.queued
    return found


async def _queued(driver: Driver, keys: InstanceKeys) -> int | None:
    """How many messages lie in the inbox of a cell; None if it has ended, or is gone."""
    raw = await driver.get(keys.field(Field.HEAD))
    if raw is None or Head.unpack(raw).status.is_terminal:
        return None
    count = 0

    async def add(rows: Rows) -> None:
        nonlocal count
        count += len(rows)

    await _each_page(driver, *keys.range(INBOX), add)
    return count


async def _each_page(driver: Driver, begin: bytes, end: bytes, do: Callable[[Rows], Awaitable[None]]) -> None:
    """Read the rows of a range, a page at a time."""
    while rows := await driver.scan(begin, end, limit=PAGE):
        await do(rows)
        if len(rows) < PAGE:
            return
        begin = rows[-1][0] + b"\x00"
