"""The model: what a program must come to. It knows nothing of the engine.

Blocks are gone through one after the other, each operation at its own virtual time; branches are looked at one by one,
as if each were alone, which is what they are to each other. What a branch would have done after its race was won is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from tests.laws.model.programs import (
    ALWAYS,
    Attempt,
    Block,
    Checkpoint,
    Facts,
    Join,
    Listen,
    Loop,
    Map,
    NewMessage,
    Op,
    Program,
    Race,
    Raise,
    Sleep,
    Step,
    Undo,
    Version,
    branch_pool,
    name_of,
)

__all__ = ["Ambiguous", "Earned", "Expected", "Row", "Told", "expected", "waits_after"]

MARGIN = 20.0
"""Seconds: what is closer together may come in either order."""

Told = tuple[Any, ...]
"""A failure as data: the name of its class, and what it says."""

Place = tuple[tuple[bool, int], ...]
"""Where something happens: on each level, whether the parts there follow each other, and which of them it is."""


class Ambiguous(Exception):
    """There is more than one right outcome."""


@dataclass(frozen=True)
class Row:
    """An entry of the record."""

    kind: str
    status: str
    value: Any = None
    error: str | None = None
    attempts: int = 1
    attempts_vary: bool = False
    """After a crash there may be fewer: what is tried again at once leaves no trace in the time."""


@dataclass(frozen=True)
class Earned:
    """Something to undo, or (without an `undo`) a point of no return."""

    at: float
    place: Place
    path: str
    undo: Undo | None

    def is_before(self, other: Earned) -> bool:
        """Whether it must have come first."""
        for (in_order, mine), (_, theirs) in zip(self.place, other.place, strict=False):
            if mine != theirs:
                return (in_order and mine < theirs) or self.at < other.at - MARGIN
        return False


@dataclass
class Trace:
    """What a part of the program leaves behind."""

    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    earned: list[Earned] = field(default_factory=list[Earned])
    taken: list[tuple[int, NewMessage]] = field(default_factory=list[tuple[int, NewMessage]])
    spent: dict[int, float] = field(default_factory=dict[int, float])
    """The messages that were taken in turns which are forgotten, and since when: they are not given back."""


@dataclass(frozen=True)
class End:
    """How a part of the program ends, and when; at `inf` if never."""

    at: float
    value: Any = None
    failure: Told | None = None


@dataclass(frozen=True)
class Scope:
    """Where a block stands."""

    path: str = ""
    where: str = ""
    pool: str = "m"
    place: Place = ()
    turn: int | None = None


@dataclass(frozen=True)
class Expected:
    """The right outcome."""

    status: str
    at: float
    output: Any
    failure: Told | None
    rows: dict[str, Row]
    earned: list[Earned]
    """What is to be undone if it fails."""
    unread: list[int]
    """The payloads of the messages that nobody takes, in order."""

    def stops_at(self) -> list[str]:
        """The paths of the steps whose undoing fails for good: the first of them ends it."""
        return [item.path for item in self.earned if item.undo is not None and item.undo.fails == ALWAYS]

    def check_order(self, undone: list[str]) -> None:
        """Newest first: nothing is undone after what it must have come after."""
        by_path = {item.path: item for item in self.earned}
        order = [by_path[path] for path in undone]
        for index, newer in enumerate(order):
            for older in order[index + 1 :]:
                assert not newer.is_before(older), f"{newer.path} was undone before {older.path}"

    def check_prefix(self, undone: list[str]) -> None:
        """What was undone until one could not be, the last: all that is newer than that, and nothing older."""
        self.check_order(undone)
        by_path = {item.path: item for item in self.earned}
        last = by_path[undone[-1]]
        newer = {item.path for item in self.earned if last.is_before(item)}
        assert newer <= set(undone), f"{newer - set(undone)} must be undone before {last.path}"


def escaped(name: str) -> str:
    """A name in a path."""
    return "".join(f"%{ord(c):02X}" if c in "/~%\t" else c for c in name)


def below(path: str, name: str) -> str:
    """A path and one name more."""
    return f"{path}/{escaped(name)}" if path else escaped(name)


def shown(told: Told) -> str:
    """The class that the record names: of a step's failure, what the step itself raised."""
    return str(told[3]) if told[0] in ("StepExhaustedError", "StepCriticalError") else str(told[0])


