"""The same programs, run by the engine: as a workflow, with steps whose world outlives every crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from tests.laws.model.plain import MARGIN, Told, below, waits_after
from tests.laws.model.programs import (
    Attempt,
    Block,
    Checkpoint,
    Facts,
    Join,
    Listen,
    Loop,
    Map,
    Op,
    Race,
    Raise,
    Sleep,
    Step,
    Undo,
    Version,
    branch_pool,
    name_of,
)
from workflow_sdk import (
    Backoff,
    Break,
    Context,
    Continue,
    CriticalError,
    JoinError,
    ListenTimeoutError,
    RaceError,
    RollbackError,
    StepError,
    Success,
    Workflow,
    workflow,
)
from workflow_sdk.testing import VirtualClock

__all__ = ["Interpreter", "World", "told"]


class Trouble(Exception):
    """What fails, fails with this."""


class Fatal(Exception):
    """Not to be tried again."""


_worlds: WeakValueDictionary[int, World] = WeakValueDictionary()
_numbers = count()


class World:
    """What is outside of the workflow: it remembers what was done to it, whatever crashes."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.calls: Counter[str] = Counter()
        """How often each step was called, by its path."""
        self.undone: list[str] = []
        """The paths of the steps that were undone, in order."""
        self.facts: dict[str, object] = {}
        self.riding: set[str] | None = None
        """Repeatable steps that have given something which is not recorded yet; None if nobody keeps count."""
        self.number = next(_numbers)
        self._first: dict[str, float] = {}
        self._undoing: Counter[str] = Counter()
        _worlds[self.number] = self

    def do(self, path: str, step: Step) -> list[Any]:
        """What a step does. Where it is waited between attempts, it fails until the time of the one that succeeds."""
        now = self.clock.time()
        self.calls[path] += 1
        if not step.repeatable and not step.threaded:
            assert not self.riding, f"{path} is called, and what it may know is not recorded: {self.riding}"
        first = self._first.setdefault(path, now)
        if step.error != "plain" or step.fails > step.retries:
            fails = step.fails > 0
        elif step.delay:
            waits = sum(waits_after(step, attempt + 1) for attempt in range(step.fails))
            fails = now < first + waits - MARGIN / 2
        else:
            fails = self.calls[path] <= step.fails
        if fails:
            errors = {"plain": Trouble, "fatal": Fatal, "critical": CriticalError, "rollback": RollbackError}
            raise errors[step.error](f"failed at {path}")
        # In a loop the record may be pruned before it is written; in a thread nobody knows when it is.
        if step.repeatable and not step.threaded and "~" not in path and self.riding is not None:
            self.riding.add(path)
        return [path, step.value]

    def recorded(self, path: str) -> None:
        """An operation has its outcome in the store, and so has what it consists of."""
        if self.riding:
            self.riding = {other for other in self.riding if other != path and not other.startswith(f"{path}/")}

    def undo(self, fails: int, result: list[Any]) -> None:
        """What undoes a step."""
        path, _ = result
        self._undoing[path] += 1
        if self._undoing[path] <= fails:
            raise Trouble(f"undoing {path}")
        self.undone.append(path)

    def same(self, path: str, fact: object) -> None:
        """A fact is what it was before."""
        assert self.facts.setdefault(path, fact) == fact, f"another uuid or number at {path}"


async def undo(world: int, fails: int, result: list[Any]) -> None:
    """A handler that is found by its name."""
    _worlds[world].undo(fails, result)


def told(error: BaseException) -> Told:
    """A failure as the model tells it."""
    kind = type(error).__name__
    match error:
        case JoinError() | RaceError():
            return kind, {label: told(inner) for label, inner in error.errors.items()}
        case StepError():
            return kind, error.path, error.attempts, error.error.type.rpartition(".")[2]
        case ListenTimeoutError():
            return kind, error.path
        case _:
            return kind, str(error)


class Interpreter:
    """Runs a block as a workflow."""

    def __init__(self, body: Block, clock: VirtualClock) -> None:
        self.world = World(clock)

        @workflow
        async def program(ctx: Context) -> Any:
            return await self.block(ctx, body, "", "m", None)

        self.workflow: Workflow[None, Any] = program

    async def work(self, path: str, step: Step) -> list[Any]:
        return self.world.do(path, step)

    def work_in_thread(self, path: str, step: Step) -> list[Any]:
        return self.world.do(path, step)

    def transaction(self, transaction: object, path: str, step: Step) -> list[Any]:
        return self.world.do(path, step)

    async def block(
        self, ctx: Context, block: Block, where: str, pool: str, turn: int | None, *, in_loop: bool = False
    ) -> list[Any]:
        values: list[Any] = []
        derived: Counter[str] = Counter()
        for index, op in enumerate(block):
            name = name_of(op, index, turn)
            run = _Run(self, ctx, op, name, f"{where}{index}", pool, turn, in_loop, derived)
            match op.catch:
                case "nothing":
                    values.append(await run.node())
                case "failures":
                    try:
                        values.append(await run.node())
                    except (StepError, JoinError, RaceError, ListenTimeoutError) as error:
                        values.append(("caught", told(error)))
                case "everything":
                    try:
                        values.append(await run.node())
                    except Exception as error:  # noqa: BLE001  # as an author may do
                        values.append(("caught", told(error)))
        return values


