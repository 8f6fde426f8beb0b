"""Workflow programs as plain data, and how they are made at random.

A program is a block of operations, with other blocks in them, and the messages that are sent to it. Every operation has
a name that follows from its place, so that the model and the engine call it the same. Times are long, and differ by
chance, so that it hardly ever depends on the machine which of two things comes first; where two come too close, the
model says that it can't tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

__all__ = [
    "CANCELLED",
    "PROGRAMS",
    "Attempt",
    "Block",
    "Cancel",
    "Checkpoint",
    "Facts",
    "Join",
    "Listen",
    "Loop",
    "Map",
    "NewMessage",
    "Node",
    "Op",
    "Program",
    "Race",
    "Raise",
    "Sleep",
    "Step",
    "Undo",
    "Version",
    "branch_pool",
    "name_of",
]

ALWAYS = 99
"""So many failures are more than any step has attempts."""


@dataclass(frozen=True)
class Undo:
    """What undoes a step: whether it is found by its name, and how often it fails."""

    by_name: bool = True
    fails: int = 0


@dataclass(frozen=True)
class Step:
    """A step: how often it fails, and how; how long is waited after the first failure; what it gives in the end."""

    fails: int = 0
    retries: int = 0
    delay: int = 100
    error: Literal["plain", "fatal", "critical", "rollback", "panic", "exit"] = "plain"
    undo: Undo | None = None
    repeatable: bool = False
    threaded: bool = False
    derived: bool = False
    value: Any = None
    transact: bool = False
    """It is made in a transaction of the store."""


@dataclass(frozen=True)
class Sleep:
    """A timer."""

    seconds: int


@dataclass(frozen=True)
class Listen:
    """A wait for messages of the scope's pool, by their numbers there."""

    messages: tuple[int, ...] = (0,)
    count: int = 1
    timeout: int | None = None
    default: bool = False


@dataclass(frozen=True)
class Version:
    """A version of the code."""

    latest: int


@dataclass(frozen=True)
class Checkpoint:
    """A point of no return."""


@dataclass(frozen=True)
class Facts:
    """A uuid and a random number, which no replay may change. It leaves no entry."""


@dataclass(frozen=True)
class Raise:
    """The code of the workflow itself raises."""

    error: Literal["trouble", "rollback", "panic"]


@dataclass(frozen=True)
class Loop:
    """So many turns of a block."""

    body: Block
    turns: int
    interval: int
    keep: int | None


@dataclass(frozen=True)
class Join:
    """Blocks side by side."""

    branches: tuple[Block, ...]
    limit: int | None


@dataclass(frozen=True)
class Race:
    """Blocks side by side, the first of which wins."""

    branches: tuple[Block, ...]


@dataclass(frozen=True)
class Map:
    """A block side by side with itself, for each item."""

    body: Block
    items: int
    limit: int | None


@dataclass(frozen=True)
class Attempt:
    """A block whose failure is data."""

    body: Block


Node: TypeAlias = "Step | Sleep | Listen | Version | Checkpoint | Facts | Raise | Loop | Join | Race | Map | Attempt"


@dataclass(frozen=True)
class Op:
    """A node in its place: what is caught around it, and how it is called."""

    node: Node
    catch: Literal["nothing", "failures", "everything"] = "nothing"
    style: int = 0
    by_turn: bool = False
    """In a loop, every turn calls it otherwise."""


Block: TypeAlias = tuple[Op, ...]


@dataclass(frozen=True)
class NewMessage:
    """A message that is sent, so many seconds after the beginning. At 0 it is there before the first run."""

    at: int
    name: str
    payload: int


@dataclass(frozen=True)
class Cancel:
    """The instance is cancelled."""

    at: int
    rollback: bool


@dataclass(frozen=True)
class Program:
    """A workflow, and what comes to it from outside."""

    body: Block
    notes: tuple[NewMessage, ...] = ()
    cancel: Cancel | None = None

    def all_early(self) -> Program:
        """The same, with every message there before the first run."""
        return replace(self, notes=tuple(replace(note, at=0) for note in self.notes))


