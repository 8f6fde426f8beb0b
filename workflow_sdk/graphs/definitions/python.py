"""A graph as the text of a Python module that builds it again."""

from __future__ import annotations

import builtins
import keyword
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from workflow_sdk.definitions import Workflow
from workflow_sdk.graphs.definitions.exporting import Exported, exported
from workflow_sdk.graphs.definitions.plain import Reader
from workflow_sdk.graphs.expressions import function_name as expression_name
from workflow_sdk.graphs.names import BUILTINS, name_in_data
from workflow_sdk.graphs.narrowing import is_dict, is_list

_WIDTH: Final = 100
_PLACING: Final = ("mode", "needs", "admit", "on_deny", "trust", "access")
_METHODS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "noop": ("noop", ()),
    "choose": ("choose", ()),
    "assign": ("assign", ("values",)),
    "task": ("task", ()),
    "wait": ("wait", ()),
    "call": ("call", ()),
    "child": ("child", ("workflow",)),
    "continue": ("continue_with", ("workflow",)),
    "repeat": ("repeat", ()),
    "sequence": ("sequence", ("tasks",)),
    "fan_out": ("fan_out", ()),
    "best_of": ("best_of", ()),
    "tournament": ("tournament", ("entrants", "over")),
    "generate_and_filter": ("generate_and_filter", ("keep",)),
}
"""The method that declares each kind, and which details it takes by their place, after the function."""
_LISTS: Final = frozenset({"items", "over"})
"""Details that are lists, or expressions for one."""
_NAMES: Final = {"items": "each"}
"""Details that the method calls otherwise."""


def python_of(graph: Exported) -> str:
    """The text. DefinitionError, if the graph has no canonical definition."""
    return _Module(graph, *exported(graph)).text()


class _Call:
    """A call, with arguments that are text already."""

    def __init__(self, name: str, *args: str, **named: str) -> None:
        self.name = name
        self.args = [*args, *(f"{key}={value}" for key, value in named.items())]

    def __str__(self) -> str:
        line = f"{self.name}({', '.join(self.args)})"
        if len(line) <= _WIDTH and "\n" not in line:
            return line
        inner = "".join(f"    {one.replace(chr(10), chr(10) + '    ')},\n" for one in self.args)
        return f"{self.name}(\n{inner})"


