"""The report of `crash_everywhere`, as data and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, cast

from workflow_sdk import History, HistoryEntry, InstanceInfo, Kind, Status
from workflow_sdk.errors import ErrorInfo
from workflow_sdk.instance.unwinding import UNDO
from workflow_sdk.rows.location import escape

__all__ = ["CrashReport", "CrashRun", "Ending", "Side", "differences", "is_over"]

Side: TypeAlias = Literal["before", "after"]

WIDTH = 60
"""The width of a cell of the table, and of each of two histories that are printed side by side."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and all that is recorded of it."""

    info: InstanceInfo
    history: History
    inbox: tuple[str, ...] = ()
    """The names of the messages that nobody took."""
    sent: int = 0
    """How many messages of the script were sent."""
    others: tuple[tuple[str, str, str], ...] = ()
    """The ids of the other instances, after that of this one; their status, and what they returned."""

    def __str__(self) -> str:
        status = self.info.status.value
        if self.info.error is not None:
            return f"{status}: {self.info.error}"
        if self.info.waits:
            return f"{status} for {', '.join(sorted({wait.message or wait.name for wait in self.info.waits}))}"
        return f"{status}: {self.info.output!r}" if self.info.status.is_terminal else status


@dataclass(frozen=True, slots=True)
class CrashRun:
    """A run that was killed at a commit and started again."""

    commit: int
    side: Side
    crashed: bool
    """Whether the run came to that commit."""
    then: History | None
    """The history when it was killed; None if the instance had not been stored yet."""
    ran_again: tuple[str, ...]
    """The paths whose code was called before the crash and after it."""
    problems: tuple[str, ...]
    """How it differs from a run without a crash."""
    ending: Ending


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The runs of a workflow that was killed at every commit. `str` of it is a table."""

    workflow: str
    commits: int
    clean: Ending
    """How it ends without a crash."""
    runs: tuple[CrashRun, ...]
    problems: tuple[str, ...] = ()
    """How two runs without a crash differ."""
    again: Ending | None = None
    """How the second of these ended."""

    @property
    def ok(self) -> bool:
        """Whether all runs ended the same. A workflow that is stuck has not ended."""
        return not self.problems and not self.failed and self.clean.info.status is not Status.STUCK

    @property
    def failed(self) -> tuple[CrashRun, ...]:
        """The runs that ended differently."""
        return tuple(run for run in self.runs if run.problems)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.problems:
            yield f"{self.workflow} ends differently without any crash: {self.problems[0]}"
            yield "What its steps do has to come to the same every time; `reset` brings fakes back to where they began."
            yield "Nor may it keep anything in memory over a wait that is not recorded, nor depend on the order of a"
            yield "set, on a clock but ctx.now(), or on chance but ctx.random: each run is as if in another process."
            if self.again is not None:
                yield from _side_by_side("one run", self.clean.history, "another", self.again.history)
            return
        if self.clean.info.status is Status.STUCK:
            yield f"{self.workflow} is stuck without any crash: {self.clean.info.error}"
            yield from str(self.clean.history).splitlines()
            return
        crashes, failed = len(self.runs), len(self.failed)
        yield f"{self.workflow}: {_count(self.commits, 'commit')}, killed {_count(crashes, 'time')}"
        yield f"without a crash: {_short(str(self.clean), 2 * WIDTH)}"
        yield f"{failed} of {crashes} end differently" if failed else "every one of them ends the same"
        yield ""
        yield from self._table()
        if failed:
            smallest = min(self.failed, key=lambda run: (len(run.ending.history), run.commit))
            name = f"killed {smallest.side} commit {smallest.commit}"
            yield ""
            yield f"{name}:"
            yield from (f"  - {problem}" for problem in smallest.problems)
            yield ""
            yield from _side_by_side("without a crash", self.clean.history, name, smallest.ending.history)

    def _table(self) -> Iterator[str]:
        rows = [("commit", "stores", "killed before", "killed after")]
        by_place = {(run.commit, run.side): run for run in self.runs}
        for number in sorted({run.commit for run in self.runs}):
            before, after = by_place.get((number, "before")), by_place.get((number, "after"))
            rows.append((str(number), _stored(before, after), _word(before), _word(after)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            first = row[0].rjust(widths[0])
            rest = (cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            yield "  ".join([first, *rest]).rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(text: str, width: int = WIDTH) -> str:
    return _cut(" ".join(text.split()), width)


def _cut(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _finished(history: History | None) -> dict[str, None]:
    entries = {} if history is None else {entry.path: None for entry in history if entry.status.is_final}
    undone = [] if history is None else [item.path for item in history.compensations if item.progress == "done"]
    return entries | {f"{UNDO}{path}": None for path in undone}


def _stored(before: CrashRun | None, after: CrashRun | None) -> str:
    """What a commit has stored: how the histories differ if it is killed just before and just after."""
    if before is None or after is None or not after.crashed:
        return ""
    new = [path for path in _finished(after.then) if path not in _finished(before.then)]
    if new:
        return _short(", ".join(new))
    if before.then is None:
        return "the start"
    if after.then is not None and after.then.status is not before.then.status:
        return after.then.status.value
    return ""


def _word(run: CrashRun | None) -> str:
    if run is None:
        return ""
    if run.problems:
        return f"DIFFERS: {_short(run.problems[0])}"
    if not run.crashed:
        return "did not come to it"
    return f"same; ran again: {_short(', '.join(run.ran_again))}" if run.ran_again else "same"


def differences(clean: Ending, other: Ending) -> list[str]:
    """How an ending differs from the one without a crash."""
    found: list[str] = []

    def compare(what: str, expected: object, seen: object) -> None:
        if not _same(expected, seen):
            found.append(f"{what} {seen!r:.400}, not {expected!r:.400}")

    compare("the status is", clean.info.status.value, other.info.status.value)
    compare("the output is", clean.info.output, other.info.output)
    compare("the error is", _error(clean.info.error), _error(other.info.error))
    compare("it waits for", _waits(clean.info), _waits(other.info))
    compare("of the messages are left:", clean.inbox, other.inbox)
    compare("of the messages were sent:", clean.sent, other.sent)
    compare("the other instances are", clean.others, other.others)
    expected, seen = _record(clean.history), _record(other.history)
    for path in sorted(expected.keys() | seen.keys()):
        compare(f"{path!r} is recorded as", expected.get(path), seen.get(path))
    compare("to be undone is", _undone(clean.history), _undone(other.history))
    return found


def is_over(path: str, history: History | None) -> bool:
    """Whether the outcome of an operation was committed, or that of something around it."""
    if history is None:
        return False
    if path.startswith(UNDO):
        undone = path.removeprefix(UNDO)
        return any(item.path == undone and item.progress == "done" for item in history.compensations)
    return any(
        (place in history and history[place].status.is_final)
        or (part.startswith("~") and _is_pruned(history, place, part))
        for place, part in [(path, ""), *_around(path)]
    )


def _around(path: str) -> Iterator[tuple[str, str]]:
    """All that is around an operation, from the inside outwards, each with the part of the path that leads into it."""
    while path:
        path, _, part = path.rpartition("/")
        yield path, part


def _is_pruned(history: History, loop: str, turn: str) -> bool:
    """Whether a turn of a loop, such as `~3`, came before all turns that are still in the history."""
    if loop not in history:
        return False
    kept = [child.path[len(loop) + 2 :].partition("/")[0] for child in history[loop].children]
    return bool(kept) and int(turn[1:]) < min(map(int, kept))


def _error(error: ErrorInfo | None) -> tuple[object, ...] | None:
    return None if error is None else (error.type, error.message, error.kind, error.attributes)


def _waits(info: InstanceInfo) -> list[tuple[str, str, str | None]]:
    return sorted((wait.kind, wait.path, wait.message or "") for wait in info.waits)


def _record(history: History) -> dict[str, tuple[Any, ...]]:
    names = _numbered_anew(history)
    return {names(entry.path): _recorded(entry) for entry in history}


def _recorded(entry: HistoryEntry) -> tuple[Any, ...]:
    return entry.kind.value, entry.status.value, entry.value, _error(entry.error)


def _numbered_anew(history: History) -> Callable[[str], str]:
    """The paths in which the firings of a step are numbered by what they came to: they begin in any order."""
    steps: dict[str, list[HistoryEntry]] = {}
    for entry in history:
        if entry.kind is Kind.FIRING:
            steps.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    anew = {
        entry.path: f"{step}/~{number}"
        for step, entries in steps.items()
        for number, entry in enumerate(sorted(entries, key=lambda one: repr([_recorded(one), _below(one)])))
    }

    def name(path: str) -> str:
        firing = next((place for place in (path, *(place for place, _ in _around(path))) if place in anew), None)
        return path if firing is None else anew[firing] + path[len(firing) :]

    return name


def _below(entry: HistoryEntry) -> list[Any]:
    """What is recorded inside of an entry."""
    return [(child.name, _recorded(child), _below(child)) for child in entry.children]


def _undone(history: History) -> list[tuple[str, str]]:
    # Sorted, since branches end in any order. Without what lost a race: how far that came is chance.
    names = _numbered_anew(history)
    found = [(item.path, item.progress) for item in history.compensations if not _has_lost(item.path, history)]
    return sorted((names(path), progress) for path, progress in found)


def _has_lost(path: str, history: History) -> bool:
    for race, branch in _around(path):
        if race in history and history[race].kind is Kind.RACE:
            # Of a race that was won, the value is the winner's, under its name.
            won: Any = history[race].value
            if type(won) is dict and branch not in [escape(str(name)) for name in cast("dict[object, object]", won)]:
                return True
    return False


def _same(one: object, other: object) -> bool:
    # What is not equal to itself, a NaN somewhere inside, is the same if it is written the same.
    return one == other or repr(one) == repr(other)


def _side_by_side(left: str, one: History, right: str, other: History) -> Iterator[str]:
    yield f"  {left.ljust(WIDTH)}  {right}"
    if str(one) == str(other):
        yield "  (the histories are the same)"
    for a, b in zip_longest(str(one).splitlines(), str(other).splitlines(), fillvalue=""):
        yield f"{' ' if a == b else '!'} {_cut(a).ljust(WIDTH)}  {_cut(b)}".rstrip()