STYLES = ["", "a/b ", "~", "%2F ", "é\t"]


def name_of(op: Op, index: int, turn: int | None) -> str:
    """What an operation is called in its scope; not for steps that are called after their function."""
    suffix = f" {turn}" if op.by_turn and turn is not None else ""
    return f"{STYLES[op.style]}{type(op.node).__name__.lower()}{index}{suffix}"


def branch_pool(pool: str, where: str, branch: int) -> str:
    """The messages of a branch: the first one has those of the scope around it, which waits meanwhile."""
    return pool if branch == 0 else where


def listens(block: Block, where: str = "", pool: str = "m", times: int = 1) -> Iterator[tuple[str, Listen, int]]:
    """Every listen, with its pool, and how often it is come to at most."""
    for index, op in enumerate(block):
        place = f"{where}{index}"
        match op.node:
            case Listen():
                yield pool, op.node, times
            case Loop(body, turns):
                yield from listens(body, f"{place}.", pool, times * turns)
            case Attempt(body):
                yield from listens(body, f"{place}.", pool, times)
            case Join(branches) | Race(branches):
                for number, branch in enumerate(branches):
                    inner = f"{place}{'abc'[number]}"
                    yield from listens(branch, inner, branch_pool(pool, inner, number), times)
            case Map(body, items):
                for number in range(items):
                    inner = f"{place}{'abc'[number]}"
                    yield from listens(body, inner, branch_pool(pool, inner, number), times)
            case _:
                pass


# How they are made.

TIMES = st.integers(100, 99_999)
VALUES: list[Any] = [0, None, "text", (1, 2), b"bytes", {"a": [1.5, (True,)]}]
CATCHES = st.sampled_from(["nothing", "nothing", "nothing", "failures", "everything"])
TURNS_MAX = 12
"""How often an operation is come to, at most."""

Draw = Callable[..., Any]


