"""Functions, graphs with every kind of step, and random ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from workflow_sdk import Backoff, Context, workflow
from workflow_sdk.graphs import E, Graph, Limits, arc, on, otherwise, quorum, rule, task
from workflow_sdk.graphs.model import On


@dataclass
class Ticket:
    """What a run is given."""

    kind: str
    items: list[int]
    note: str | None = None


@dataclass
class Triage:
    """What `classify` gives."""

    kind: str
    score: float


class OutOfStockError(Exception):
    """An error that is not retried."""


async def classify(ctx: Context, args: Any) -> Triage:
    return Triage("bug", 0.5)


async def fix(ctx: Context, args: Any) -> Any: ...


def judge(args: Any) -> Any: ...


async def undo(value: Any) -> None: ...


@workflow
async def other(ctx: Context, number: int) -> int:
    return number


NO_FUNCTIONS: list[Any] = []
FUNCTIONS = [classify, fix, judge, undo, other, OutOfStockError, Ticket]


def every_kind() -> Graph:
    """A graph with a step of each kind, in most of the ways in which one can be written."""
    graph = Graph(
        "kinds", workload=Ticket, entry="noop", context={"since": date(2026, 1, 31)}, retention=60, about={"by": "ada"}
    )
    others = ["assign", "task", "wait", "nap", "alarm", "call", "child", "leave", "choose", "repeat", "sequence"]
    others += ["each", "fan", "best", "cup", "sieve", "pipe", "step"]
    graph.noop("noop", next=others, mode="inclusive")
    graph.assign("assign", {"kind": E.workload.kind, "two": 2, "since": datetime(2026, 1, 31, tzinfo=UTC)})
    graph.task("task", payload={"x": E.args.y}, roles=["admin"], type=int, timeout=60)
    graph.wait("wait", message="paid", timeout=timedelta(days=3))
    graph.wait("nap", duration=5)
    graph.wait("alarm", until=E.args.until)
    graph.call("call", transport="http", payload={"url": "x"}, result="page", next=[arc("end", on="failed")])
    graph.child("child", other, E.workload.kind)
    graph.continue_with("leave", "elsewhere", input=3)
    graph.choose("choose", [arc("end", when=E.args.x == 1)], otherwise="rest")
    graph.repeat("repeat", fix, until=E.output.done == True, maximum=3)  # noqa: E712  # an expression
    graph.sequence("sequence", [fix, judge], retries=1)
    graph.step("each", fix, each=E.workload.items, parallel=4)
    graph.fan_out("fan", fix, over=E.workload.items, then=judge)
    graph.best_of("best", fix, n=3, judge=judge)
    graph.tournament("cup", [fix, judge], judge=judge)
    graph.generate_and_filter("sieve", fix, judge)
    policy = [on(E.error.kind == "timeout").retry(3, backoff=Backoff(initial=1)), on().jump("parse")]
    rules = [on(E.output.x == 1).break_(), on().fail(), on().continue_()]
    graph.step("pipe", tasks=[task("fetch", fix, policy=policy), task("parse", judge, policy=rules, timeout=3)])
    graph.step(
        "step",
        fix,
        admit=[rule(when=E.ctx.since != None, allow=True), otherwise(allow=False)],  # noqa: E711
        on_deny="discard",
        trust="quarantined",
        access="write",
        retries=5,
        backoff=Backoff(initial=1, factor=3, maximum=timedelta(minutes=1)),
        timeout=timedelta(seconds=2),
        retry_on_timeout=False,
        no_retry=(ValueError, OutOfStockError),
        rollback=undo,
    )
    graph.noop("end")
    graph.noop("rest")
    graph.step("merge", judge, needs=["nap", "wait", "task"], join=quorum(2))
    graph.step("gather", judge, needs=["nap", "wait"], join="alive")
    return graph


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | _texts
    | st.binary(max_size=4)
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.sampled_from([Decimal("1.50"), "on", "no", "1", "0x1", "{{ x }}"])
    | st.just({"$": "output.x + 1"}),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(_texts.filter(lambda key: key != "$"), inner, max_size=3)
    | st.dictionaries(st.sampled_from(["$date", "$literal", "$bytes", "$args"]), inner, max_size=1),
    max_leaves=6,
)  # fmt: skip
_conditions = st.sampled_from([None, "ctx.kind == 'a'", "output.x > 0.5 and 'b' in output.tags", "len(args) == 1"])
_options = st.fixed_dictionaries(
    {},
    optional={
        "retries": st.integers(0, 9),
        "timeout": st.integers(1, 99) | st.floats(0.5, 99),
        "backoff": st.builds(Backoff, initial=st.floats(0, 9), factor=st.integers(1, 3)),
        "no_retry": st.sampled_from([ValueError, (KeyError, OutOfStockError)]),
        "rollback": st.just(undo),
        "retry_on_timeout": st.booleans(),
    },
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A sound graph: each step leads to the next, and maybe to others, or needs some of those before."""
    plain = st.dictionaries(_texts, st.integers() | _texts | st.dates(), max_size=2)
    count = draw(st.integers(1, 7))
    names = draw(st.lists(_texts.filter(bool), min_size=count, max_size=count, unique=True))
    graph = Graph(
        draw(_texts.filter(bool)),
        version=draw(st.integers(1, 9)),
        workload=draw(st.sampled_from([None, Ticket, int, list[str]])),
        context=draw(plain),
        limits=Limits(running=draw(st.none() | st.integers(0, 9)), nodes=draw(st.none() | st.integers(0, 9))),
        status=draw(st.sampled_from(["strict", "lenient", "fail_fast"])),
        no_match=draw(st.sampled_from(["end", "error"])),
        retention=draw(st.none() | st.floats(0, 1e6)),
    )
    has_needs = draw(st.booleans())
    for at, name in enumerate(names):
        options: dict[str, Any] = draw(_options)
        if has_needs:
            options["needs"] = draw(st.lists(st.sampled_from(names[:at]), unique=True, max_size=3)) if at else []
        else:
            more = draw(st.lists(st.sampled_from(names), max_size=2))
            steps = [*names[at + 1 : at + 2], *more]
            ends: st.SearchStrategy[On] = st.sampled_from(["done", "failed", "any"])
            args = st.none() | st.dictionaries(_texts.filter(lambda key: key != "$"), _values, max_size=2)
            options["next"] = [arc(one, when=draw(_conditions), args=draw(args), on=draw(ends)) for one in steps]
            options["mode"] = draw(st.sampled_from(["exclusive", "inclusive"]))
        fn: Any = draw(st.sampled_from([fix, judge]))
        graph.step(name, fn, **options)
    return graph
