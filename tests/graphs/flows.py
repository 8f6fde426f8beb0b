"""Graphs of a module, as an application defines them: found again by their names, and killed wherever they are."""

from __future__ import annotations

from typing import Any

from workflow_sdk import Backoff, Context, workflow
from workflow_sdk.graphs import E, Graph, GraphResult, Limits, arc, node, quorum

__all__ = ["approval", "cyclic", "failing", "gate", "growing", "joined", "over", "racing", "two", "undone"]

joined = Graph("joined", context={"n": 0})


@joined.step(mode="inclusive", next=[arc("left", args={"n": E.workload}), arc("right", args={"n": E.workload})])
async def fork(ctx: Context, args: int) -> int:
    """Opens a fork."""
    ctx.patch(n=args)
    return args


@joined.step
async def left(ctx: Context, args: dict[str, int]) -> int:
    """With an operation."""
    return await ctx.step("work", abs, -args["n"])


@joined.step
async def right(ctx: Context, args: dict[str, int]) -> int:
    """With a wait."""
    await ctx.sleep("nap", 60)
    return args["n"] + 1


@joined.step(needs=["left", "right"], next="after")
async def meet(ctx: Context, args: dict[str, int]) -> int:
    """A join."""
    return args["left"] + args["right"] + int(ctx.vars["n"])


@joined.step
async def after(ctx: Context, args: Any) -> str:
    """The end of the branch."""
    return "after"


cyclic = Graph("cyclic", context={"n": 0})


@cyclic.step(mode="inclusive", next=[arc("x", args={"n": E.output}), arc("y", args={"n": E.output})])
async def spread(ctx: Context, args: Any) -> int:
    """A fork in a cycle."""
    ctx.patch(n=ctx.vars["n"] + 1)
    return int(ctx.vars["n"])


@cyclic.step
async def x(ctx: Context, args: dict[str, int]) -> int:
    """A branch without operations."""
    return args["n"]


@cyclic.step
async def y(ctx: Context, args: dict[str, int]) -> int:
    """A branch with a wait."""
    await ctx.sleep("nap", 5)
    return args["n"]


@cyclic.step(needs=["x", "y"], next=[arc("spread", when=E.ctx.n < 3)])
async def merge(ctx: Context, args: dict[str, int]) -> list[int]:
    """What belongs together."""
    return [args["x"], args["y"]]


failing = Graph("failing")


@failing.step(next=[arc("mend", on="failed", args={"why": E.error.message}), arc("good")])
async def risky(ctx: Context, args: int) -> int:
    """Fails for numbers below 0."""
    if args < 0:
        raise ValueError("negative")
    return args


@failing.step
async def mend(ctx: Context, args: dict[str, str]) -> str:
    """Handles it."""
    return args["why"]


@failing.step
async def good(ctx: Context, args: Any) -> str:
    """The other way."""
    return "good"


undone = Graph("undone")


async def undo(result: Any) -> None:
    """Nothing to undo here."""


@undone.step(next="second", rollback=undo)
async def first(ctx: Context, args: Any) -> int:
    """Is undone."""
    return 1


@undone.step(next="third")
async def second(ctx: Context, args: Any) -> int:
    """Has a step that is undone."""
    return await ctx.step("inner", abs, -2, rollback=undo)


@undone.step(retries=1, backoff=Backoff(initial=1, factor=1, maximum=1, jitter=0))
async def third(ctx: Context, args: Any) -> None:
    """Fails."""
    raise ValueError("broken")


growing = Graph("growing", limits=Limits(nodes=20, depth=2), final="report")


@growing.step
async def plans(ctx: Context, args: int) -> int:
    """Submits as many steps as it is told, and one that joins them."""
    parts = [node(f"part {n}", part, args={"n": n}) for n in range(args)]
    verdict = await ctx.submit([*parts, node("sum", total, needs=[f"part {n}" for n in range(args)])])
    await ctx.sleep("nap", 10)
    return args if verdict else 0


async def part(ctx: Context, args: dict[str, int]) -> int:
    """One of them."""
    return args["n"]


async def total(ctx: Context, args: dict[str, int]) -> int:
    """All of them; and another generation."""
    await ctx.submit([node("last", part, args={"n": sum(args.values())})])
    return sum(args.values())


@growing.step
async def report(ctx: Context, args: Any) -> str:
    """The end."""
    return "reported"


gate = Graph("gate", context={"open": False})


@gate.step(mode="inclusive", next=["gated", "opens"])
async def begin(ctx: Context, args: Any) -> None:
    """Two branches."""


@gate.step(admit=E.ctx.open)
async def gated(ctx: Context, args: Any) -> str:
    """Is pending for a while."""
    return "through"


@gate.step
async def opens(ctx: Context, args: Any) -> None:
    """Opens the other."""
    await ctx.sleep("nap", 30)
    ctx.patch(open=True)


racing = Graph("racing")


@racing.step
async def quick(ctx: Context, args: Any) -> str:
    """Wins."""
    await ctx.sleep("nap", 1)
    return "quick"


@racing.step
async def slow(ctx: Context, args: Any) -> str:
    """Loses."""
    await ctx.step("begin", str, "begun")
    await ctx.sleep("nap", 1000)
    return "slow"


@racing.step(needs=["quick", "slow"], join=quorum(1))
async def winner(ctx: Context, args: dict[str, str]) -> list[str]:
    """The first."""
    return list(args.values())


approval = Graph("approval")


@approval.step(next=[arc("approved", when=E.output.ok), arc("rejected")])
async def ask(ctx: Context, args: Any) -> Any:
    """Waits for an answer."""
    return await ctx.listen("answer")


@approval.step
async def approved(ctx: Context, args: Any) -> str:
    """One way."""
    return "approved"


@approval.step
async def rejected(ctx: Context, args: Any) -> str:
    """The other."""
    return "rejected"


@workflow
async def two(ctx: Context, n: int) -> list[Any]:
    """Two graphs, one after the other, and one in a branch."""
    one: GraphResult = await ctx.graph("one", joined, n)

    async def branch(ctx: Context) -> Any:
        return (await ctx.graph("inner", cyclic)).outputs

    async def other(ctx: Context) -> Any:
        return (await ctx.graph("inner", failing, -1)).outputs

    both = await ctx.join("both", {"a": branch, "b": other})
    return [one.outputs, both]


@workflow
async def over(ctx: Context) -> str:
    """A graph that loses a race."""

    async def graph(ctx: Context) -> str:
        await ctx.graph("g", approval)
        return "graph"

    async def nap(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "nap"

    return (await ctx.race("race", {"graph": graph, "nap": nap})).winner
