"""A document as the parts of a graph: checked against the table first, so that all that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from workflow_sdk.definitions import Workflow
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.checks import problems_of
from workflow_sdk.graphs.data import node_from_data
from workflow_sdk.graphs.definitions.format import DETAILS, DOCUMENT, FORMAT, GRAPH
from workflow_sdk.graphs.definitions.plain import Reader
from workflow_sdk.graphs.definitions.problems import TOLD_MAX, InvalidGraphError
from workflow_sdk.graphs.definitions.schemas import schema_of
from workflow_sdk.graphs.definitions.shorthand import in_full
from workflow_sdk.graphs.model import Limits, Node, Problem
from workflow_sdk.graphs.names import BUILTINS, Names, named
from workflow_sdk.graphs.narrowing import is_dict, is_list
from workflow_sdk.graphs.tasks import as_tasks
from workflow_sdk.rows.wire import shown

Functions = Mapping[str, Any] | Iterable[Any] | None
"""Functions by name; None: the graph is only to be looked at, and names stand for functions that can't be called."""
_SETTINGS = ("version", "entry", "final", "status", "no_match", "when_blocked", "final_failure", "retention")
_STANDS_IN = "__stands_in_for__"
BUILT_IN_TRANSPORTS = frozenset({"http"})
"""Transports that need not be given."""
_CHOICES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "wait": (("message", "duration", "until"), 1),
    "tournament": (("entrants", "over"), 1),
    "repeat": (("until", "maximum"), 2),
}
"""Details of which a step has one, or so many at most."""


@dataclass
class Parts:
    """What a document says of a graph."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """As `Graph` takes them."""
    default: Any = None
    """What a run is given, if nothing else is."""
    nodes: list[Node] = field(default_factory=list[Node])


def parts_of(
    data: Any, functions: Functions, transports: Mapping[str, Any] | None = None, where: str | None = None
) -> Parts:
    """What a document says. DefinitionError with everything that is wrong with it, and where."""
    try:
        read = Reader().read(data)
    except DefinitionError as error:
        raise InvalidGraphError(where or "this is no graph", [Problem("", str(error))]) from None
    what = where or _told(read)
    if problems := list(islice(_problems_of(read), TOLD_MAX + 1)):
        raise InvalidGraphError(f"{what} is not valid", problems)
    read = in_full(read, DETAILS)
    given = named(functions if functions is not None else ())
    reading = _Reading(given, transports, is_shown=functions is None)
    nodes = [node for at, step in enumerate(read["steps"]) if (node := reading.step(at, step)) is not None]
    settings = _settings(read, given)
    if reading.problems:
        # What is wrong with the whole is told beside them.
        whole = problems_of(_Draft(settings, nodes, given)) if len(nodes) == len(read["steps"]) else []
        raise InvalidGraphError(f"{what} is not valid", [*reading.problems, *whole])
    return Parts(read["name"], {**settings, "transports": transports}, read.get("default"), nodes)


def _settings(data: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What `Graph` takes beside its name."""
    found = {key: data[key] for key in _SETTINGS if key in data}
    found["context"] = data.get("context", {})
    found["about"] = data.get("about", {})
    found["limits"] = Limits(**data.get("limits", {}))
    found["workload"] = _workload(data.get("workload"), given.values())
    found["functions"] = given
    return found


class _Draft:
    """A graph as far as it can be checked, if there are functions that are not known."""

    def __init__(self, settings: Mapping[str, Any], nodes: Iterable[Node], functions: Mapping[str, Any]) -> None:
        self.settings = {key: settings.get(key) for key in ("entry", "final")}
        self.workload = settings["workload"]
        self.names = Names(functions)
        self.names.callable = self.names.functions
        self.nodes = {node.name: node for node in nodes}


def _told(data: Any) -> str:
    name = data.get("name") if is_dict(data) else None
    return f"graph {name!r:.100}" if isinstance(name, str) else "this graph"


def _problems_of(data: Any) -> Iterator[Problem]:
    if not is_dict(data):
        yield Problem("", f"a graph is a dict, not {shown(data, 60)}")
        return
    found = data
    if found.get("kind") != DOCUMENT:
        yield Problem("kind", f"a graph begins with `kind: {DOCUMENT}`, not {shown(found.get('kind'), 60)}")
        return
    if found.get("format") != FORMAT or isinstance(found.get("format"), bool):
        yield Problem("format", f"this library reads format {FORMAT}, not {shown(found.get('format'), 60)}")
        return
    yield from _with_names(GRAPH.check(found, ""), found)
    yield from _twice(found)


