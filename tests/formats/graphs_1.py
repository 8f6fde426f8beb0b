"""The graphs that wrote `graphs_1.json`. Their stored instances go on with this code: it is never changed either."""

from __future__ import annotations

from typing import Any

from workflow_sdk import Backoff, Context, workflow
from workflow_sdk.graphs import E, Graph, Limits, arc, node, quorum

__all__ = ["MENDED", "RAN", "ended", "half_way", "late", "surrounded"]

RAN: list[str] = []
"""What bodies and steps have done."""
MENDED: list[str] = []
"""Names of steps that no longer fail."""
NEVER = Backoff(initial=86_400, factor=1, maximum=86_400, jitter=0)


def note(name: str) -> str:
    """Note that something was done."""
    RAN.append(name)
    return name


def undo(result: str) -> None:
    """Note that something was undone."""
    RAN.append(f"undo {result}")


def fail(name: str) -> str:
    """Fail, until it is mended."""
    RAN.append(name)
    if name not in MENDED:
        raise ValueError(f"{name} is broken")
    return name


# Of a run that is under way.

half_way = Graph(
    "formats.half way",
    context={"turns": 0, "open": False},
    limits=Limits(nodes=40, starts=100, depth=3),
    final="report",
    status="lenient",
)


@half_way.step(next=[arc("turn")])
async def begin(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    """The entry."""
    return {"order": note(args["order"]), "lines": [("apple", 3)]}


@half_way.step(next=[arc("turn", when=E.ctx.turns < 2), arc("fork", args={"order": E.results.begin.order})])
async def turn(ctx: Context, args: Any) -> int:
    """A cycle, in which the context gets a version in each pass."""
    ctx.patch(turns=ctx.vars["turns"] + 1)
    return int(ctx.vars["turns"])


BRANCHES = [
    "quick", "sleeps", "retries", "listens", "gated", "grows", "workers", "items", "person", "wrong", "one", "other",
]  # fmt: skip


@half_way.step(mode="inclusive", next=[arc(name, args=E.args) for name in BRANCHES], rollback=undo)
async def fork(ctx: Context, args: dict[str, str]) -> str:
    """Opens a fork."""
    ctx.patch(forked=True)
    return args["order"]


@half_way.step
async def quick(ctx: Context, args: Any) -> str:
    """A branch that is done."""
    return note("quick")


@half_way.step
async def sleeps(ctx: Context, args: Any) -> list[Any]:
    """A branch with a step that is done, and a wait."""
    await ctx.sleep("moment", 5)
    seen = [await ctx.step("slow", note, "slow", rollback=undo), ctx.vars["turns"], dict(ctx.vars).get("late")]
    await ctx.sleep("day", 86_400)
    return [*seen, await ctx.step("after", note, "after")]


@half_way.step(needs=["quick", "sleeps"])
async def meet(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
    """A join that is half there."""
    return args


@half_way.step(retries=2, backoff=NEVER)
async def retries(ctx: Context, args: Any) -> str:
    """A branch that waits for its second attempt."""
    return fail("retries")


@half_way.step(next=[arc("told", when=E.output == "yes", args={"said": E.output}), arc("report too")])
async def listens(ctx: Context, args: Any) -> Any:
    """A branch that waits for a message."""
    return await ctx.listen("go")


@half_way.step
async def told(ctx: Context, args: dict[str, str]) -> str:
    """One way."""
    return note(f"told {args['said']}")


half_way.noop("report too")


@half_way.step(admit=E.ctx.open)
async def gated(ctx: Context, args: dict[str, str]) -> str:
    """A token whose admission is denied."""
    return note(f"gated {args['order']}")


async def late(ctx: Context, args: Any) -> Any:
    """What is submitted."""
    return args


async def waits(ctx: Context, args: Any) -> Any:
    """What is submitted, and waits."""
    await ctx.listen("never", timeout=3 * 86_400, default=None)
    return note("waited")


@half_way.step
async def grows(ctx: Context, args: Any) -> bool:
    """A branch that has submitted steps: one that is done, one that waits, one that needs both."""
    first = node("late one", late, args={"n": 1})
    verdict = await ctx.submit([first, node("late two", waits), node("late sum", late, needs=["late one", "late two"])])
    ctx.patch(late=bool(verdict))
    return bool(verdict)


async def works(ctx: Context, args: int) -> int:
    """One worker of a controller."""
    return args * 2 if args < 2 else await ctx.listen("work", type=int)


half_way.fan_out("workers", works, over=[1, 2, 3], then=late)


@half_way.step(each=[1, 2], retries=0)
async def items(ctx: Context, args: int) -> int:
    """One item of a loop."""
    return args if args == 1 else await ctx.listen("item", type=int)


half_way.task("person", payload={"please": E.args.order})


@half_way.step(retries=0, next=arc("mended", on="failed", args={"why": E.error.message}))
async def wrong(ctx: Context, args: Any) -> str:
    """A failure that is handled."""
    return fail("wrong")


half_way.assign("mended", {"mended": E.args.why})


@half_way.step
async def one(ctx: Context, args: Any) -> str:
    """Wins."""
    await ctx.sleep("moment", 5)
    return "one"


@half_way.step
async def other(ctx: Context, args: Any) -> str:
    """Loses."""
    await ctx.step("other", note, "other", rollback=undo)
    await ctx.sleep("long", 864_000)
    return "other"


@half_way.step(needs=["one", "other"], join=quorum(1))
async def first(ctx: Context, args: Any) -> list[str]:
    """A quorum that has fired."""
    return sorted(args)


@half_way.step
async def report(ctx: Context, args: Any) -> dict[str, Any]:
    """The end."""
    return {"counts": args["counts"], "failures": args["failures"], "context": dict(ctx.vars)}


# Of runs that have ended.

ended = Graph("formats.ended", context={"n": 0}, when_blocked="complete")


@ended.step(mode="inclusive", next=[arc("good", args={"n": E.output}), arc("bad"), arc("closed")])
async def start(ctx: Context, args: int) -> int:
    """The entry."""
    ctx.patch(n=args)
    return args


@ended.step
async def good(ctx: Context, args: dict[str, int]) -> tuple[int, bytes]:
    """Is done."""
    return args["n"], b"bytes"


@ended.step(retries=0)
async def bad(ctx: Context, args: Any) -> str:
    """Fails, or not."""
    if ctx.vars["n"] < 0:
        raise ValueError("below zero")
    return "fine"


@ended.step(admit=E.ctx.n > 100)
async def closed(ctx: Context, args: Any) -> None:
    """Is never admitted."""


@ended.step(needs=["good", "bad"])
async def both(ctx: Context, args: dict[str, Any]) -> list[str]:
    """A join."""
    return sorted(args)


# A graph among other operations.

inner = Graph("formats.inner")


@inner.step
async def asks(ctx: Context, args: Any) -> Any:
    """Waits for an answer."""
    return await ctx.listen("answer")


@inner.step(needs=["asks"])
async def answered(ctx: Context, args: dict[str, Any]) -> Any:
    """The end."""
    return args["asks"]


@workflow(name="formats.surrounded")
async def surrounded(ctx: Context) -> list[Any]:
    """One graph that has ended, and one that is under way."""
    done = await ctx.graph("done", ended, 1)
    open_ = await ctx.graph("open", inner)
    return [done.status, done.outputs, open_.outputs]