class _Maker:
    """Draws one program of at most so many operations."""

    def __init__(self, draw: Draw, size: int) -> None:
        self.draw = draw
        self.left = size

    def block(self, depth: int, times: int, *, in_loop: bool = False) -> Block:
        ops: list[Op] = []
        for _ in range(self.draw(st.integers(1, 4))):
            if self.left <= 0:
                break
            ops.append(self.op(depth, times, in_loop))
        return tuple(ops)

    def op(self, depth: int, times: int, in_loop: bool) -> Op:
        draw = self.draw
        self.left -= 1
        leaves = [self.step, self.step, self.step, self.sleep, self.listen, self.other]
        wholes = [self.loop, self.join, self.race, self.map, self.attempt] if depth > 0 and self.left > 0 else []
        make = draw(st.sampled_from(leaves + wholes))
        node: Node = make(in_loop) if make in leaves else make(depth - 1, times, in_loop)
        return Op(node, draw(CATCHES), draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])), draw(st.booleans()))

    def step(self, in_loop: bool) -> Step:
        draw = self.draw
        fails = draw(st.sampled_from([0, 0, 0, 1, 2, ALWAYS]))
        undo = None
        if draw(st.booleans()):
            by_name = in_loop or draw(st.booleans())
            undo = Undo(by_name, draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2, ALWAYS])))
        step = Step(
            fails,
            draw(st.sampled_from([0, 1, 2, 3])) if fails else 0,
            draw(st.sampled_from([0, 1])) and draw(TIMES),
            draw(
                st.sampled_from(["plain", "plain", "plain", "plain", "fatal", "critical", "rollback", "panic", "exit"])
            ),
            undo,
            undo is None and draw(st.integers(0, 2)) == 0,
            draw(st.integers(0, 6)) == 0,
            draw(st.integers(0, 3)) == 0,
            draw(st.sampled_from(VALUES)),
        )
        if not step.repeatable and not step.derived and draw(st.integers(0, 5)) == 0:
            return replace(step, threaded=True, transact=True)
        return step

    def sleep(self, in_loop: bool) -> Sleep:
        return Sleep(self.draw(TIMES))

    def listen(self, in_loop: bool) -> Listen:
        draw = self.draw
        return Listen(
            draw(st.sampled_from([(0,), (0,), (1,), (1, 0)])),
            draw(st.sampled_from([1, 1, 2, 3])),
            draw(st.none() | TIMES),
            draw(st.booleans()),
        )

    def other(self, in_loop: bool) -> Node:
        raises: list[Node] = [Raise("trouble"), Raise("rollback"), Raise("panic")]
        others: list[Node] = [Version(1), Version(3), Checkpoint(), Facts(), *raises]
        return self.draw(st.sampled_from(others))  # type: ignore[no-any-return]

    def loop(self, depth: int, times: int, in_loop: bool) -> Node:
        draw = self.draw
        turns = draw(st.integers(1, max(1, min(6, TURNS_MAX // times))))
        body = self.block(depth, times * turns, in_loop=True)
        return Loop(body, turns, draw(st.sampled_from([1, 2, 3, 20])), draw(st.sampled_from([None, 0, 1, 2, 5])))

    def join(self, depth: int, times: int, in_loop: bool) -> Node:
        branches = self.branches(depth, times, in_loop, least=0)
        return Join(branches, self.draw(st.sampled_from([None, 1, 2])))

    def race(self, depth: int, times: int, in_loop: bool) -> Node:
        branches = list(self.branches(depth, times, in_loop, least=2))
        # One at most begins with something else than a wait: else two could win at once.
        eager = self.draw(st.integers(0, len(branches)))
        for number, branch in enumerate(branches):
            if number != eager:
                branches[number] = (Op(self.sleep(in_loop)), *branch)
        return Race(tuple(branches))

    def map(self, depth: int, times: int, in_loop: bool) -> Node:
        items = self.draw(st.integers(0, 3))
        return Map(
            self.block(depth, times * max(items, 1), in_loop=in_loop), items, self.draw(st.sampled_from([None, 1, 2]))
        )

    def attempt(self, depth: int, times: int, in_loop: bool) -> Node:
        return Attempt(self.block(depth, times, in_loop=in_loop))

    def branches(self, depth: int, times: int, in_loop: bool, least: int) -> tuple[Block, ...]:
        count = self.draw(st.integers(least, 3))
        return tuple(self.block(depth, times, in_loop=in_loop) for _ in range(count))

    def notes(self, body: Block) -> tuple[NewMessage, ...]:
        """Messages for most of the listens, and some that nobody wants."""
        draw = self.draw
        found: list[NewMessage] = []
        for pool, node, times in listens(body):
            for _ in range(node.count * times):
                if len(found) < 20 and (node.timeout is None or draw(st.booleans())):
                    name = f"{pool}:{draw(st.sampled_from(node.messages))}"
                    found.append(NewMessage(draw(st.just(0) | TIMES), name, len(found)))
        if draw(st.integers(0, 4)) == 0:
            found.append(NewMessage(draw(st.just(0) | TIMES), "for nobody", len(found)))
        return tuple(sorted(found, key=lambda note: note.at))


@st.composite
def programs(draw: Draw, *, cancelled: bool = False) -> Program:
    """Programs of some 20 operations at most, in blocks up to 5 deep. Many fail in the end, after all that they did."""
    maker = _Maker(draw, draw(st.integers(1, 20)))
    body: Block = ()
    while maker.left > 0 and len(body) < 6:
        body += maker.block(5, 1)
    if draw(st.integers(0, 2)) == 0:
        body += (Op(Raise("trouble")),)
    cancel = Cancel(draw(st.just(0) | TIMES), draw(st.booleans())) if cancelled else None
    return Program(body, maker.notes(body), cancel)


PROGRAMS: st.SearchStrategy[Program] = programs()
CANCELLED: st.SearchStrategy[Program] = programs(cancelled=True)