class _Module:
    """The module of one graph, as it is written."""

    def __init__(self, graph: Exported, document: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self._graph = graph
        self._given = given
        # Read as `Graph.from_data` does, so that marks are the values that they stand for.
        self._document: Mapping[str, Any] = Reader().read(document)
        self._imports: dict[str, set[str]] = {"workflow_sdk.graphs": {"Graph"}}
        self._stubs: list[str] = []
        self._known: dict[str, str] = {}
        """What each function is called in the module, by its name in the document."""
        self._own_names: set[str] = set()
        """Those that the graph knows by the same name as the document, whatever the module calls them."""
        self._taken = {"graph", *dir(builtins), *keyword.kwlist}

    def text(self) -> str:
        """All of it."""
        steps = [str(self._step(step)) for step in self._document["steps"]]
        made = str(self._made())
        default = self._document.get("default")
        parts = [
            f'"""Graph {self._graph.name}, version {self._graph.version}."""'
            if self._has_plain_name
            else '"""A graph."""',
            "",
            *([] if default is None else [f"graph.default_input = {self._value(default)}"]),
            *steps,
        ]
        head, body = parts[:2], parts[2:]
        return (
            "\n".join(
                [
                    *head,
                    *self._import_lines(),
                    *self._stubs,
                    *([""] if self._stubs else []),
                    "",
                    f"graph = {made}",
                    *body,
                ]
            )
            + "\n"
        )

    @property
    def _has_plain_name(self) -> bool:
        return self._graph.name.isprintable() and not set(self._graph.name) & set('"\\')

    def _import_lines(self) -> Iterator[str]:
        for module, names in sorted(self._imports.items()):
            yield f"from {module} import {', '.join(sorted(names))}" if names else f"import {module}"

    def _made(self) -> _Call:
        data = self._document
        named = {key: self._value(data[key]) for key in ("version", "about", "context", "retention") if key in data}
        named |= {key: repr(value) for key, value in self._graph.settings.items() if key in data and key != "limits"}
        if "limits" in data:
            limits = {key: repr(value) for key, value in data["limits"].items()}
            named["limits"] = str(self._public("Limits", **limits))
        if "workload" in data:
            named["workload"] = self._workload(data["workload"])
        if names := self._functions():
            named["functions"] = _bracketed("{", names, "}")
        return _Call("Graph", repr(data["name"]), **named)

    def _workload(self, schema: Any) -> str:
        kind = self._graph.workload
        if isinstance(kind, type) and _place_of(kind) is not None:
            return self._imported(kind.__name__, kind)
        return self._value(schema)

    def _functions(self) -> list[str]:
        """What the graph has to be given by name: what is called otherwise, and what expressions call."""
        names = self._graph.names
        calls = {name_in_data(one) for one in names.functions.values()}
        given = {name: self._function(name) for name in sorted({*self._known, *calls})}
        return [
            f"{name!r}: {called}"
            for name, called in given.items()
            if (called != name and called not in self._own_names) or name in calls
        ]

    def _public(self, name: str, *args: str, **named: str) -> _Call:
        self._imports["workflow_sdk.graphs"].add(name)
        return _Call(name, *args, **named)

    # Steps.

    def _step(self, data: Mapping[str, Any]) -> _Call:
        details: dict[str, Any] = dict(data.get("details", {}))
        kind = data.get("kind", "step")
        method, places = _METHODS.get(kind, ("step", ()))
        args = [repr(data["name"]), *([self._function(data["fn"])] if "fn" in data else [])]
        named: dict[str, str] = {}
        if kind == "choose":
            args.append(self._arcs(data.get("next", [])))
        elif "next" in data:
            named["next"] = self._arcs(data["next"])
        args += [self._detail(details.pop(key), key) for key in places if key in details]
        named |= {_NAMES.get(key) or key: self._detail(one, key) for key, one in details.items()}
        named |= self._placing(data)
        return _Call(f"graph.{method}", *args, **named, **self._options(data.get("options", {})))

    def _placing(self, data: Mapping[str, Any]) -> dict[str, str]:
        named = {key: self._value(data[key]) for key in _PLACING if key in data and key != "admit"}
        if "admit" in data:
            named["admit"] = _bracketed("[", [self._rule(one) for one in data["admit"]], "]")
        if "args" in data:
            named["args"] = self._value(data["args"])
        join = data.get("join")
        if join is not None:
            named["join"] = repr(join) if isinstance(join, str) else str(self._public("quorum", str(join["quorum"])))
        return named

    def _rule(self, data: Mapping[str, Any]) -> str:
        if "when" in data:
            return str(self._public("rule", when=repr(data["when"]), allow=repr(data["allow"])))
        return str(self._public("otherwise", allow=repr(data["allow"])))

    def _arcs(self, given: list[Any]) -> str:
        return _bracketed("[", [str(self._arc(one)) for one in given], "]")

    def _arc(self, data: Mapping[str, Any]) -> _Call:
        named = {key: repr(data[key]) for key in ("when", "on") if key in data}
        if "args" in data:
            named["args"] = self._value(data["args"])
        return self._public("arc", repr(data["step"]), **named)

    def _options(self, data: Mapping[str, Any]) -> dict[str, str]:
        named = {key: repr(value) for key, value in data.items() if key not in ("backoff", "no_retry", "rollback")}
        if "backoff" in data:
            named["backoff"] = self._backoff(data["backoff"])
        if "no_retry" in data:
            kinds = [self._function(one) for one in data["no_retry"]]
            named["no_retry"] = f"({', '.join(kinds)},)" if kinds else "()"
        if "rollback" in data:
            named["rollback"] = "None" if data["rollback"] is None else self._function(data["rollback"])
        return named

    def _backoff(self, data: Mapping[str, Any]) -> str:
        self._imports.setdefault("workflow_sdk", set()).add("Backoff")
        return str(_Call("Backoff", **{key: repr(value) for key, value in data.items()}))

    def _task(self, data: Mapping[str, Any]) -> str:
        named: dict[str, str] = {}
        if "policy" in data:
            named["policy"] = _bracketed("[", [self._policy(one) for one in data["policy"]], "]")
        named |= self._options(data.get("options", {}))
        fn = self._function(data["fn"]) if "fn" in data else "None"
        return str(self._public("task", repr(data["label"]), fn, **named))

    def _policy(self, data: Mapping[str, Any]) -> str:
        patch = {"patch": self._value(data["patch"])} if "patch" in data else {}
        rules = self._public("on", *([repr(data["when"])] if "when" in data else []), **patch)
        if data["do"] == "retry":
            backoff = {"backoff": self._backoff(data["backoff"])} if "backoff" in data else {}
            return str(_Call(f"{rules}.retry", repr(data.get("times", 1)), **backoff))
        if data["do"] == "jump":
            return str(_Call(f"{rules}.jump", repr(data.get("to", ""))))
        word: str = data["do"]
        return f"{rules}.{word}()" if word == "fail" else f"{rules}.{word}_()"

    def _detail(self, data: Any, key: str = "") -> str:
        if key in _LISTS and is_dict(data["$args"]):
            # A list is given as such, or as an expression: its text.
            return repr(data["$args"]["$"])
        if is_list(data):
            return _bracketed("[", [self._detail(one) for one in data], "]")
        if is_dict(data) and len(data) == 1:
            (mark, inner), *_ = data.items()
            writers: Mapping[str, Callable[[Any], str]] = {
                "$args": self._value,
                "$": repr,
                "$fn": self._function,
                "$task": self._task,
            }
            if mark in writers:
                return writers[mark](inner)
        return self._value(data)

    # Values and functions.

    def _value(self, data: Any) -> str:
        if is_dict(data):
            return _bracketed("{", [f"{key!r}: {self._value(one)}" for key, one in data.items()], "}")
        if is_list(data):
            return _bracketed("[", [self._value(one) for one in data], "]")
        module = type(data).__module__
        if module != "builtins":
            # Their `repr` is how they are made; with the module before it, if it is `datetime`.
            self._imports.setdefault(module, set()).update(() if module == "datetime" else {type(data).__name__})
        if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
            return f'float("{data}")'
        return repr(data)

    def _function(self, name: str) -> str:
        """What a function is called in the module: it is imported, or there is another in its place."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._make_known(name)
        return found

    def _make_known(self, name: str) -> str:
        given = self._given.get(name, self._graph.names.get(name))
        if given is BUILTINS.get(name, self):
            return name
        return self._imported(name, given)

    def _imported(self, name: str, given: Any) -> str:
        place = _place_of(given)
        own = place[1] if place is not None else name if name.isidentifier() else "function"
        called, number = own, 1
        while called in self._taken:
            called, number = f"{own}_{number}", number + 1
        self._taken.add(called)
        if place is not None:
            self._imports.setdefault(place[0], set()).add(own if called == own else f"{own} as {called}")
            if name_in_data(given) == name:
                self._own_names.add(called)
        else:
            self._stub(called, name, given)
        return called

    def _stub(self, called: str, name: str, given: Any) -> None:
        """Something in the place of a function that can't be imported."""
        about = f"    # {name!a} can't be imported from a module: write it here."
        self._stubs += ["", ""]
        if isinstance(given, type):
            kind = "(Exception)" if issubclass(given, BaseException) else ""
            self._stubs += [f"class {called}{kind}:", about, "    pass"]
        elif isinstance(given, Workflow):
            self._imports.setdefault("workflow_sdk", set()).add("workflow")
            self._stubs += [f"@workflow(name={name!r})", f"async def {called}(ctx, input):", about]
            self._stubs += ["    raise NotImplementedError"]
            self._own_names.add(called)
        elif (word := expression_name(given)) is not None:
            self._imports["workflow_sdk.graphs"].add("function")
            self._stubs += [
                f"@function(name={word!r})",
                f"def {called}(*args):",
                about,
                "    raise NotImplementedError",
            ]
        else:
            self._stubs += [f"async def {called}(ctx, args):", about, "    raise NotImplementedError"]


def _place_of(given: Any) -> tuple[str, str] | None:
    """The module from which a function can be imported, and its name there."""
    module, name = getattr(given, "__module__", None), getattr(given, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module in ("__main__", "builtins"):
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is given else None


def _bracketed(opening: str, parts: list[str], closing: str) -> str:
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    inner = "".join(f"    {one.replace(chr(10), chr(10) + '    ')},\n" for one in parts)
    return f"{opening}\n{inner}{closing}"
