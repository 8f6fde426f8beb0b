"""Where a run of a graph is: its tokens, firings, joins and what its steps have come to, each a row of its own.

A change of the marking changes the rows that it touches, and no others: a firing costs the same after 100,000 others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from workflow_sdk.errors import CodecError
from workflow_sdk.rows.location import pack_segment, unpack
from workflow_sdk.rows.wire import Count, Moment, Row, damaged, pack_record, unpack_record
from workflow_sdk.values import Codec

Stack = tuple[tuple[str, int], ...]
"""The fork instances that a token is in, outermost first: the step that has forked, and the number of the instance."""


class MarkingHead(Row, frozen=True):
    """What a marking counts."""

    WHAT: ClassVar[str] = "the head of a graph's marking"

    events: Count = 0
    """How many events have changed it."""
    tokens: Count = 0
    """The number that the next token gets."""
    starts: Count = 0
    """How many firings there were: the number that the next one gets."""
    forks: Count = 0
    """How many fork instances there were."""
    vars: Count = 0
    """The number of the context's newest version."""
    is_final_due: bool = True
    """Whether the final step is still to be run."""
    is_stopped: bool = False
    """Whether the graph has failed at once: nothing but the final step is started any more."""


class Token(Row, frozen=True):
    """Control that is ready to run a step."""

    WHAT: ClassVar[str] = "a token of a graph"

    step: str
    args: bytes
    stack: Stack = ()
    depth: Count = 0
    """How many submissions lie between the step and the declared graph."""
    place: Count = 0
    """Its place among those that are ready."""
    denied: str | None = None
    """Why its admission was denied; it is asked again when the context changes."""


class Firing(Row, frozen=True):
    """A step that has taken its token and has not ended."""

    WHAT: ClassVar[str] = "a firing of a graph"

    step: str
    count: Count
    """How often the step was fired before."""
    args: bytes
    stack: Stack
    depth: Count
    began: Count
    """The event that has started it."""
    at: Moment
    vars: Count = 0
    """The version of the context that it sees."""
    used: tuple[int, int, int, int] = (0, 0, 0, 0)
    """How much of the limits was used when it began."""
    attempts: Count = 1
    retry_at: float | None = None
    tried_at: float | None = None
    """When the present attempt began, if it is not the first."""
    details: bytes | None = None
    """What the details of the step came to when it began."""
    waits_for: tuple[str, ...] | None = None
    """Of a controller: the steps that it has added, and whose ends it waits for."""


class StepState(Row, frozen=True):
    """What a step has come to: by its last firing, or because it can't be fired."""

    WHAT: ClassVar[str] = "a step of a graph"

    status: str = ""
    """Empty while it has come to nothing."""
    reason: str = ""
    firings: Count = 0
    output: bytes | None = None
    """Of the last firing that was completed."""
    counts: bool = False
    """Whether it makes the graph fail: a failure that no arc has handled, or a step that may never start."""
    error: bytes | None = None
    """Of a failure that counts."""
    is_blocked: bool = False
    """Whether it was denied, and the run has ended without waiting for it."""
    unwinds: bool = False
    """Whether its failure ends the run, and the workflow around it."""


class Arrival(Row, frozen=True):
    """A step that is done, at a join that waits for others."""

    WHAT: ClassVar[str] = "what a join of a graph waits with"

    output: bytes


class Outline(Row, frozen=True):
    """What has to be known of a graph to tell whether steps can be added to it."""

    WHAT: ClassVar[str] = "the outline of a graph"

    steps: tuple[str, ...] = ()
    """The names of the declared steps."""
    nodes: int | None = None
    """How many steps there may be."""
    depth: int | None = None
    """How many submissions deep steps may be added."""


class JoinState(Struct):
    """A join that has begun to wait, in one fork instance; or has fired there, or can't any more."""

    stack: Stack
    depth: int = 0
    arrived: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The outputs of the steps that are done, by their names."""
    is_over: bool = False


class DagJoin(Struct):
    """How many of the needs of a join are done, and how many never will be. Kept in memory: the steps tell it."""

    done: int = 0
    dead: int = 0
    is_over: bool = False
    """It has fired, or can't any more."""


JoinKey = tuple[str, int]
"""A join, and the number of the fork instance that it waits in; 0 for the whole run."""

HEAD, TOKENS, FIRINGS, STEPS, JOINS, VARS, ADDED, OUTLINE = range(1, 9)
"""The kinds of rows, as their keys begin."""

RowKey = tuple[Any, ...]


