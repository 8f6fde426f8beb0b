"""Where a run of a graph is: its tokens, firings, joins and what its steps have come to, each a row of its own.

A change of the marking changes the rows that it touches, and no others: a firing costs the same after 100,000 others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from workflow_sdk.graphs.rows import (
    ADDED,
    FIRINGS,
    HEAD,
    JOINS,
    OUTLINE,
    PATCHES,
    STEPS,
    TOKENS,
    VARS,
    Arrival,
    Firing,
    Head,
    MarkingHead,
    Outline,
    RowKey,
    Stack,
    StepState,
    Token,
)
from workflow_sdk.rows.location import unpack
from workflow_sdk.rows.wire import Row, damaged, pack_record, unpack_record


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
        "fresh",
        "head",
        "joins",
        "outline",
        "patches",
        "ready",
        "running",
        "steps",
        "tokens",
        "vars",
        "vars_used",
    )

    def __init__(self) -> None:
        self.head: Head = Head.of(MarkingHead())
        self.outline: Outline = Outline()
        self.tokens: dict[int, Token] = {}
        self.ready: deque[int] = deque()
        """Tokens whose turn may come, in order."""
        self.blocked: dict[int, None] = {}
        """Tokens whose admission was denied, in order."""
        self.firings: dict[int, Firing] = {}
        self.fired: dict[str, int] = {}
        """How often each step has taken a token."""
        self.patches: dict[int, dict[str, bytes]] = {}
        """What scopes in a firing that are over have changed in the context, by firing and place."""
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
        self.fresh: set[int] = set()
        """The tokens that came in this event: one that goes with it, too, has no row."""

    # Changes, each of which is one row.

    def put_outline(self, outline: Outline) -> None:
        """Tell what steps there are."""
        self.outline = outline
        self.changed[(OUTLINE,)] = outline

    def put_token(self, number: int, token: Token) -> None:
        """Add a token, or change it."""
        if number not in self.tokens:
            self._hold(token.stack, 1)
            self.fresh.add(number)
        self.tokens[number] = token
        self.changed[TOKENS, number] = token

    def drop_token(self, number: int) -> Token:
        """Take a token out of the run."""
        token = self.tokens.pop(number)
        self.blocked.pop(number, None)
        self._hold(token.stack, -1)
        if number in self.fresh:
            del self.changed[TOKENS, number]
        else:
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
        for place in self.patches.pop(number, ()):
            self._clear((PATCHES, number, place))
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

    def put_join(self, key: JoinKey, state: JoinState, *, keeps: bool = False) -> None:
        """A join begins to wait in a fork instance, or is over there. `keeps`: its arguments are what has arrived."""
        if state.is_over and not keeps:
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
        if self.head.has_changed:
            changed[(HEAD,)] = self.head.row()
            self.head.has_changed = False
        self.fresh.clear()
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
                self.head = Head.of(MarkingHead.unpack(raw))
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
            case _:
                self._load_other(key, raw)

    def _load_other(self, key: tuple[Any, ...], raw: bytes) -> None:
        match key:
            case (8,):
                self.outline = Outline.unpack(raw)
            case (100, int()):
                pass  # a part of the result, of an end that was not reached
            case (9, int() as number, str() as place):
                self.patches.setdefault(number, {})[place] = raw
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
