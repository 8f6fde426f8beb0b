"""The commands about graphs: look at a definition, check it, and try every way through it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from workflow_sdk import Client, History, InstanceInfo
from workflow_sdk.cli.options import made, named
from workflow_sdk.cli.output import in_json, safe
from workflow_sdk.graphs import Graph, InvalidGraphError, graph_schema, stored_graph

_ENDINGS = (".json", ".yaml", ".yml")
_functions_option = click.option(
    "--functions", metavar="MODULE:OBJECT", help="The functions of a file, a list or a dict. Without: not looked at."
)
_graph_argument = click.argument("target", metavar="FILE|MODULE:GRAPH")


def graph_of(target: str, functions: str | None = None) -> Graph:
    """The graph in a file, or the one that `module:attribute` names."""
    if target.endswith(_ENDINGS) or Path(target).is_file():
        found = None if functions is None else made(functions, named(functions, "app:functions"), "functions")
        return Graph.load(target, functions=found)
    graph = made(target, named(target, "app:graph"), "graph")
    if not isinstance(graph, Graph):
        raise click.UsageError(f"{target} is a {type(graph).__name__!r}, and no graph")
    return graph


_FORMATS: Mapping[str, Callable[[Graph], str]] = {
    "text": lambda graph: "\n".join(lines_of(graph, {})),
    "svg": lambda graph: graph.to_svg(),
    "mermaid": lambda graph: graph.to_mermaid(),
    "dot": lambda graph: graph.to_dot(),
    "json": lambda graph: in_json(graph.to_data(), indent=2),
    "yaml": lambda graph: graph.to_yaml(),
    "python": lambda graph: graph.to_python(),
}


@click.group()
def graph() -> None:
    """Look at definitions of graphs, and check them."""


@graph.command("show")
@_graph_argument
@_functions_option
@click.option("--as", "form", type=click.Choice(list(_FORMATS)), default="text", show_default=True, help="How.")
def _show(target: str, functions: str | None, form: str) -> None:
    """Show a graph: its steps, as a picture, or its canonical definition."""
    click.echo(_FORMATS[form](graph_of(target, functions)).rstrip("\n"))


@graph.command("validate")
@_graph_argument
@_functions_option
def _validate(target: str, functions: str | None) -> None:
    """Tell everything that is wrong with a graph, a line for each; the exit code is 0 if that is nothing."""
    try:
        found = graph_of(target, functions)
        # A graph in code may have what no definition can have, and run all the same.
        problems = tuple(found.validate())
        name, version = found.name, found.version
    except InvalidGraphError as error:
        problems, name, version = error.problems, "", 0
    for problem in problems:
        click.echo(safe(str(problem)))
    if problems:
        raise click.ClickException(f"{safe(target)} has {len(problems)} problem{'s' if len(problems) > 1 else ''}")
    click.echo(f"graph {safe(name)} version {version} is valid")


@graph.command("explore")
@_graph_argument
@_functions_option
@click.option("--depth", type=click.IntRange(min=1), help="So many ends of steps one after the other.")
@click.option("--outside", multiple=True, metavar="KEY", help="A key of the context that is patched from outside.")
def _explore(target: str, functions: str | None, depth: int | None, outside: tuple[str, ...]) -> None:
    """Try every way through a graph, without running anything; the exit code is 0 if nothing is wrong on any."""
    # The testing kit is not for those who only look at graphs: it is imported when it is asked for.
    explore: Any = import_module("workflow_sdk.testing").explore
    far = {} if depth is None else {"depth": depth}
    found = explore(graph_of(target, functions), outside=outside, **far)
    findings = found.findings
    for one in findings:
        click.echo(safe(f"{one.kind}: {one.node}: {' -> '.join(map(str, one.way))}"))
    if findings:
        raise click.ClickException(f"{safe(target)} has {len(findings)} finding{'s' if len(findings) > 1 else ''}")
    click.echo(
        "nothing was found" if found.is_complete else f"nothing was found in {found.states} states; there are more"
    )


@graph.command("schema")
def _schema() -> None:
    """Print the JSON schema of canonical definitions."""
    click.echo(in_json(graph_schema(), indent=2))


def lines_of(graph: Graph, statuses: Mapping[str, str]) -> Iterator[str]:
    """A graph as lines of text, with the status of each step where there is one."""
    yield safe(f"{graph.name}  version {graph.version}, {len(graph.nodes)} steps")
    width = max((len(name) for name in graph.nodes), default=0)
    for name, node in graph.nodes.items():
        parts = [f"  {name:<{width}}", f"{statuses.get(name, ''):<13}" if statuses else "", node.kind, *_placing(node)]
        yield safe("  ".join(filter(None, parts)).rstrip())


def _placing(node: Any) -> Iterator[str]:
    """How a step stands among the others, in words."""
    if node.needs:
        yield f"needs {', '.join(node.needs)}"
    asked = [("" if rule.allow else "not ") + _text(rule.when) for rule in node.admit if rule.when is not None]
    if asked:
        yield f"if {', '.join(asked)}"
    arcs = [arc.step + ("" if arc.when is None else f" if {_text(arc.when)}") for arc in node.next]
    if arcs:
        yield f"-> {'; '.join(arcs)}"


def _text(condition: Any) -> str:
    return str(getattr(condition, "text", None) or f"{condition.name}()")


async def run_lines(client: Client, info: InstanceInfo, history: History, target: str) -> AsyncIterator[str]:
    """The steps of a run: of the graph that is named, or of those in the store that the instance goes on with."""
    if target:
        for line in _lines_of_run(graph_of(target), [history, info], None):
            yield line
        return
    graphs = [entry for entry in history if entry.kind.value == "graph"]
    for entry in graphs:
        graph = await stored_graph(client, entry.definition)
        if graph is not None:
            for line in _lines_of_run(graph, [history, info], entry.path):
                yield line
            continue
        # It can't be stored: what it has fired is all there is to see.
        yield safe(entry.path)
        for firing in entry.children:
            yield safe(f"  {firing.path}  {firing.status.value}")
    if not graphs:
        yield safe(f"{info.workflow} has run no graph")


def _lines_of_run(graph: Graph, seen: list[History | InstanceInfo], path: str | None) -> Iterator[str]:
    statuses = {name: one.status for name, one in graph.statuses(seen, path).items()}
    yield from lines_of(graph, statuses)
    for name, status in statuses.items():
        if name not in graph.nodes:
            yield safe(f"  {name}  {status}  submitted")
