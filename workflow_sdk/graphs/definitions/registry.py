"""Definitions of graphs that were checked before anything starts: by name and version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.digest import digest
from workflow_sdk.graphs.definitions.exporting import document_of
from workflow_sdk.graphs.definitions.files import files_in, read_file
from workflow_sdk.graphs.definitions.problems import InvalidGraphError
from workflow_sdk.graphs.graph import Graph
from workflow_sdk.graphs.model import Problem
from workflow_sdk.graphs.names import named
from workflow_sdk.graphs.narrowing import is_mapping
from workflow_sdk.rows.wire import shown

MODES: Final = ("strict", "warn")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A definition that is not valid, and so can't be started."""

    name: str
    version: int | None
    where: str
    """The file that it is in; empty, if it is in none."""
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return f"{self.where or f'graph {self.name!r}'}: {'; '.join(map(str, self.problems))}"


@dataclass(frozen=True, slots=True)
class _Given:
    """What was added: a graph, or a document, and where it comes from."""

    what: Any
    where: str = ""


class Registry:
    """Graphs of a program, checked together when it is opened, and not changed after that.

    With `mode="strict"` the first that is not valid fails the opening, with everything that is wrong with it. With
    `mode="warn"` those that are not valid are listed in `unavailable`, and can't be started.
    """

    def __init__(
        self,
        functions: Mapping[str, Any] | Iterable[Any] = (),
        transports: Mapping[str, Any] | None = None,
        mode: Literal["strict", "warn"] = "strict",
    ) -> None:
        if mode not in MODES:
            raise DefinitionError(f'mode is "strict" or "warn", not {shown(mode)}')
        self.mode = mode
        self.unavailable: list[Unavailable] = []
        """The definitions that are not valid, once it is open."""
        self._functions = named(functions)
        self._transports = transports
        self._given: list[_Given] = []
        self._graphs: dict[tuple[str, int], Graph] = {}
        self._documents: dict[tuple[str, int], tuple[Mapping[str, Any], str]] = {}
        self._is_open = False

    def add(self, *given: Graph | Mapping[str, Any]) -> None:
        """Add graphs, or canonical definitions of some."""
        self._check_not_open()
        for one in given:
            if not isinstance(one, (Graph, Mapping)):
                raise DefinitionError(f"a registry has graphs and canonical definitions, not {shown(one)}")
            self._given.append(_Given(one))

    def load(self, directory: str | Path) -> None:
        """Add the definitions in the JSON and YAML files of a directory."""
        self._check_not_open()
        self._given += [_Given(path, str(path)) for path in files_in(Path(directory))]

    def open(self) -> Registry:
        """Check everything that was added. From now on the registry, and its graphs, can't be changed."""
        if not self._is_open:
            try:
                for one in self._given:
                    self._take(one)
            except DefinitionError:
                self._graphs, self._documents = {}, {}
                raise
            self._is_open = True
        return self

    def resolve(self, name: str, version: int | None = None) -> Graph:
        """The graph of this name and version; without a version, the newest. DefinitionError, if there is none."""
        self.open()
        versions = [one for known, one in self._graphs if known == name]
        found = self._graphs.get((name, max(versions, default=0) if version is None else version))
        if found is None:
            raise DefinitionError(self.why_not(name, version))
        return found

    def canonical(self, name: str, version: int | None = None) -> Mapping[str, Any]:
        """The canonical definition of a graph."""
        graph = self.resolve(name, version)
        return self._documents[graph.name, graph.version][0]

    def hash(self, name: str, version: int | None = None) -> str:
        """The hash of a graph, as `graph.hash` has it."""
        graph = self.resolve(name, version)
        return self._documents[graph.name, graph.version][1]

    def versions(self, name: str) -> list[int]:
        """The versions of a graph that can be started, oldest first."""
        self.open()
        return sorted(version for known, version in self._graphs if known == name)

    def __iter__(self) -> Iterator[Graph]:
        """The newest version of each graph."""
        self.open()
        return iter([self.resolve(name) for name in dict.fromkeys(name for name, _ in self._graphs)])

    def is_unavailable(self, name: str) -> bool:
        """Whether a definition of this name was given, and is not valid."""
        return any(one.name == name for one in self.unavailable)

    def why_not(self, name: str, version: int | None = None) -> str:
        """Why there is no graph of this name and version."""
        told = [str(one) for one in self.unavailable if one.name == name and version in (None, one.version)]
        what = f"graph {name!r}" if version is None else f"version {version} of graph {name!r}"
        if told:
            return f"{what} is not available: {'; '.join(told)}"
        known = ", ".join(sorted({repr(name) for name, _ in self._graphs})) or "none"
        return f"there is no {what} in the registry; it has: {known}"

    # Opening.

    def _check_not_open(self) -> None:
        if self._is_open:
            raise DefinitionError("a registry that is open can't be changed any more")

    def _take(self, given: _Given) -> None:
        what: Any = given.what
        try:
            if isinstance(what, Path):
                what = Graph.load(what, self._functions, self._transports)
            self._keep(what if isinstance(what, Graph) else Graph.from_data(what, self._functions, self._transports))
        except DefinitionError as error:
            problems = error.problems if isinstance(error, InvalidGraphError) else (Problem("", str(error)),)
            name, version = _named(given.what)
            if self.mode == "strict":
                raise InvalidGraphError(given.where or f"graph {name!r}", _without(given.where, problems)) from None
            self.unavailable.append(Unavailable(name, version, given.where, _without(given.where, problems)))

    def _keep(self, graph: Graph) -> None:
        document = document_of(graph)
        key, found = (graph.name, graph.version), digest(document)
        if key in self._documents:
            if self._documents[key][1] != found:
                raise DefinitionError(f"there are two different graphs {graph.name!r} of version {graph.version}")
            return
        graph.freeze()
        self._graphs[key], self._documents[key] = graph, (document, found)


def _named(what: Any) -> tuple[str, int | None]:
    """The name and version of what can't be read, as far as they can be seen."""
    if isinstance(what, Graph):
        return what.name, what.version
    stem = ""
    if isinstance(what, Path):
        stem = what.stem
        try:
            what = read_file(what)
        except DefinitionError:
            return stem, None
    data: Any = what if is_mapping(what) else {}
    data = data["metadata"] if is_mapping(data.get("metadata")) else data
    name, version = data.get("name"), data.get("version", 1)
    return (name if isinstance(name, str) else stem, version if type(version) is int else None)


def _without(where: str, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems without the name of the file, which is told beside them."""
    return tuple(Problem(one.where, one.text.removeprefix(f"{where}: ")) for one in problems)