RAISED = {
    "plain": "Trouble",
    "fatal": "Fatal",
    "critical": "CriticalError",
    "rollback": "RollbackError",
    "panic": "Panic",
    "exit": "SystemExit",
}
"""What a step raises."""
RAISED_BY_CODE = {"trouble": "Trouble", "rollback": "RollbackError", "panic": "Panic"}
"""What the code of the workflow raises."""


def from_within(failure: Told, what: str) -> Told:
    """What the code around a block sees of its failure: always an Exception."""
    return ("CriticalError", f"{what} raised Panic: {failure[1]}") if failure[0] == "Panic" else failure


def waits_after(step: Step, attempt: int) -> int:
    """Seconds from the failure of an attempt (from 1 on) to the next."""
    return min(step.delay << (attempt - 1), step.delay * 4)


class Model:
    """Goes through one program."""

    def __init__(self, program: Program) -> None:
        self.inbox: dict[int, NewMessage] = dict(enumerate(program.notes))

    def block(self, block: Block, scope: Scope, at: float, trace: Trace) -> End:
        values: list[Any] = []
        derived: dict[str, int] = {}
        for index, op in enumerate(block):
            name = name_of(op, index, scope.turn)
            if isinstance(op.node, Step) and op.node.derived:
                fn = "work_in_thread" if op.node.threaded else "work"
                count = derived[fn] = derived.get(fn, -1) + 1
                name = f"{fn}:{count}" if count else fn
            end = self.op(op, index, name, scope, at, trace)
            if end.failure is not None and self.catches(op, end.failure):
                end = End(end.at, ("caught", end.failure))
            if end.failure is not None or end.at == inf:
                return end
            values.append(end.value)
            at = end.at
        return End(at, values)

    @staticmethod
    def catches(op: Op, failure: Told) -> bool:
        if op.catch == "failures":
            return failure[0] not in ("Trouble", "RollbackError", "CriticalError", "Panic")
        return op.catch == "everything" and failure[0] != "Panic"

    def op(self, op: Op, index: int, name: str, scope: Scope, at: float, trace: Trace) -> End:
        path = below(scope.path, name)
        where = f"{scope.where}{index}"
        here = Scope(path, f"{where}.", scope.pool, (*scope.place, (True, index)), scope.turn)
        match op.node:
            case Step():
                return self.step(op.node, here, at, trace)
            case Sleep(seconds):
                trace.rows[path] = Row("sleep", "completed")
                return End(at + seconds)
            case Listen():
                return self.listen(op.node, here, at, trace)
            case Version(latest):
                trace.rows[path] = Row("version", "completed", latest)
                return End(at, latest)
            case Checkpoint():
                trace.rows[path] = Row("checkpoint", "completed")
                trace.earned.append(Earned(at, here.place, path, None))
                return End(at)
            case Facts():
                return End(at, "facts")
            case Raise(error):
                return End(at, None, (RAISED_BY_CODE[error], f"raised in {scope.path}"))
            case Loop():
                return self.loop(op.node, here, at, trace)
            case Attempt(body):
                return self.attempt(body, here, at, trace)
            case Join(branches, limit):
                labels = ["abc"[number] for number in range(len(branches))]
                return self.join("join", labels, branches, limit, here, where, at, trace)
            case Map(body, items, limit):
                labels = [str(number) for number in range(items)]
                return self.join("map", labels, [body] * items, limit, here, where, at, trace)
            case Race(branches):
                return self.race(branches, here, where, at, trace)

    def step(self, step: Step, here: Scope, at: float, trace: Trace) -> End:
        attempts = 1
        kind = "transact" if step.transact else "step"
        while attempts <= step.fails:
            if step.error != "plain" or attempts > step.retries:
                names = {"plain": "StepExhaustedError", "rollback": "RollbackError"}
                error = names.get(step.error, "StepCriticalError")
                raised = RAISED[step.error]
                trace.rows[here.path] = Row(kind, "failed", None, raised, attempts)
                if error == "RollbackError":
                    return End(at, None, (error, f"failed at {here.path}"))
                return End(at, None, (error, here.path, attempts, raised))
            at += waits_after(step, attempts)
            attempts += 1
        value = [here.path, step.value]
        trace.rows[here.path] = Row(kind, "completed", value, None, attempts, attempts > 1 and step.delay == 0)
        if step.undo is not None:
            trace.earned.append(Earned(at, here.place, here.path, step.undo))
        return End(at, value)

    def listen(self, node: Listen, here: Scope, at: float, trace: Trace) -> End:
        names = {f"{here.pool}:{number}" for number in node.messages}
        found = sorted((note.at, number) for number, note in self.inbox.items() if note.name in names)
        deadline = inf if node.timeout is None else at + node.timeout
        if any(abs(sent - deadline) < MARGIN for sent, _ in found):
            raise Ambiguous
        found = [item for item in found if item[0] <= deadline][: node.count]
        in_time = len(found) == node.count
        at = max(at, found[-1][0]) if in_time else deadline
        if at == inf:
            return End(inf)
        if node.count == 1 and not in_time:
            if node.default:
                trace.rows[here.path] = Row("listen", "completed", "default")
                return End(at, "default")
            trace.rows[here.path] = Row("listen", "failed", None, "ListenTimeoutError")
            return End(at, None, ("ListenTimeoutError", here.path))
        taken = [(number, self.inbox.pop(number)) for _, number in found]
        trace.taken += taken
        payloads = [note.payload for _, note in taken]
        value = payloads if node.count > 1 else payloads[0]
        trace.rows[here.path] = Row("listen", "completed", value)
        return End(at, value)

    def loop(self, node: Loop, here: Scope, at: float, trace: Trace) -> End:
        seen: list[Any] = []
        keep = node.interval if node.keep is None else node.keep
        over = 0
        end = End(at)
        taken_by_turn: list[range] = []

        def forget(turns: int, at: float) -> None:
            for taken in taken_by_turn[: max(turns, 0)]:
                for number in taken:
                    trace.spent.setdefault(trace.taken[number][0], at)

        for turn in range(node.turns):
            taken_before = len(trace.taken)
            place = (*here.place, (True, turn))
            scope = Scope(f"{here.path}/~{turn}", here.where, here.pool, place, turn)
            end = self.block(node.body, scope, end.at, trace)
            if end.at == inf:
                return end
            if end.failure is not None:
                end = End(end.at, None, from_within(end.failure, f"turn {turn} of loop {here.path!r}"))
                break
            seen = [*seen[-1:], end.value]
            over += 1
            taken_by_turn.append(range(taken_before, len(trace.taken)))
            if over % node.interval == 0:
                forget(over - keep, end.at)
        forget(over - keep, end.at)
        for path in list(trace.rows):
            for turn in range(max(over - keep, 0)):
                if path.startswith(f"{here.path}/~{turn}/"):
                    trace.rows.pop(path, None)
        if end.failure is not None:
            trace.rows[here.path] = Row("loop", "failed", None, shown(end.failure))
            return end
        value = ["turns", over, seen]
        trace.rows[here.path] = Row("loop", "completed", value)
        return End(end.at, value)

    def attempt(self, body: Block, here: Scope, at: float, trace: Trace) -> End:
        end = self.block(body, here, at, trace)
        if end.at == inf:
            return end
        if end.failure is None:
            trace.rows[here.path] = Row("attempt", "completed", end.value)
            return End(end.at, ("success", end.value))
        end = End(end.at, None, from_within(end.failure, f"attempt {here.path!r}"))
        assert end.failure is not None, "it has failed"
        trace.rows[here.path] = Row("attempt", "failed", None, shown(end.failure))
        if end.failure[0] in ("Trouble", "RollbackError", "CriticalError"):
            return end
        return End(end.at, ("failure", end.failure))

    def branch(self, block: Block, number: int, label: str, here: Scope, where: str, at: float, trace: Trace) -> End:
        inner = f"{where}{'abc'[number]}"
        place = (*here.place, (False, number))
        path = f"{here.path}/{label}"
        scope = Scope(path, inner, branch_pool(here.pool, inner, number), place)
        end = self.block(block, scope, at, trace)
        if end.failure is not None:
            end = End(end.at, None, from_within(end.failure, f"branch {path!r}"))
        if end.at != inf:
            failed = end.failure is not None
            error = shown(end.failure) if end.failure is not None else None
            trace.rows[path] = Row("branch", "failed" if failed else "completed", end.value, error)
        return end

    def join(
        self,
        kind: str,
        labels: list[str],
        branches: Iterable[Block],
        limit: int | None,
        here: Scope,
        where: str,
        at: float,
        trace: Trace,
    ) -> End:
        free = [at] * (limit or max(len(labels), 1))
        heapify(free)
        ends: dict[str, End] = {}
        for number, (label, block) in enumerate(zip(labels, branches, strict=True)):
            begin = heappop(free)
            end = ends[label] = (
                End(inf) if begin == inf else self.branch(block, number, label, here, where, begin, trace)
            )
            heappush(free, end.at)
        last = max((end.at for end in ends.values()), default=at)
        if last == inf:
            return End(inf)
        failures = {label: end.failure for label, end in ends.items() if end.failure is not None}
        if failures:
            trace.rows[here.path] = Row(kind, "failed", None, "JoinError")
            unwinding = [failure for failure in failures.values() if failure[0] == "RollbackError"]
            return End(last, None, unwinding[0] if unwinding else ("JoinError", failures))
        values = {label: end.value for label, end in ends.items()}
        value = values if kind == "join" else list(values.values())
        trace.rows[here.path] = Row(kind, "completed", value)
        return End(last, value)

    def race(self, branches: tuple[Block, ...], here: Scope, where: str, at: float, trace: Trace) -> End:
        labels = ["abc"[number] for number in range(len(branches))]
        traces = {label: Trace() for label in labels}
        ends = {
            label: self.branch(block, number, label, here, where, at, traces[label])
            for number, (label, block) in enumerate(zip(labels, branches, strict=True))
        }
        decisive = sorted((end.at, label) for label, end in ends.items() if self.decides(end))
        if not decisive:
            for inner in traces.values():
                merge(trace, inner)
            failures = {label: end.failure for label, end in ends.items()}
            last = max(end.at for end in ends.values())
            if last < inf:
                trace.rows[here.path] = Row("race", "failed", None, "RaceError")
            return End(last, None, ("RaceError", failures) if last < inf else None)
        won, winner = decisive[0]
        if len(decisive) > 1 and decisive[1][0] < won + MARGIN:
            raise Ambiguous
        for label, inner in traces.items():
            if label == winner:
                merge(trace, inner)
                continue
            if any(abs(at - won) < MARGIN for at in inner.spent.values()):
                raise Ambiguous
            self.inbox.update(item for item in inner.taken if inner.spent.get(item[0], inf) > won)
            trace.earned += before(won, inner.earned)
        end = ends[winner]
        if end.failure is not None:
            trace.rows[here.path] = Row("race", "failed", None, "RollbackError")
            return end
        trace.rows[here.path] = Row("race", "completed", {winner: end.value})
        return End(won, ("won", winner, end.value))

    @staticmethod
    def decides(end: End) -> bool:
        return end.at < inf and (end.failure is None or end.failure[0] == "RollbackError")


