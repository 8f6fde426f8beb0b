"""A graph, as its author declares it; and the operation that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, overload

import workflow_sdk.graphs.declaring as declaring
from workflow_sdk.context import Context
from workflow_sdk.definitions import Workflow, check_retention, function_name, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.checks import called_in, problems_of
from workflow_sdk.graphs.declaring import Declares, functions_of
from workflow_sdk.graphs.definitions.digest import digest as digest_of
from workflow_sdk.graphs.definitions.exporting import document_of, exported, hash_of
from workflow_sdk.graphs.definitions.importing import Functions, Parts, parts_of, stand_ins
from workflow_sdk.graphs.definitions.playbook import parts_in_file, parts_of_playbook
from workflow_sdk.graphs.definitions.problems import InvalidGraphError
from workflow_sdk.graphs.definitions.python import python_of
from workflow_sdk.graphs.definitions.settings import check_given, check_settings
from workflow_sdk.graphs.definitions.uses import Uses, uses_of
from workflow_sdk.graphs.definitions.yaml_text import write_yaml
from workflow_sdk.graphs.drawing import Layout, NodeStatus, layout, to_dot, to_mermaid, to_svg
from workflow_sdk.graphs.model import GraphResult, Limits, Node, Problem
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.operation import Recorded, Whole, start_graph
from workflow_sdk.graphs.outside import read_begun
from workflow_sdk.graphs.pictures import Seen, drawing_of, statuses_of
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.transports import BUILT_IN
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.types import Coro
from workflow_sdk.rows.retry import Duration
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec

F = TypeVar("F", bound=Callable[..., Any])
Next = Any
"""Arcs and names of steps, one or several."""


class Graph(Workflow[Any, GraphResult]):
    """Steps with the arcs between them. It is a workflow: it is started, listed, cancelled and tested as any other."""

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        workload: Any = None,
        context: Mapping[str, Any] | None = None,
        entry: str | None = None,
        final: str | None = None,
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
        status: Literal["strict", "lenient", "fail_fast"] = "strict",
        no_match: Literal["end", "error"] = "end",
        when_blocked: Literal["wait", "complete"] = "wait",
        final_failure: Literal["fail", "partial"] = "fail",
        functions: Mapping[str, Any] | Iterable[Any] = (),
        transports: Mapping[str, Callable[..., Any]] | None = None,
        retention: Duration | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        async def run(ctx: Context, workload: Any = None) -> Any:
            return await ctx.graph(self.name, Whole(self), workload)

        check_settings(name, version, status, no_match, when_blocked, final_failure)
        check_given(limits, context=context, about=about)
        if (problem := name_problem(name)) is not None:
            raise DefinitionError(f"the name of a graph: {problem}")
        super().__init__(run, name, version, "strict", check_retention(retention))
        self.__module__ = _module_of_caller()
        self.workload = workload
        """The type of what a run is given, or its JSON schema as a dict; None: anything."""
        self.context: dict[str, Any] = dict(context or {})
        """What the context of a run begins with."""
        self.about: Mapping[str, Any] = dict(about or {})
        """What is to be known of the graph, as plain data. It is in the definition, and no run reads it."""
        given = entry, final, limits, status, no_match, when_blocked, final_failure
        self.settings: dict[str, Any] = dict(zip(Plan.SETTINGS, given, strict=True))
        self.names: Names = Names(functions, transports)
        """The functions of the graph, by the names that data has for them."""
        self._nodes: dict[str, Node] = {}
        self._missing: list[str] = []
        """Functions that the graph was read without."""
        self._plan: Plan | None = None
        """Once it was used. From then on nothing is added."""

    # Steps. Each method declares one of its kind; `options` are `next`, `mode`, `needs`, `join`, `admit`, `on_deny`,
    # `trust`, `access`, and those of `ctx.step`.

    @overload
    def step(self, fn: F, /) -> F: ...
    @overload
    def step(self, fn: str, body: F, /, **options: Any) -> F: ...
    @overload
    def step(self, fn: str | None = None, /, **options: Any) -> Callable[[F], F]: ...
    def step(self, fn: Any = None, body: Any = None, /, **options: Any) -> Any:
        """Declare a step: `@graph.step(...)` over a function of a ctx and arguments, or `graph.step(name, fn, ...)`.

        With `each=`, an expression for a list, it is called for every item, `parallel` of them at once; the output is
        the list of what the calls gave, in order. With `tasks=`, a list of `task(...)`, they are run in order inside
        one firing; the output is that of the last.
        """
        is_over_function = is_function(fn) and not isinstance(fn, str) and body is None
        name: Any = options.pop("name", None) if fn is None or is_over_function else fn
        if "tasks" in options:
            if body is not None or (fn is not None and not isinstance(fn, str)) or "each" in options:
                raise DefinitionError(f"step {name!r} has `tasks`, which are run instead of a function or of `each`")
            return self.add(declaring.pipeline(name, options.pop("tasks"), options))
        if is_over_function:
            return self._declare(name, fn, options)

        def declare(fn: Any) -> Any:
            return self._declare(name, fn, options)

        return declare if body is None else declare(body)

    def _declare(self, name: str | None, fn: Any, options: Mapping[str, Any]) -> Any:
        if not is_function(fn):
            raise DefinitionError(f"a step is declared over a function, not {shown(fn)}")
        self.add(declaring.step(function_name(fn) if name is None else name, fn, options))
        return fn

    noop: Final = Declares(declaring.noop)
    choose: Final = Declares(declaring.choose)
    assign: Final = Declares(declaring.assign)
    task: Final = Declares(declaring.task)
    wait: Final = Declares(declaring.wait)
    call: Final = Declares(declaring.call)
    child: Final = Declares(declaring.child)
    continue_with: Final = Declares(declaring.continue_with)
    repeat: Final = Declares(declaring.repeat)
    sequence: Final = Declares(declaring.sequence)
    fan_out: Final = Declares(declaring.fan_out)
    best_of: Final = Declares(declaring.best_of)
    tournament: Final = Declares(declaring.tournament)
    generate_and_filter: Final = Declares(declaring.generate_and_filter)

    def add(self, node: Node) -> None:
        """Add a step that was made by `node(...)`."""
        if self._plan is not None:
            raise DefinitionError(f"graph {self.name!r} was used, and can't be changed any more")
        if node.name in self._nodes:
            raise DefinitionError(f"graph {self.name!r} has two steps {node.name!r}; give one of them another name")
        for fn in functions_of(node):
            self.names.meet(fn)
        self._nodes[node.name] = node

    # Using it.

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The steps, by name, in the order in which they were declared."""
        return MappingProxyType(self._nodes)

    def validate(self) -> list[Problem]:
        """Everything that is wrong with the graph; empty if it can be run."""
        return problems_of(self)

    def freeze(self) -> Plan:
        """The plan of a run, which begins with the declared steps. From now on the graph can't be changed."""
        return self._prepared().copy()

    def _prepared(self) -> Plan:
        if self._plan is None:
            if problems := self.validate():
                raise InvalidGraphError(f"graph {self.name!r} can't be run", problems)
            self._plan = Plan(self._nodes.values(), **self.settings)
            self._plan.prepare()
        return self._plan

    def check(self) -> None:
        """Raise `DefinitionError`, with everything that is wrong, if it can't be run. It is not changed after that."""
        self._prepared()
        if self._missing:
            raise DefinitionError(
                f"graph {self.name!r} was read without functions, and can't be run; give {', '.join(self._missing)} in "
                "`functions`"
            )
        _ = self.pinned  # every run needs it, and it takes a while to make

    @property
    def plan(self) -> Plan:
        """The steps as a plan, for a submission of the whole graph."""
        return self.freeze()

    def start_in(self, scope: Any, name: str, workload: Any) -> Coro[GraphResult]:
        """Register a run as an operation of a scope."""
        return start_graph(scope, name, self, workload)

    # As data.

    def to_data(self) -> dict[str, Any]:
        """The canonical definition: plain data, with functions by their names.

        DefinitionError with everything that is wrong, if the graph is not sound or has what data can't have.
        """
        return document_of(self)

    @classmethod
    def from_data(cls, data: Any, functions: Functions = (), transports: Mapping[str, Any] | None = None) -> Graph:
        """The graph that a canonical definition describes, with these functions for the names in it.

        With `functions=None` it can be looked at, and not be run. DefinitionError with everything that is wrong, and
        where.
        """
        return cls._made_of(parts_of(data, functions, transports))

    @classmethod
    def load(cls, path: str | Path, functions: Functions = (), transports: Mapping[str, Any] | None = None) -> Graph:
        """The graph that a canonical definition or a playbook in a file describes: JSON or YAML, as its ending says.

        YAML needs the extra `yaml`.
        """
        return cls._made_of(parts_in_file(Path(path), functions, transports))

    @classmethod
    def from_playbook(
        cls, data: Any, functions: Functions = None, transports: Mapping[str, Any] | None = None
    ) -> Graph:
        """The graph that a playbook describes: `metadata`, `executor`, `workload` and `workflow`, a list of steps.

        Without `functions` it can be looked at, and be run if it calls none. DefinitionError with everything that is
        wrong, and where.
        """
        return cls._made_of(parts_of_playbook(data, functions, transports))

    @classmethod
    def _made_of(cls, parts: Parts) -> Graph:
        graph = cls(parts.name, **parts.settings)
        graph.default_input = parts.default
        graph.names.callable = graph.names.functions  # what is read calls what it is given, and nothing else
        for node in parts.nodes:
            graph.add(node)
        graph._missing = stand_ins(one for node in parts.nodes for one in functions_of(node))
        return graph

    @property
    def uses(self) -> Uses:
        """The functions, transports and workflows that the canonical definition names, and their modules."""
        return uses_of(*exported(self))

    @property
    def pinned(self) -> tuple[bytes, dict[str, Any]] | None:
        """The digest of the definition and the definition, which instances go on with; None if it can't be exported."""
        return self._pinned

    @cached_property
    def _pinned(self) -> tuple[bytes, dict[str, Any]] | None:
        try:
            data = self.to_data()
        except DefinitionError:
            return None
        return bytes.fromhex(digest_of(data)), data

    def to_python(self) -> str:
        """The text of a Python module that builds an equal graph, which it calls `graph`."""
        for name in sorted(called_in(self._nodes) & self.names.callable.keys() - self.names.functions.keys()):
            self.names.meet(self.names.callable[name])
        return python_of(self)

    @property
    def hash(self) -> str:
        """The SHA-256 of the canonical definition: it is the same after export and import, in any format."""
        return hash_of(self)

    def to_yaml(self) -> str:
        """The canonical definition as YAML. It needs the extra `yaml`."""
        return write_yaml(document_of(self))

    # As a picture.

    def statuses(self, seen: Seen | Iterable[Seen], path: str | None = None) -> Mapping[str, NodeStatus]:
        """What has become of each step, as far as an `info()`, a `history()`, a result, or several of them tell.

        `path`: of a run inside a workflow, where it is.
        """
        return statuses_of(self, seen, path) or {}

    def layout(self) -> Layout:
        """Where each step and each arc goes in a picture; the same for the same graph, to the byte."""
        return layout(drawing_of(self))

    def to_svg(self, status: Seen | Iterable[Seen] | None = None, path: str | None = None) -> str:
        """A picture; with a `status` (such as an instance's `info()`) it shows what has become of each step.

        `path`: as in `statuses`.
        """
        return to_svg(drawing_of(self), statuses_of(self, status, path))

    def to_mermaid(self) -> str:
        """A flowchart for Mermaid, which Markdown pages show as a picture."""
        return to_mermaid(drawing_of(self))

    def to_dot(self) -> str:
        """A graph for Graphviz."""
        return to_dot(drawing_of(self))

    # As a workflow.

    @property
    def input_hint(self) -> object:
        """The type of the workload."""
        return Any if self.workload is None or isinstance(self.workload, Mapping) else self.workload

    def check_calls(self, transports: Mapping[str, Callable[..., Any]]) -> None:
        """Raise `DefinitionError`, if the graph makes calls that nobody can make."""
        have = transports.keys() | self.names.transports.keys() | BUILT_IN.keys()
        calls = {name: node.details["transport"] for name, node in self._nodes.items() if node.kind == "call"}
        if unknown := [f"step {name!r} of {one!r}" for name, one in calls.items() if one not in have]:
            raise DefinitionError(
                f"graph {self.name!r} makes calls that nobody can make: {', '.join(unknown)}; give what makes them to "
                "Runtime(transports={name: function})"
            )

    def read_input(self, codec: Codec, raw: bytes) -> Any:
        """The workload; or what another system has begun with it."""
        return read_begun(codec, raw, self.input_hint)

    def write_output(self, codec: Codec, value: Any) -> tuple[bytes | None, bytes | None]:
        """The output as it is stored, which is what the run has recorded."""
        return value if isinstance(value, Recorded) else super().write_output(codec, value)

    @property
    def output_hint(self) -> object:
        """What a run gives."""
        return GraphResult

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the declared steps and of their code."""
        digest = sha256()
        for node in self._nodes.values():
            code = getattr(getattr(node.fn, "fn", node.fn), "__code__", None)
            digest.update(repr((node.name, node.kind, node.needs, [arc.step for arc in node.next])).encode())
            digest.update(b"" if code is None else code.co_code)
        return digest.hexdigest()[:32]

    def __repr__(self) -> str:
        return f"<graph {self.name} version {self.version}, {len(self._nodes)} steps>"


def _module_of_caller() -> str:
    """The module that makes the graph: functions of it may be named by rows, as those of a workflow's module."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("workflow_sdk.graphs"):
        frame = frame.f_back
    return "__main__" if frame is None else str(frame.f_globals.get("__name__", "__main__"))
