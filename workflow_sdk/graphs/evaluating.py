"""What expressions of a graph see, and what came of them.

What the guards and arguments of a step's arcs come to when it ends is recorded with its end. So where a run went can be
made again from its record: no guard is evaluated a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from workflow_sdk.errors import CodecError
from workflow_sdk.graphs.expressions import ExpressionError, Template
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Condition
from workflow_sdk.values import Codec

Functions = Mapping[str, Callable[..., Any]]


class Chooser(Protocol):
    """Says what the expressions of an event come to."""

    made: list[Any]
    """What they came to in this event, in order; the message of one that failed, in a list of its own."""

    def test(self, condition: Condition, sees: Sees) -> bool:
        """Whether a guard is true. ExpressionError, if it has no answer."""
        ...

    def value(self, template: Template, sees: Sees) -> Any:
        """Arguments, evaluated. ExpressionError, if they have no value."""
        ...


class Evaluated:
    """Evaluates expressions, and keeps what they came to."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.made: list[Any] = []

    def test(self, condition: Condition, sees: Sees) -> bool:
        """Whether a guard is true."""
        found = self._evaluated(lambda: condition.test(sees.of(condition), self._functions))
        self.made.append(bool(found))
        return bool(found)

    def value(self, template: Template, sees: Sees) -> Any:
        """Arguments, evaluated."""
        found = self._evaluated(lambda: template.evaluate(sees.of(template), self._functions))
        self.made.append({"": found})
        return found

    def _evaluated(self, evaluate: Callable[[], Any]) -> Any:
        try:
            return evaluate()
        except ExpressionError as error:
            self.made.append([str(error)])
            raise


_CHANGED = "the graph asks for more than was recorded when this step ended: it is not the graph that was run"


class Remembered:
    """Gives what expressions came to when the event happened."""

    def __init__(self, made: list[Any]) -> None:
        self.made: list[Any] = []
        self._made = iter(made)

    def test(self, condition: Condition, sees: Sees) -> bool:
        """What a guard came to."""
        return bool(self._next())

    def value(self, template: Template, sees: Sees) -> Any:
        """What arguments came to."""
        return self._next()[""]

    def _next(self) -> Any:
        found: Any = next(self._made, [_CHANGED])
        self.made.append(found)
        if isinstance(found, list):
            raise ExpressionError(cast("list[str]", found)[0])
        return found


_Reading = Condition | Template
"""An expression, as far as it says what it reads."""


class Sees:
    """What the expressions of one firing see. Only what one of them reads is made ready."""

    def __init__(
        self,
        codec: Codec,
        marking: Marking,
        workload: bytes,
        state: Callable[[], Mapping[str, Any]],
        *,
        args: Callable[[], Any],
        step: str = "",
        output: bytes | None = None,
        error: Mapping[str, Any] | None = None,
        event: str = "",
        patches: Mapping[str, Any] | None = None,
    ) -> None:
        self._codec = codec
        self._marking = marking
        self._workload = workload
        self._state = state
        self._args = args
        self._step = step
        self._output = output
        self._error = error
        self._event = event
        self._patches = patches
        self._known: dict[str, Any] = {}

    @property
    def event(self) -> str:
        """How a firing has ended, such as `step.done`; empty if a step asks to be admitted."""
        return self._event

    def of(self, expression: _Reading) -> dict[str, Any]:
        """The scope of an expression."""
        if expression.is_native:
            roots = {"workload", "start", "ctx", "args", "output", "error", "event", "results", "state"}
            names: set[str] | None = None
        else:
            roots = {path[0] for path in expression.reads}
            read = {path[1:2] for path in expression.reads if path[0] == "results"}
            names = None if () in read else {name for (name,) in read}
        found = {root: self._get(root) for root in roots if root != "results"}
        if "results" in roots:
            found["results"] = self._results(names)
        return found

    def _get(self, root: str) -> Any:
        if root not in self._known:
            self._known[root] = self._make("workload" if root == "start" else root)
        return self._known[root]

    def _make(self, root: str) -> Any:
        match root:
            case "workload":
                return self._plain(self._workload)
            case "ctx":
                return {**_plain_context(self._codec, self._marking.context), **(self._patches or {})}
            case "args":
                return self._args()
            case "output":
                return None if self._output is None else self._plain(self._output)
            case "error":
                return self._error
            case "event":
                return {"name": self._event}
            case _:
                return dict(self._state())

    def _results(self, names: set[str] | None) -> dict[str, Any]:
        """The latest outputs of steps: of those with these names, or of all."""
        steps = self._marking.steps
        wanted = steps if names is None else [name for name in names if name in steps]
        own = {self._step: self._plain(self._output)} if self._output is not None and self._step else {}
        found = {name: self._plain(output) for name in wanted if (output := steps[name].output) is not None}
        return found | own

    def _plain(self, raw: bytes) -> Any:
        return self._codec.decode(raw, plain=True)


def _plain_context(codec: Codec, raw: bytes | None) -> dict[str, Any]:
    """The context as plain data."""
    found: Any = {} if raw is None else codec.decode(raw, plain=True)
    if not isinstance(found, dict):
        raise CodecError("the context of a graph is not what was stored")
    return cast("dict[str, Any]", found)