class _Run:
    """One operation of a block, being run."""

    def __init__(
        self,
        program: Interpreter,
        ctx: Context,
        op: Op,
        name: str,
        where: str,
        pool: str,
        turn: int | None,
        in_loop: bool,
        derived: Counter[str],
    ) -> None:
        self.program, self.ctx, self.op, self.name = program, ctx, op, name
        self.where, self.pool, self.turn, self.in_loop, self.derived = where, pool, turn, in_loop, derived

    async def node(self) -> Any:
        ctx, name = self.ctx, self.name
        match self.op.node:
            case Step():
                return await self.step(self.op.node)
            case Sleep(seconds):
                return await ctx.sleep(name, seconds)
            case Listen():
                return await self.listen(self.op.node)
            case Version(latest):
                return await ctx.version(name, latest)
            case Checkpoint():
                return await ctx.checkpoint(name)
            case Facts():
                self.program.world.same(f"{ctx.path}/{name}", (ctx.uuid(), ctx.random.random()))
                return "facts"
            case Raise(error):
                raise (RollbackError if error == "rollback" else Trouble)(f"raised in {ctx.path}")
            case Loop():
                return await self.loop(self.op.node)
            case Attempt(body):
                return await self.attempt(body)
            case Join(branches, limit):
                return await ctx.join(name, self.branches(branches), limit=limit)
            case Map(body, items, limit):
                return await ctx.map(name, partial(self.item, body), range(items), limit=limit)
            case Race(branches):
                result = await ctx.race(name, self.branches(branches))
                return ("won", result.winner, result.value)

    async def step(self, step: Step) -> Any:
        ctx, name = self.ctx, self.name
        fn: Callable[..., Any] = self.program.work_in_thread if step.threaded else self.program.work
        if step.derived:
            number = self.derived[fn.__name__]
            self.derived[fn.__name__] += 1
            name = f"{fn.__name__}:{number}" if number else fn.__name__
        args = (below(ctx.path, name), step)
        options: dict[str, Any] = {
            "retries": step.retries,
            "backoff": Backoff(initial=step.delay, factor=2, maximum=step.delay * 4, jitter=0),
            "no_retry": (Fatal,),
            "repeatable": step.repeatable,
            "rollback": None if step.undo is None else self.handler(step.undo),
        }
        if step.transact:
            del options["repeatable"]
            return await ctx.transact(name, self.program.transaction, *args, **options)
        if step.derived:
            return await ctx.step(fn, *args, **options)
        return await ctx.step(name, fn, *args, **options)

    def handler(self, how: Undo) -> Callable[..., Awaitable[None]]:
        world = self.program.world
        if how.by_name or self.in_loop:
            return partial(undo, world.number, how.fails)

        async def undo_here(result: list[Any]) -> None:
            world.undo(how.fails, result)

        return undo_here

    async def listen(self, node: Listen) -> Any:
        ctx, name = self.ctx, self.name
        names = [f"{self.pool}:{number}" for number in node.messages]
        if node.count > 1:
            return await ctx.listen_many(name, names, count=node.count, timeout=node.timeout, type=int)
        if node.timeout is not None and node.default:
            return await ctx.listen(name, names, timeout=node.timeout, default="default", type=int)
        if node.default:
            return (await ctx.listen_message(name, names, timeout=node.timeout, type=int)).payload
        return await ctx.listen(name, names, timeout=node.timeout, type=int)

    async def loop(self, node: Loop) -> Any:
        async def turn(ctx: Context, state: Any) -> Continue[Any] | Break[Any]:
            number = state["turn"]
            assert ctx.path.endswith(f"/~{number}")
            values = await self.program.block(ctx, node.body, f"{self.where}.", self.pool, number, in_loop=True)
            seen = [*state["seen"][-1:], values]
            # What is changed in place is changed nowhere.
            state["turn"], state["seen"] = -1, ["in place"]
            if number + 1 == node.turns:
                return Break(["turns", node.turns, seen])
            return Continue({"turn": number + 1, "seen": seen})

        first = {"turn": 0, "seen": []}
        return await self.ctx.loop(self.name, turn, first, commit_interval=node.interval, history_keep=node.keep)

    async def attempt(self, body: Block) -> Any:
        async def inside(ctx: Context) -> Any:
            return await self.program.block(ctx, body, f"{self.where}.", self.pool, self.turn, in_loop=self.in_loop)

        result = await self.ctx.attempt(self.name, inside)
        return ("success", result.value) if isinstance(result, Success) else ("failure", told(result.error))

    def branches(self, blocks: tuple[Block, ...]) -> dict[str, Callable[[Context], Awaitable[Any]]]:
        return {"abc"[number]: partial(self.branch, block, number) for number, block in enumerate(blocks)}

    async def branch(self, block: Block, number: int, ctx: Context) -> Any:
        inner = f"{self.where}{'abc'[number]}"
        pool = branch_pool(self.pool, inner, number)
        return await self.program.block(ctx, block, inner, pool, None, in_loop=self.in_loop)

    async def item(self, body: Block, ctx: Context, number: int) -> Any:
        return await self.branch(body, number, ctx)