class Marking:
    """The marking of one run in memory, and which of its rows have changed."""

    __slots__ = (
        "blocked",
        "changed",
        "dag",
        "emptied",
        "fired",
        "firings",
        "fork_live",
        "forks_open",
        "head",
        "joins",
        "outline",
        "ready",
        "running",
        "steps",
        "tokens",
        "vars",
        "vars_used",
    )

    def __init__(self) -> None:
        self.head: MarkingHead = MarkingHead()
        self.outline: Outline = Outline()
        self.tokens: dict[int, Token] = {}
        self.ready: deque[int] = deque()
        """Tokens whose turn may come, in order."""
        self.blocked: dict[int, None] = {}
        """Tokens whose admission was denied, in order."""
        self.firings: dict[int, Firing] = {}
        self.fired: dict[str, int] = {}
        """How often each step has taken a token."""
        self.running: int = 0
        """How many firings hold a slot: controllers run nothing."""
        self.steps: dict[str, StepState] = {}
        self.joins: dict[JoinKey, JoinState] = {}
        self.dag: dict[str, DagJoin] = {}
        self.vars: dict[int, bytes] = {}
        """The versions of the context that somebody sees."""
        self.vars_used: dict[int, int] = {}
        """How many firings see a version."""
        self.fork_live: dict[int, int] = {}
        """How many tokens and firings are in a fork instance."""
        self.forks_open: dict[int, set[JoinKey]] = {}
        """The joins that are kept for a fork instance."""
        self.emptied: set[int] = set()
        """Fork instances that nothing was left of in this event."""
        self.changed: dict[RowKey, Row | bytes | None] = {}
        """The rows that the store does not know; None: to be cleared."""

    # Changes, each of which is one row.

    def set_head(self, head: MarkingHead) -> None:
        """Count on."""
        self.head = head
        self.changed[(HEAD,)] = head

    def put_outline(self, outline: Outline) -> None:
        """Tell what steps there are."""
        self.outline = outline
        self.changed[(OUTLINE,)] = outline

    def put_token(self, number: int, token: Token) -> None:
        """Add a token, or change it."""
        if number not in self.tokens:
            self._hold(token.stack, 1)
        self.tokens[number] = token
        self.changed[TOKENS, number] = token

    def drop_token(self, number: int) -> Token:
        """Take a token out of the run."""
        token = self.tokens.pop(number)
        self.blocked.pop(number, None)
        self._hold(token.stack, -1)
        self._clear((TOKENS, number))
        return token

    def put_firing(self, number: int, firing: Firing) -> None:
        """Add a firing, or change it."""
        if number not in self.firings:
            self._hold(firing.stack, 1)
            self.running += firing.waits_for is None
            if firing.vars:
                self.vars_used[firing.vars] = self.vars_used.get(firing.vars, 0) + 1
        self.firings[number] = firing
        self.changed[FIRINGS, number] = firing

    def drop_firing(self, number: int) -> Firing:
        """A firing has ended."""
        firing = self.firings.pop(number)
        self.running -= firing.waits_for is None
        self._hold(firing.stack, -1)
        self._clear((FIRINGS, number))
        if firing.vars:
            self.vars_used[firing.vars] -= 1
            self._forget_vars(firing.vars)
        return firing

    def put_step(self, name: str, state: StepState) -> None:
        """Note what a step has come to."""
        self.steps[name] = state
        self.changed[STEPS, name] = state

    def put_vars(self, version: int, values: bytes) -> None:
        """Give the context a new version."""
        before = version - 1
        self.vars[version] = values
        self.changed[VARS, version] = values
        if before:
            self._forget_vars(before)

    def put_arrival(self, key: JoinKey, need: str, output: bytes) -> None:
        """A step is done that a join waits for."""
        self.joins[key].arrived[need] = output
        self.changed[JOINS, *key, need] = Arrival(output)

    def put_join(self, key: JoinKey, state: JoinState) -> None:
        """A join begins to wait in a fork instance, or is over there."""
        if state.is_over:
            for need in state.arrived:
                self._clear((JOINS, *key, need))
            state.arrived = {}
        self.joins[key] = state
        self.forks_open.setdefault(key[1], set()).add(key)
        self.changed[JOINS, *key] = pack_record([state.stack, state.depth, state.is_over])

    def add_steps(self, number: int, nodes: bytes) -> None:
        """Steps were submitted: what they are."""
        self.changed[ADDED, number] = nodes

    def close_forks(self) -> None:
        """Forget the joins of fork instances that nothing is left of."""
        for fork in sorted(self.emptied):
            if not self.fork_live.get(fork):
                for key in sorted(self.forks_open.pop(fork, ())):
                    self._forget_join(key)
        self.emptied.clear()

    # What is known by counting.

    @property
    def context(self) -> bytes | None:
        """The newest version of the context; None if nothing was ever put into it."""
        return self.vars.get(self.head.vars)

    def take_changes(self) -> dict[RowKey, Row | bytes | None]:
        """The rows that have changed since this was asked last."""
        changed, self.changed = self.changed, {}
        return changed

    def _clear(self, key: RowKey) -> None:
        self.changed[key] = None

    def _forget_vars(self, version: int) -> None:
        if version != self.head.vars and not self.vars_used.get(version):
            self.vars_used.pop(version, None)
            if self.vars.pop(version, None) is not None:
                self._clear((VARS, version))

    def _forget_join(self, key: JoinKey) -> None:
        state = self.joins.pop(key)
        for need in state.arrived:
            self._clear((JOINS, *key, need))
        self._clear((JOINS, *key))

    def _hold(self, stack: Stack, change: int) -> None:
        for _, fork in stack:
            left = self.fork_live.get(fork, 0) + change
            if left:
                self.fork_live[fork] = left
            else:
                self.fork_live.pop(fork, None)
                self.emptied.add(fork)

    # Rows.

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> dict[int, bytes]:
        """Take in the rows of the store; returns what was submitted, by number."""
        added: dict[int, bytes] = {}
        for key, raw in rows:
            self._load(unpack(key), raw, added)
        for number in sorted(self.tokens, key=lambda number: self.tokens[number].place):
            if self.tokens[number].denied is None:
                self.ready.append(number)
            else:
                self.blocked[number] = None
        return added

    def _load(self, key: tuple[Any, ...], raw: bytes, added: dict[int, bytes]) -> None:
        match key:
            case (1,):
                self.head = MarkingHead.unpack(raw)
            case (2, int() as number):
                self.tokens[number] = Token.unpack(raw)
                self._hold(self.tokens[number].stack, 1)
            case (3, int() as number):
                firing = Firing.unpack(raw)
                self.put_firing(number, firing)
                self.changed.clear()
                self.fired[firing.step] = self.fired.get(firing.step, 0) + 1
            case (4, str() as step):
                state = self.steps[step] = StepState.unpack(raw)
                # Those that have ended, and those under way: a later one may have ended before an earlier.
                self.fired[step] = self.fired.get(step, 0) + state.firings
            case (5, *place):
                self._load_join(place, raw)
            case (6, int() as version):
                self.vars[version] = raw
            case (7, int() as number):
                added[number] = raw
            case (8,):
                self.outline = Outline.unpack(raw)
            case _:
                raise damaged("a row of a graph")

    def _load_join(self, place: list[Any], raw: bytes) -> None:
        match place:
            case [str() as step, int() as fork]:
                stack, depth, is_over = unpack_record(raw)
                state = JoinState(tuple((around, number) for around, number in stack), depth, {}, is_over)
                self.joins[step, fork] = state
                self.forks_open.setdefault(fork, set()).add((step, fork))
            case [str() as step, int() as fork, str() as need]:
                self.joins[step, fork].arrived[need] = Arrival.unpack(raw).output
            case _:
                raise damaged("a join of a graph")


