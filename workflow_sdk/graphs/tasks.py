"""The tasks of a pipeline, and the rules that say how it goes on after each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Unpack

from workflow_sdk.definitions import StepOptions, StepOverrides, as_step_options, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.expressions import expression_of
from workflow_sdk.graphs.model import Condition, listed
from workflow_sdk.rows.retry import Backoff
from workflow_sdk.rows.wire import shown

Way = Literal["retry", "jump", "break", "fail", "continue"]
WAYS: Final[tuple[str, ...]] = ("retry", "jump", "break", "fail", "continue")


@dataclass(frozen=True, slots=True)
class Policy:
    """One rule of a task: how the pipeline goes on, if the condition is true once the task has ended."""

    when: Condition | None
    way: Way
    times: int = 0
    """Of a retry: how often the task is run again for it."""
    backoff: Backoff = Backoff()  # noqa: RUF009  # it is frozen
    """Of a retry: how long it waits before."""
    label: str = ""
    """Of a jump: the task that is next."""

    def is_asked(self, *, failed: bool) -> bool:
        """Whether the rule is about such an end. One that reads an error is asked of failures only."""
        if self.when is None:
            return True
        deep = {path[0] for path in self.when.reads if len(path) > 1}
        return not ({"output", "error"} & deep) or {"output", "error"} <= deep or ("error" in deep) == failed


@dataclass(frozen=True, slots=True)
class Rules:
    """A condition on how a task has ended; its methods say what follows."""

    when: Condition | None

    def retry(self, times: int, *, backoff: Backoff = Backoff()) -> Policy:  # noqa: B008  # it is frozen
        """Run the task again, at most so often; after that, the rules that come next are asked."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise DefinitionError(f"retry takes a number from 1 on, not {shown(times)}")
        if not isinstance(backoff, Backoff):
            raise DefinitionError(f"backoff takes a Backoff, not {shown(backoff)}")
        return Policy(self.when, "retry", times, backoff)

    def jump(self, label: str) -> Policy:
        """Go on with the task that has this label."""
        if not isinstance(label, str) or not label:
            raise DefinitionError(f"jump takes the label of a task, not {shown(label)}")
        return Policy(self.when, "jump", label=label)

    def break_(self) -> Policy:
        """End the step, with the output of the last task that was done."""
        return Policy(self.when, "break")

    def fail(self) -> Policy:
        """Fail the step."""
        return Policy(self.when, "fail")

    def continue_(self) -> Policy:
        """Go on with the next task, also after a failure."""
        return Policy(self.when, "continue")


def on(condition: object = None) -> Rules:
    """A rule of a task: `on(E.error.kind == "timeout").retry(3)`. Without a condition it always holds.

    A condition that reads something of `E.error` is asked after failures only, one of `E.output` after successes only.
    """
    return Rules(None if condition is None else expression_of(condition))


@dataclass(frozen=True, slots=True)
class Task:
    """One function of a pipeline."""

    label: str
    fn: Callable[..., Any]
    policy: tuple[Policy, ...] = ()
    options: StepOptions = StepOptions(retries=0)  # noqa: RUF009  # it is frozen


def task(label: str, fn: Callable[..., Any], *, policy: object = (), **options: Unpack[StepOverrides]) -> Task:
    """One task of `step(tasks=[...])`: a function, which is given the output of the task before it.

    `policy` are rules made by `on(...)`; the first that holds says how it goes on. If none does, a failure fails the
    step, and a success goes on. It is not retried unless a rule or `retries=` says so.
    """
    if not isinstance(label, str) or not label or ":" in label:
        raise DefinitionError(f"the label of a task is a text without colons, not {shown(label)}")
    if not is_function(fn):
        raise DefinitionError(f"task {label!r} is given a function to call, not {shown(fn)}")
    rules = listed((policy,) if isinstance(policy, Policy) else policy)
    if rules is None or not all(isinstance(one, Policy) for one in rules):
        raise DefinitionError(f"the policy of task {label!r} is a list of rules, such as on(...).retry(3)")
    return Task(label, fn, tuple(rules), options_of(fn, options))


def options_of(fn: object, given: Mapping[str, Any]) -> StepOptions:
    """The options of a task: without retries, unless its author gives them."""
    options = as_step_options(fn, StepOverrides(**given))  # type: ignore[typeddict-item]
    if "retries" in given or options != as_step_options(None, StepOverrides(**given)):  # type: ignore[typeddict-item]
        return options
    return options.override(StepOverrides(retries=0))


def as_tasks(name: str, given: object) -> list[Task]:
    """The tasks of a step, in order. DefinitionError, if they can't be run in this way."""
    found = listed(given)
    if not found or not all(isinstance(one, Task) for one in found):
        raise DefinitionError(f"step {name!r}: `tasks` is a list of task(...), not {shown(given)}")
    tasks: list[Task] = found
    labels = [one.label for one in tasks]
    if len(set(labels)) < len(labels):
        raise DefinitionError(f"step {name!r} has two tasks of one label; give each its own")
    _check_jumps(name, tasks, labels)
    return tasks


def _check_jumps(name: str, tasks: Sequence[Task], labels: Sequence[str]) -> None:
    for one in tasks:
        for rule in one.policy:
            if rule.way == "jump" and rule.label not in labels:
                raise DefinitionError(
                    f"step {name!r}: task {one.label!r} jumps to {rule.label!r}, which is none of its tasks"
                )


def in_sequence(name: str, parts: object, options: Mapping[str, Any]) -> list[Task]:
    """Functions that are called one after the other, as tasks. The options are those of each of them."""
    given = listed(parts)
    if not given:
        raise DefinitionError(f"step {name!r} takes a list of functions, not {shown(parts)}")
    made: list[Task] = []
    for number, part in enumerate(given):
        if isinstance(part, Task):
            made.append(part)
            continue
        own = str(getattr(part, "__name__", "")).strip("<>") or "part"
        label = f"{own} {number}" if any(one.label == own for one in made) else own
        with_retries: Any = {"retries": as_step_options(part, {}).retries, **options}
        made.append(task(label, part, **with_retries))
    return as_tasks(name, made)
