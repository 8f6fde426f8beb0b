"""The tasks of a pipeline, and the rules that say how it goes on after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Unpack

from workflow_sdk.definitions import StepOptions, StepOverrides, as_step_options, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.bodies import check_body
from workflow_sdk.graphs.expressions import Template, expression_of, template_of
from workflow_sdk.graphs.model import Condition, listed
from workflow_sdk.graphs.narrowing import is_mapping
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
    patch: Template | None = None
    """What is put into the context of the graph, if the rule is followed."""

    def is_asked(self, *, failed: bool) -> bool:
        """Whether the rule is about such an end. One that reads an error is asked of failures only."""
        if self.when is None:
            return True
        deep = {path[0] for path in self.when.reads if len(path) > 1}
        return not ({"output", "error"} & deep) or {"output", "error"} <= deep or ("error" in deep) == failed


def asked_after(policy: Sequence[Policy], *, failed: bool) -> Iterator[tuple[int, Policy]]:
    """The rules that are asked after such an end of a task, in order, with their numbers.

    To fail or to try again without a condition is for failures: a task that was done is not failed for nothing. Behind
    a rule about the output it is for all other outputs as well.
    """
    about_output = False
    for number, rule in enumerate(policy):
        is_for_failures = rule.when is None and rule.way in ("fail", "retry") and not about_output
        if rule.is_asked(failed=failed) and (failed or not is_for_failures):
            yield number, rule
        about_output = about_output or any(path[0] == "output" for path in (rule.when.reads if rule.when else ()))


@dataclass(frozen=True, slots=True)
class Rules:
    """A condition on how a task has ended; its methods say what follows."""

    when: Condition | None
    patch: Template | None = None

    def _policy(self, way: Way, **more: Any) -> Policy:
        return replace(Policy(self.when, way, patch=self.patch), **more)

    def retry(self, times: int, *, backoff: Backoff = Backoff()) -> Policy:  # noqa: B008  # it is frozen
        """Run the task again, at most so often; after that, the rules that come next are asked."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise DefinitionError(f"retry takes a number from 1 on, not {shown(times)}")
        if not isinstance(backoff, Backoff):
            raise DefinitionError(f"backoff takes a Backoff, not {shown(backoff)}")
        return self._policy("retry", times=times, backoff=backoff)

    def jump(self, label: str) -> Policy:
        """Go on with the task that has this label."""
        if not isinstance(label, str) or not label:
            raise DefinitionError(f"jump takes the label of a task, not {shown(label)}")
        return self._policy("jump", label=label)

    def break_(self) -> Policy:
        """End the step, with the output of the last task that was done."""
        return self._policy("break")

    def fail(self) -> Policy:
        """Fail the step."""
        return self._policy("fail")

    def continue_(self) -> Policy:
        """Go on with the next task, also after a failure."""
        return self._policy("continue")


def on(condition: object = None, *, patch: Mapping[str, object] | None = None) -> Rules:
    """A rule of a task: `on(E.error.kind == "timeout").retry(3)`. Without a condition it holds whatever happened.

    A condition that reads something of `E.error` is asked after failures only, one of `E.output` after successes only.
    Without a condition, `fail` and `retry` are for failures, unless a rule before them reads the output. `patch` is put
    into the context of the graph, if the rule is followed.
    """
    found = None if condition is None else expression_of(condition)
    return Rules(found, None if patch is None else _patch(patch))


def _patch(given: object) -> Template:
    if not is_mapping(given) or "$" in given or not all(isinstance(name, str) for name in given):
        raise DefinitionError(f"a rule patches the context with a dict of names and values, not {shown(given)}")
    return template_of(dict(given))


@dataclass(frozen=True, slots=True)
class Task:
    """One function of a pipeline."""

    label: str
    fn: Callable[..., Any] | None
    """None: it runs nothing, and gives what it was given."""
    policy: tuple[Policy, ...] = ()
    options: StepOptions = StepOptions(retries=0)  # noqa: RUF009  # it is frozen


def task(label: str, fn: Callable[..., Any] | None, *, policy: object = (), **options: Unpack[StepOverrides]) -> Task:
    """One task of `step(tasks=[...])`: a function, which is given the output of the task before it.

    `policy` are rules made by `on(...)`; the first that holds says how it goes on. If none does, a failure fails the
    step, and a success goes on. It is not retried unless a rule or `retries=` says so. A task with None for a function
    runs nothing: it gives what it was given, and its rules are all there is to it.
    """
    if not isinstance(label, str) or not label or ":" in label:
        raise DefinitionError(f"the label of a task is a text without colons, not {shown(label)}")
    if fn is not None:
        if not is_function(fn):
            raise DefinitionError(f"task {label!r} is given a function to call, not {shown(fn)}")
        check_body(f"the function of task {label!r}", fn)
    return Task(label, fn, _rules_of(label, policy), options_of(fn, options))


def _rules_of(label: str, policy: object) -> tuple[Policy, ...]:
    rules = listed((policy,) if isinstance(policy, Policy) else () if policy is None else policy)
    if rules is None or not all(isinstance(one, Policy) for one in rules):
        raise DefinitionError(f"the policy of task {label!r} is a list of rules, such as on(...).retry(3)")
    return tuple(rules)


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