def _twice(data: Mapping[str, Any]) -> Iterator[Problem]:
    steps = data.get("steps")
    seen: set[str] = set()
    for at, step in enumerate(steps if is_list(steps) else ()):
        name = step.get("name") if is_dict(step) else None
        if isinstance(name, str):
            if name in seen:
                yield Problem(f"steps[{at}].name", f"there are two steps {name!r:.100}")
            seen.add(name)


def _with_names(problems: Iterable[Problem], data: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems, with the names of the steps that they are in."""
    for problem in problems:
        number = problem.where.removeprefix("steps[").partition("]")[0]
        if problem.where.startswith("steps[") and number.isdecimal():
            yield Problem(_place(int(number), data["steps"][int(number)], problem.where), problem.text)
        else:
            yield problem


def _place(at: int, step: Any, where: str = "") -> str:
    """A place in a step, which is told with its name."""
    name = step.get("name") if is_dict(step) else None
    rest = where.removeprefix(f"steps[{at}]")
    return f"steps[{at}] ({name:.100}){rest}" if isinstance(name, str) else f"steps[{at}]{rest}"


class _Reading:
    """Makes steps of data that fits the table, and gathers what can't be made."""

    def __init__(self, functions: Mapping[str, Any], transports: Mapping[str, Any] | None, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._stand_ins: dict[str, Any] = {}
        self._find: Callable[[str], object] = Names(functions).find
        self._transports = None if transports is None else BUILT_IN_TRANSPORTS | set(transports)
        self.problems: list[Problem] = []

    def step(self, at: int, data: Mapping[str, Any]) -> Node | None:
        missing: list[str] = []
        try:
            made = node_from_data(data, self._finder(missing, dict(_uses(data))))
            self._check(made)
        except DefinitionError as error:
            self.problems.append(Problem(_place(at, data), str(error)))
            return None
        self.problems += [Problem(_place(at, data), text) for text in missing]
        return made

    def _finder(self, missing: list[str], uses: Mapping[str, str]) -> Callable[[str], object]:
        """Finds functions; for one that is not there, it notes that and gives another, so that all are told at once."""

        def find(name: str) -> object:
            try:
                return self._find(name)
            except DefinitionError as error:
                if not self._is_shown:
                    missing.append(str(error))
                if name not in self._stand_ins:
                    self._stand_ins[name] = _stand_in(name, uses.get(name, ""))
                return self._stand_ins[name]

        return find

    def _check(self, node: Node) -> None:
        details = node.details
        if node.kind == "pipeline" or node.kind == "sequence":
            as_tasks(node.name, details["tasks"])
        choices, most = _CHOICES.get(node.kind, ((), 1))
        if choices and not 1 <= len(details.keys() & set(choices)) <= most:
            raise DefinitionError(f"a step of the kind {node.kind!r} has one of the details {', '.join(choices)}")
        transport = details.get("transport")
        if self._transports is not None and isinstance(transport, str) and transport not in self._transports:
            raise DefinitionError(f"there is no transport {transport!r:.100}; give it in `transports`")


def _uses(data: Any) -> Iterator[tuple[str, str]]:
    """The names in a step that stand for exceptions, types and workflows."""
    if is_list(data):
        for one in data:
            yield from _uses(one)
    elif is_dict(data):
        for key, one in data.items():
            if key == "no_retry":
                yield from ((name, "no_retry") for name in one)
            elif key in ("workflow", "type") and is_dict(one) and "$fn" in one:
                yield cast("dict[str, str]", one)["$fn"], key
            else:
                yield from _uses(one)


def _stand_in(name: str, use: str) -> object:
    """What stands for a name that is not known. It can be looked at, and not be run."""

    async def missing(ctx: Any, args: Any) -> Any:
        raise DefinitionError(f"there is no function {name!r}: the graph was read without functions")

    missing.__name__ = missing.__qualname__ = name
    setattr(missing, _STANDS_IN, name)
    if use == "workflow":
        return cast("object", Workflow(missing, name, 1, "strict"))
    if use:
        bases: tuple[type, ...] = (Exception,) if use == "no_retry" else ()
        made: Any = type(name, bases, {})
        return cast("object", made)
    return missing


def stand_ins(given: Iterable[object]) -> list[str]:
    """The names of those functions that only stand for others, which were not given."""
    return sorted({name for one in given if isinstance(name := getattr(one, _STANDS_IN, None), str)})


def _workload(schema: Any, given: Iterable[Any]) -> Any:
    """The type of the workload, if it is one of those that were given; else its schema."""
    if not schema:
        return None
    wanted = schema_of(schema)
    for one in (*given, *BUILTINS.values()):
        if isinstance(one, type) and not issubclass(one, BaseException) and schema_of(one) == wanted:
            return cast("object", one)
    return wanted