def packed(changed: Mapping[RowKey, Row | bytes | None]) -> list[tuple[bytes, bytes | None]]:
    """Changed rows as they are stored, by their keys."""
    return [(_packed_key(key), row.pack() if isinstance(row, Row) else row) for key, row in changed.items()]


def _packed_key(key: RowKey) -> bytes:
    """The bytes of `pack(key)`. There are several for each firing, and that takes longer."""
    return b"".join(pack_segment(part) if type(part) is int else _packed_text(part) for part in key)


def _packed_text(text: str) -> bytes:
    return b"\x02" + text.encode().replace(b"\x00", b"\x00\xff") + b"\x00"


def is_in(stack: Stack, fork: int) -> bool:
    """Whether something with this stack is in a fork instance; 0 is the whole run."""
    return fork == 0 or any(number == fork for _, number in stack)


def opened(stack: Stack, fork: str, number: int) -> Stack:
    """The stack of the tokens that a fork gives, in an instance of their own."""
    # A fork that is come to again is another instance, and not one inside the last.
    outside = next((at for at, (step, _) in enumerate(stack) if step == fork), len(stack))
    return (*stack[:outside], (fork, number))


def plain_context(codec: Codec, raw: bytes | None) -> dict[str, Any]:
    """The context as plain data."""
    found = {} if raw is None else codec.decode(raw, plain=True)
    if not isinstance(found, dict):
        raise CodecError("the context of a graph is not what was stored")
    return found
