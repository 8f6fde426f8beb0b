"""What is measured of LangGraph: `python -m tests.benchmarks.peers.langgraph_run SCENARIO SETTING`.

The mode of the setting is what keeps the state: "" for nothing, "memory", or how durable it is on SQLite: "sync",
"async", or "exit". Its checkpointer sets a write-ahead log itself; each commit is flushed, as SQLite does by default.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.benchmarks.peers.langgraph_app import COUNT, SCENARIOS, Shape
from tests.benchmarks.peers.measuring import Figures, Setting, costs, repeated
from tests.benchmarks.peers.processes import main

__all__: list[str] = []

STEPS_MAX = 2 * COUNT
"""The limit of supersteps, which is lower by default in some versions."""


def _in_file(setting: Setting) -> bool:
    return setting.mode not in ("", "memory")


def _file(setting: Setting, way: str) -> str:
    """Another one for each scenario: what it finds of another graph, it goes on from."""
    return f"{setting.url.removeprefix('sqlite:///')}-{way}"


@contextmanager
def _saver(setting: Setting) -> Generator[Any]:
    if _in_file(setting):
        with SqliteSaver.from_conn_string(_file(setting, "invoke")) as saver:
            yield saver
    else:
        yield InMemorySaver() if setting.mode else None


@asynccontextmanager
async def _async_saver(setting: Setting) -> AsyncGenerator[Any]:
    if _in_file(setting):
        async with AsyncSqliteSaver.from_conn_string(_file(setting, "ainvoke")) as saver:
            yield saver
    else:
        yield InMemorySaver() if setting.mode else None


def _config(number: int) -> dict[str, object]:
    return {"recursion_limit": STEPS_MAX, "configurable": {"thread_id": f"run-{number}"}}


def _options(setting: Setting) -> dict[str, object]:
    return {"durability": setting.mode} if _in_file(setting) else {}


def _check(shape: Shape, state: Any) -> None:
    found = {name: state.get(name) for name in shape.expected}
    assert found == shape.expected, found


async def _by_invoke(shape: Shape, setting: Setting) -> Figures:
    with _saver(setting) as saver:
        graph = shape.plain().compile(checkpointer=saver)

        async def run(number: int) -> None:
            _check(shape, graph.invoke(dict(shape.given), _config(number), **_options(setting)))

        return costs(COUNT, await repeated(setting, run))


async def _by_ainvoke(shape: Shape, setting: Setting) -> Figures:
    async with _async_saver(setting) as saver:
        graph = shape.asynchronous().compile(checkpointer=saver)

        async def run(number: int) -> None:
            _check(shape, await graph.ainvoke(dict(shape.given), _config(number), **_options(setting)))

        return costs(COUNT, await repeated(setting, run))


async def _faster(shape: Shape, setting: Setting) -> Figures:
    """Both ways to run it; the figures of the faster one."""
    ways: dict[str, Callable[[Shape, Setting], Awaitable[Figures]]] = {"invoke": _by_invoke, "ainvoke": _by_ainvoke}
    found = {name: await way(shape, setting) for name, way in ways.items()}
    walls = {f"wall_us_by_{name}": figures["wall_us_per_operation"] for name, figures in found.items()}
    best = min(found.values(), key=lambda figures: float(str(figures["wall_us_per_operation"])))
    return {**best, **walls}


if __name__ == "__main__":
    main({name: partial(_faster, shape) for name, shape in SCENARIOS.items()}, {})