def merge(trace: Trace, inner: Trace) -> None:
    """What a part leaves behind is left behind by the whole."""
    trace.rows.update(inner.rows)
    trace.earned += inner.earned
    trace.taken += inner.taken
    trace.spent |= inner.spent


def before(at: float, earned: list[Earned]) -> list[Earned]:
    """What was earned by that time."""
    if any(abs(item.at - at) < MARGIN for item in earned):
        raise Ambiguous
    return [item for item in earned if item.at < at]


def left(earned: list[Earned]) -> list[Earned]:
    """What no point of no return has come after."""
    points = [item for item in earned if item.undo is None]
    undos = [item for item in earned if item.undo is not None]
    for item in undos:
        if any(not item.is_before(point) and not point.is_before(item) for point in points):
            raise Ambiguous
    return [item for item in undos if not any(item.is_before(point) for point in points)]


def expected(program: Program) -> Expected:
    """The right outcome of a program. Ambiguous if there is none, or more than one."""
    model, trace = Model(program), Trace()
    end = model.block(program.body, Scope(), 0.0, trace)
    rows, earned = trace.rows, trace.earned
    cancel = program.cancel
    if cancel is not None:
        if end.at < cancel.at + MARGIN:
            raise Ambiguous
        earned, rows = left(before(cancel.at, earned) if cancel.at else []), {}
        status = "cancelled"
    elif end.at == inf:
        raise Ambiguous
    else:
        earned = left(earned)
        status = "completed" if end.failure is None else "rolled_back" if earned else "failed"
    unwinds = status == "rolled_back" or (cancel is not None and cancel.rollback)
    if unwinds and any(item.undo is not None and item.undo.fails == ALWAYS for item in earned):
        status = "stuck"
    if any(note.at and abs(note.at - end.at) < MARGIN for note in program.notes):
        raise Ambiguous
    unread = [note.payload for _, note in sorted(model.inbox.items()) if note.at < end.at or not note.at]
    return Expected(status, end.at, end.value, end.failure, rows, earned, unread)
