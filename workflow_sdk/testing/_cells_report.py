"""The report of `crash_everywhere` of machines, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from workflow_sdk.machines import CellStatus, canonical
from workflow_sdk.testing.crash_report import WIDTH, Side

__all__ = ["CellCrashReport", "CellCrashRun", "CellEnding", "CellsEnding", "differences_of_cells"]

K = TypeVar("K")
V = TypeVar("V")
Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CellEnding:
    """What a cell has come to."""

    status: CellStatus
    state: bytes | None
    """Canonical bytes."""
    sequence: int
    revision: int
    inflight: tuple[str, ...]
    """The ids of the intents that it still waits for, in order."""
    queued: int
    """How many messages it has not taken."""

    def __str__(self) -> str:
        state = None if self.state is None else canonical.restored(self.state)
        return f"{self.status.value} after {self.sequence}: {state!r}"


@dataclass(frozen=True, slots=True)
class CellsEnding:
    """What all cells have come to, and what was done for them."""

    cells: Mapping[str, CellEnding]
    """By id: the machine, and the key behind a slash."""
    deleted: Mapping[str, int]
    """How far the counts of cells were that are deleted."""
    settled: Mapping[str, str]
    """The effects that were settled, by the ids of their intents."""
    open: Mapping[str, str]
    """The effects that are not."""
    rows: Mapping[Row, int]
    """How many rows of each kind are in the store: their keys, without what is by chance."""

    def __str__(self) -> str:
        statuses = [cell.status.value for cell in self.cells.values()]
        cells = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
        return f"{_count(len(self.cells), 'cell')}{f' ({cells})' if cells else ''}, {len(self.settled)} effects settled"


@dataclass(frozen=True, slots=True)
class CellCrashRun:
    """A run that was killed at a commit, after which a new process went on."""

    commit: int
    side: Side
    crashed: bool
    """Whether the run came to that commit."""
    ran_again: tuple[str, ...]
    """The effects whose executors were called before the crash and after it."""
    problems: tuple[str, ...]
    """How it differs from a run without a crash."""
    ending: CellsEnding


@dataclass(frozen=True, slots=True)
class CellCrashReport:
    """The runs of machines that were killed at every commit. `str` of it is a table."""

    machine: str
    """The names of the machines."""
    commits: int
    clean: CellsEnding
    """What there is after a run without a crash."""
    runs: tuple[CellCrashRun, ...]
    problems: tuple[str, ...] = ()
    """What is wrong without any crash: how two such runs differ."""
    stored: Mapping[int, tuple[str, ...]] | None = None
    """What each commit has stored, in words."""

    @property
    def ok(self) -> bool:
        """Whether all runs came to the same."""
        return not self.problems and not self.failed

    @property
    def failed(self) -> tuple[CellCrashRun, ...]:
        """The runs that came to something else."""
        return tuple(run for run in self.runs if run.problems)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.problems:
            yield f"{self.machine} comes to something else without any crash: {self.problems[0]}"
            yield "What its executors do has to come to the same every time; `reset` brings fakes back to where they"
            yield "began. Nor may a machine depend on which of several effects under way ends first, nor on a clock but"
            yield "ctx.now() or on chance but ctx.random."
            return
        crashes, failed = len(self.runs), len(self.failed)
        yield f"{self.machine}: {_count(self.commits, 'commit')}, killed {_count(crashes, 'time')}"
        yield f"without a crash: {self.clean}"
        yield f"{failed} of {crashes} come to something else" if failed else "every one of them comes to the same"
        yield ""
        yield from self._table()
        for run in self.failed[:1]:
            yield ""
            yield f"killed {run.side} commit {run.commit}:"
            yield from (f"  - {problem}" for problem in run.problems)

    def _table(self) -> Iterator[str]:
        by_place = {(run.commit, run.side): run for run in self.runs}
        rows = [("commit", "stores", "killed before", "killed after")]
        for number in sorted({run.commit for run in self.runs}):
            stored = ", ".join(dict.fromkeys((self.stored or {}).get(number, ())))
            before, after = by_place.get((number, "before")), by_place.get((number, "after"))
            rows.append((str(number), _short(stored), _word(before), _word(after)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            first = row[0].rjust(widths[0])
            rest = (cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            yield "  ".join([first, *rest]).rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _word(run: CellCrashRun | None) -> str:
    if run is None:
        return ""
    if run.problems:
        return f"DIFFERS: {_short(run.problems[0])}"
    if not run.crashed:
        return "did not come to it"
    return f"same; ran again: {_short(', '.join(run.ran_again))}" if run.ran_again else "same"


def differences_of_cells(clean: CellsEnding, other: CellsEnding) -> Iterator[str]:
    """How what a run has come to differs from that of the one without a crash."""
    for id, expected, seen in _differing(clean.cells, other.cells):
        if expected is None or seen is None:
            yield f"cell {id} is {'there' if expected is None else 'not there'}"
        else:
            yield f"cell {id} is {_told(seen)}, not {_told(expected)}"
    for id, before, after in _differing(clean.deleted, other.deleted):
        yield f"the count of the deleted cell {id} is {after}, not {before}"
    yield from _differing_effects("settled", clean.settled, other.settled)
    yield from _differing_effects("open", clean.open, other.open)
    for row, its, theirs in _differing(clean.rows, other.rows):
        yield f"the store has {_count(theirs or 0, 'row')} {row!r:.200}, not {its or 0}"


def _differing_effects(word: str, clean: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    for id, before, after in _differing(clean, other):
        yield f"{after or before} (intent {id}) is {'' if after else 'not '}{word}, unlike without a crash"


def _differing(clean: Mapping[K, V], other: Mapping[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
    for key in sorted(clean.keys() | other.keys(), key=repr):
        if clean.get(key) != other.get(key):
            yield key, clean.get(key), other.get(key)


def _told(cell: CellEnding) -> str:
    state = None if cell.state is None else canonical.restored(cell.state)
    facts = f"{cell.status.value}, sequence {cell.sequence}, revision {cell.revision}, {cell.queued} queued"
    return f"{facts}, {len(cell.inflight)} in flight, {state!r:.200}"
