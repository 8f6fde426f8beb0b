"""What every commit to a store of cells has to keep: a plain reference takes the same messages, one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from workflow_sdk.driver import Append, Batch, Clear, ClearRange, Driver, Set
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.machines import CellStatus, Machine, Manifest, canonical
from workflow_sdk.machines.cell import RECEIPT, CellData, CellMessage, Decision, decide
from workflow_sdk.machines.rows import IntentRow, cell_status
from workflow_sdk.machines.stepping import EventData, RefusedError
from workflow_sdk.rows.cells import CellState, SequenceRow, cell_key
from workflow_sdk.rows.instance import CellRow
from workflow_sdk.rows.keys import Field, InstanceKeys
from workflow_sdk.testing._cells_seen import ALL, Found, parts
from workflow_sdk.values import Codec

__all__ = ["Judge", "Judged"]

Told = tuple[str, str, bytes]
"""A message: the cell it goes to, its name, and its value."""


class Judge:
    """Looks at every commit, after it was made. What breaks a promise is in `broken`."""

    def __init__(self, manifest: Manifest) -> None:
        self.broken: list[str] = []
        self.cells: dict[str, CellData] = {}
        """By the reference."""
        self.recorded: dict[str, str] = {}
        """The effects that were asked for, by intent: the cell that did."""
        self.settled: Counter[str] = Counter()
        self.posted: Counter[tuple[str, str]] = Counter()
        """How often a message came to a cell, by what makes it unique."""
        self.taken: Counter[tuple[str, str]] = Counter()
        self.transitions = 0
        self._manifest = manifest
        self._codec = Codec()
        self._states: dict[str, bytes | None] = {}
        """As they are stored."""
        self._last: defaultdict[str, bytes] = defaultdict(bytes)
        """The place of the message that each cell took last."""

    def saw(self, batch: Batch) -> None:
        """Look at a commit."""
        told = [found for write in batch.writes if (found := self._told(write)) is not None]
        self.posted.update((id, _unique(name, value)) for id, name, value in told)
        self.broken += [f"{unique} came to {id} {n} times" for (id, unique), n in self.posted.items() if n > 1]
        begun = self._begun(batch)
        cleared = {write.key for write in batch.writes if isinstance(write, Clear)}
        takes = [(key, raw) for key, raw in batch.checks if key in cleared and _is_message(key)]
        self._settle(cleared)
        if len(takes) > 1:
            self.broken.append("a commit takes several messages")
        for key, raw in takes[:1]:
            assert raw is not None, "it was there"
            self._take(key, raw, batch, told, begun)
        if begun and not takes:
            self.broken.append(f"effects are asked for by no transition: {begun}")
        self.recorded |= begun

    def _told(self, write: object) -> Told | None:
        if not isinstance(write, Append):
            return None
        match parts(write.prefix):
            case (1, str(id), 3):
                message = InboxMessage.unpack(b"", write.value)
                return id, str(message.name), self._codec.unseal(message.payload)
            case _:
                return None

    def _begun(self, batch: Batch) -> dict[str, str]:
        found: dict[str, str] = {}
        for write in batch.writes:
            if isinstance(write, Set) and (key := parts(write.key))[:2] == (17, 1) and key[2] not in self.recorded:
                found[str(key[2])] = IntentRow.unpack(write.value).instance
        return found

    def _settle(self, cleared: Iterable[bytes]) -> None:
        for key in map(parts, cleared):
            if key[:2] == (17, 1):
                id = str(key[2])
                self.settled[id] += 1
                if self.settled[id] > 1 or id not in self.recorded:
                    self.broken.append(f"intent {id} is settled, and was already, or was never asked for")

    def _take(self, key: bytes, raw: bytes, batch: Batch, told: list[Told], begun: dict[str, str]) -> None:
        id = str(parts(key)[1])
        message = InboxMessage.unpack(b"", raw)
        name, value = str(message.name), self._codec.unseal(message.payload)
        if key <= self._last[id]:
            self.broken.append(f"{id} takes a message again, or out of order")
        self._last[id] = key
        self.taken[id, _unique(name, value)] += 1
        machine = self.machine_of(id)
        before = self.cells.get(id, CellData(_key_of(machine, id)))
        try:
            taken = CellMessage(EventData(name, value), message.sent_at)
            decision = decide(machine, before, taken, 0.0, self._manifest.hash)
        except RefusedError as error:
            self.broken.append(f"{id} takes what is refused: {error}")
            return
        self.transitions += decision.is_taken
        self.cells[id] = decision.cell
        self._compare(id, before, decision, batch)
        if [one.id for one in decision.begun] != list(begun):
            self.broken.append(f"{id} asks for {list(begun)}, and should for {[one.id for one in decision.begun]}")
        self._compare_told(id, before, decision, told)

    def _compare(self, id: str, before: CellData, decision: Decision, batch: Batch) -> None:
        keys, row, after, count = InstanceKeys(id), None, decision.cell, None
        for write in batch.writes:
            if isinstance(write, Set) and write.key == keys.field(Field.CELL):
                row = CellRow.unpack(write.value)
            elif isinstance(write, Set) and write.key == cell_key(keys):
                self._states[id] = self._codec.unseal(CellState.unpack(write.value).state)
            elif isinstance(write, Set) and parts(write.key)[:3] == (18, 2, id):
                count = SequenceRow.unpack(write.value).sequence
            elif (isinstance(write, Clear) and write.key == cell_key(keys)) or (
                isinstance(write, ClearRange) and write.begin <= cell_key(keys) < write.end
            ):
                self._states[id] = None
        if self._states.get(id) != after.state:
            self.broken.append(f"the state of {id} is {self._states.get(id)!r}, and should be {after.state!r}")
        counts = (row.sequence, row.revision) if row is not None else None
        if counts not in (None, (after.sequence, after.revision)) or (counts is None and after is not before):
            self.broken.append(f"the counts of {id} are {counts}, and should be {after.sequence}, {after.revision}")
        if count not in (None, after.sequence):
            self.broken.append(f"the count that stays of {id} is {count}, and should be {after.sequence}")

    def _compare_told(self, id: str, before: CellData, decision: Decision, told: list[Told]) -> None:
        wanted: list[Told] = []
        for event in decision.events:
            for machine, key in self._manifest.targets(event):
                target = machine.cell_id(key)
                found = before if target == id else self.cells.get(target)
                if found is None or not found.status.is_terminal:
                    wanted.append((target, event.schema, event.value))
        if told != wanted:
            self.broken.append(f"{id} tells {told}, and should tell {wanted}")

    def machine_of(self, id: str) -> Machine[Any]:
        """The machine of a cell."""
        return next(one for name, one in self._manifest.machines.items() if id == name or id.startswith(f"{name}/"))

    def calls(self, intent_id: str) -> None:
        """An executor is called."""
        if intent_id not in self.recorded:
            self.broken.append(f"intent {intent_id} is begun before it is recorded")

    async def judge_the_end(self, driver: Driver, sent: Iterable[tuple[str, str]]) -> None:
        """Nothing is under way any more. `sent`: what came from outside: the cell, and what makes it unique."""
        found = Found.among(await driver.scan(*ALL))
        for id, cell in self.cells.items():
            self._judge_cell(found, id, cell)
        for id, unique in sent:
            if not self.posted[id, unique] and not self._is_over(id):
                self.broken.append(f"{unique} never came to {id}")
        for id, unique in self.posted:
            status = cell_status(found.heads[id].status) if id in found.heads else None
            if not self.taken[id, unique] and not self._is_over(id) and status is not CellStatus.STUCK:
                self.broken.append(f"{id} has never taken {unique}")
        if left := self.recorded.keys() - self.settled.keys():
            self.broken.append(f"effects are never settled: {left}")
        assert self.broken == []

    def _judge_cell(self, found: Found, id: str, cell: CellData) -> None:
        if cell.state is None and id not in found.heads:
            if found.counts.get(id) != cell.sequence:
                self.broken.append(f"{id} is deleted, and counts {found.counts.get(id)}, not {cell.sequence}")
            return
        status = cell_status(found.heads[id].status)
        if status is CellStatus.STUCK:
            cell = replace(cell, status=status)
        row = found.cells.get(id)
        count = found.counts.get(id, 0) if row is None else row.sequence
        seen = (status, count, found.pending[id], bool(found.queued[id]))
        wanted = (cell.status, cell.sequence, set(cell.inflight), status is CellStatus.STUCK)
        if seen != wanted:
            self.broken.append(f"{id} has come to {seen}, and should have come to {wanted}")

    def _is_over(self, id: str) -> bool:
        return id in self.cells and self.cells[id].status.is_terminal


class Judged:
    """A driver under the eyes of a judge."""

    def __init__(self, driver: Driver, judge: Judge) -> None:
        self.driver = driver
        self._judge = judge

    async def commit(self, batch: Batch, /) -> None:
        # At once, and looked at at once: nobody comes in between.
        await self.driver.commit(batch)
        self._judge.saw(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


def _is_message(key: bytes) -> bool:
    return len(found := parts(key)) == 4 and found[0] == 1 and found[2] == 3


def _unique(name: str, value: bytes) -> str:
    """What makes a message unique: the intent that it is the answer to, or its tag."""
    data: dict[str, Any] = canonical.restored(value)
    return str(data["intent_id"] if name == RECEIPT else data["tag"])


def _key_of(machine: Machine[Any], id: str) -> bytes | None:
    return None if machine.key is None else machine.key.encode(id.removeprefix(f"{machine.name}/"))
