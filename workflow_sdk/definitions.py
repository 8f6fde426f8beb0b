"""What an author defines: workflows and steps, typed, with their names and options."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields, replace
from types import CodeType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from workflow_sdk.core.hints import parameter_hint, remember_locals, return_hint
from workflow_sdk.core.retry import Backoff, Duration, seconds
from workflow_sdk.core.shown import shown
from workflow_sdk.core.wire import COUNT_MAX
from workflow_sdk.errors import DefinitionError

__all__ = [
    "ContinueAsNew",
    "Divergence",
    "Step",
    "StepOptions",
    "StepOverrides",
    "TransactOverrides",
    "Workflow",
    "as_step_options",
    "as_transact_options",
    "check_retention",
    "function_name",
    "is_function",
    "step",
    "workflow",
]

InputT = TypeVar("InputT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

Divergence = Literal["strict", "lenient"]

UNDO = Callable[..., Any]


class StepOverrides(TypedDict, total=False):
    """The options of a step, each optional."""

    retries: int
    backoff: Backoff
    timeout: Duration | None
    retry_on_timeout: bool
    no_retry: type[Exception] | tuple[type[Exception], ...]
    repeatable: bool
    rollback: UNDO | None


class TransactOverrides(TypedDict, total=False):
    """The options of a transaction, each optional."""

    retries: int
    backoff: Backoff
    no_retry: type[Exception] | tuple[type[Exception], ...]
    rollback: UNDO | None


_DEFAULT_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is run."""

    retries: int = 3
    """Attempts after the first."""
    backoff: Backoff = _DEFAULT_BACKOFF
    timeout: Duration | None = None
    """Seconds that one attempt may take."""
    retry_on_timeout: bool = True
    no_retry: type[Exception] | tuple[type[Exception], ...] = ()
    """Exceptions that end the step at once."""
    repeatable: bool = False
    """It may safely run again: the record rides with the next commit instead of being one of its own, and whatever is
    not repeatable waits for that commit first.
    """
    rollback: UNDO | None = None
    """Undoes the step, given its value, if the workflow fails later."""

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise DefinitionError(
                f"retries is a number of attempts after the first, 0 or more, not {shown(self.retries)}"
            )
        if self.timeout is not None and seconds(self.timeout, "timeout") <= 0:
            raise DefinitionError(f"a timeout is longer than nothing, not {shown(self.timeout)}")
        kinds = self.no_retry if isinstance(self.no_retry, tuple) else (self.no_retry,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise DefinitionError(f"no_retry takes exception types, not {shown(self.no_retry)}")
        if not isinstance(self.backoff, Backoff):
            raise DefinitionError(f"backoff takes a Backoff, not {shown(self.backoff)}")
        if self.rollback is not None and not is_function(self.rollback):
            raise DefinitionError(f"rollback takes a function, not {shown(self.rollback)}")
        if not isinstance(self.repeatable, bool):
            raise DefinitionError(f"repeatable is True or False, not {shown(self.repeatable)}")
        if self.repeatable and self.rollback is not None:
            raise DefinitionError(
                "a step with a rollback can't be repeatable: what it did a second time would not be undone; leave one "
                "of the two out"
            )

    def override(self, overrides: StepOverrides) -> StepOptions:
        """The options with some of them changed."""
        unknown = overrides.keys() - _OPTION_NAMES
        if unknown:
            raise DefinitionError(
                f"a step has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(_OPTION_NAMES))}. "
                "Keyword arguments of the function itself go through functools.partial"
            )
        return replace(self, **overrides)


_OPTION_NAMES = frozenset(option.name for option in fields(StepOptions))
_DEFAULT_OPTIONS = StepOptions()
_TRANSACT_OPTIONS = StepOptions(retries=0)


class Step(Generic[P, T_co]):
    """A function with the options it has as a step. It stays callable like the function."""

    __name__: str

    def __init__(self, fn: Callable[P, T_co], options: StepOptions) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), fn)
        self.fn = fn
        self.options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = functools.partial(self.fn, cast("Any", instance))
        return Step(functools.update_wrapper(bound, self.fn), self.options)

    def __repr__(self) -> str:
        return f"<step {function_name(self.fn)}>"


def _remember_surroundings(fn: Callable[..., Any]) -> None:
    """Classes that stand beside a function in another function are found by its annotations, too."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    if frame is not None and frame.f_locals is not frame.f_globals:
        remember_locals(fn, frame.f_locals)


class _StepDecorator(Protocol):
    def __call__(self, fn: Callable[P, T], /) -> Step[P, T]: ...


@overload
def step(fn: Callable[P, T], /) -> Step[P, T]: ...
@overload
def step(
    *,
    retries: int = 3,
    backoff: Backoff = ...,
    timeout: Duration | None = None,
    retry_on_timeout: bool = True,
    no_retry: type[Exception] | tuple[type[Exception], ...] = (),
    repeatable: bool = False,
    rollback: UNDO | None = None,
) -> _StepDecorator: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Give a function the options that it has whenever `ctx.step` runs it."""
    chosen = _DEFAULT_OPTIONS.override(cast("StepOverrides", options)) if options else _DEFAULT_OPTIONS

    def decorate(fn: Callable[..., Any]) -> Step[..., Any]:
        _remember_surroundings(fn)
        return Step(fn, chosen)

    return decorate if fn is None else decorate(fn)


def as_step_options(fn: object, overrides: StepOverrides) -> StepOptions:
    """The options of a call of `ctx.step`: those of the call, over those of the step, over the defaults."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    options = fn.options if isinstance(fn, Step) else _DEFAULT_OPTIONS
    return options.override(overrides) if overrides else options


def as_transact_options(overrides: TransactOverrides) -> StepOptions:
    """The options of a call of `ctx.transact`: unlike a step, it is not tried again unless that is asked for."""
    names = TransactOverrides.__optional_keys__
    unknown = overrides.keys() - names
    if unknown:
        raise DefinitionError(
            f"a transaction has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(names))}"
        )
    return replace(_TRANSACT_OPTIONS, **overrides)


def function_name(fn: object) -> str:
    """The name that a function gives to its step."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """Returned by a workflow: start over with a fresh history and this input.

    It is the same instance: the id, the handles, whoever waits for it and the messages it has not taken stay.
    """

    input: Any = None


_Runs: TypeAlias = Coroutine[Any, Any, OutputT | ContinueAsNew]
"""What the call of a workflow's function gives."""


class Workflow(Generic[InputT_contra, OutputT_co]):
    """A durable coroutine function."""

    def __init__(
        self,
        fn: Callable[..., Coroutine[Any, Any, OutputT_co]],
        name: str,
        version: int,
        divergence: str,
        retention: float | None = None,
    ) -> None:
        self.fn = fn
        """The function as it was written."""
        self.name = name
        self.version = version
        self.divergence = divergence
        self.retention = retention
        """How many seconds after their end instances are forgotten; None if the runtime says so, or never."""
        self.takes_input: bool = _check_signature(fn, name)
        self.default_input: object = _default_input(fn)
        """What the input is if none is given."""
        self.__doc__ = fn.__doc__
        self.__name__: str = fn.__name__
        self.__module__ = fn.__module__

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes with the code of the function and of the functions nested in it."""
        digest = hashlib.blake2b(digest_size=16)
        _feed_code(digest.update, self.fn.__code__)
        return digest.hexdigest()

    @property
    def input_hint(self) -> object:
        """The annotation of the input."""
        return parameter_hint(self.fn, 1) if self.takes_input else None

    @property
    def output_hint(self) -> object:
        """The annotation of the result."""
        return _without(return_hint(self.fn), ContinueAsNew)

    if not TYPE_CHECKING:  # type checkers are to see that it can't be called

        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise DefinitionError(
                f"workflow {self.name!r} is not called, but run: by runtime.start or run_workflow, and in another "
                f"workflow by ctx.child; {self.__name__}.fn(ctx, ...) is its function, as a part of the one around it"
            )

    def __repr__(self) -> str:
        return f"<workflow {self.name} version {self.version}>"


def is_function(value: object) -> TypeGuard[Callable[..., Any]]:
    """Whether it is something to be called by an operation. A workflow is not."""
    return callable(value) and not isinstance(value, Workflow)


def check_retention(retention: Duration | None) -> float | None:
    """How long instances are kept after their end, in seconds."""
    if retention is None:
        return None
    kept = seconds(retention, "retention")
    if kept < 0:
        raise DefinitionError(f"retention is no less than nothing, not {shown(retention)}")
    return kept


def _without(hint: object, kind: type) -> object:
    """A union without one of its parts."""
    if get_origin(hint) not in (Union, UnionType) or kind not in get_args(hint):
        return hint
    return Union[tuple(part for part in get_args(hint) if part is not kind)]  # noqa: UP007  # of parts that are known only now


def _check_signature(fn: Callable[..., Any], name: str) -> bool:
    decorator = type(fn)
    if decorator in (staticmethod, classmethod):
        raise DefinitionError(f"workflow {name!r}: @{decorator.__name__} belongs above @workflow, not under it")
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(f"workflow {name!r} is not an `async def` function")
    around = fn.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(fn).parameters), "")
    if around and not around.endswith("<locals>") and first in ("self", "cls"):
        raise DefinitionError(
            f"workflow {name!r} is a method of {around}: whoever runs it in another process has no {first} to give it. "
            f"Write it as a function, or without {first}; what it needs of the object is its input"
        )
    positional = 0
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional += 1
        elif parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise DefinitionError(f"workflow {name!r} takes a ctx and at most one input; {parameter} is neither")
    if not 1 <= positional <= 2:
        raise DefinitionError(f"workflow {name!r} takes a ctx and at most one input, not {positional} parameters")
    return positional == 2


def _default_input(fn: Callable[..., Any]) -> object:
    inputs = [*inspect.signature(fn).parameters.values()][1:2]
    return next((parameter.default for parameter in inputs if parameter.default is not parameter.empty), None)


def _feed_code(feed: Callable[[bytes], object], code: CodeType) -> None:
    feed(code.co_code)
    feed(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed_code(feed, constant)
        elif isinstance(constant, frozenset):
            # The order of a set's members is another one in every process.
            feed(repr(sorted(map(repr, cast("frozenset[object]", constant)))).encode())
        else:
            feed(repr(constant).encode())


class _WithDefault(Protocol[InputT_contra, OutputT_co]):
    """A workflow whose input may be left out."""

    __name__: str

    def __call__(self, ctx: Any, input: InputT_contra = ..., /) -> Coroutine[Any, Any, OutputT_co | ContinueAsNew]: ...


class _WorkflowDecorator(Protocol):
    @overload
    def __call__(self, fn: _WithDefault[InputT, OutputT], /) -> Workflow[InputT | None, OutputT]: ...
    @overload
    def __call__(self, fn: Callable[[Any, InputT], _Runs[OutputT]], /) -> Workflow[InputT, OutputT]: ...
    @overload
    def __call__(self, fn: Callable[[Any], _Runs[OutputT]], /) -> Workflow[None, OutputT]: ...


@overload
def workflow(fn: _WithDefault[InputT, OutputT], /) -> Workflow[InputT | None, OutputT]: ...
@overload
def workflow(fn: Callable[[Any, InputT], _Runs[OutputT]], /) -> Workflow[InputT, OutputT]: ...
@overload
def workflow(fn: Callable[[Any], _Runs[OutputT]], /) -> Workflow[None, OutputT]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: int = 1,
    divergence: Divergence = "strict",
    retention: Duration | None = None,
) -> _WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    divergence: Divergence = "strict",
    retention: Duration | None = None,
) -> Any:
    """Make a coroutine function durable: `async def name(ctx, input)`.

    `version` is for people and for stuck instances, which are tried again when it changes. `divergence` says when code
    that no longer fits its history is found: before it does anything new (`strict`), or, for operations that were
    removed, at the end of the scope (`lenient`). `retention` is how long after their end instances are kept.
    """
    kept = check_retention(retention)
    if divergence not in ("strict", "lenient"):
        raise DefinitionError(f'divergence is "strict" or "lenient", not {shown(divergence)}')
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= COUNT_MAX:
        raise DefinitionError(
            f"the version of a workflow is a whole number from 1 on, up to {COUNT_MAX:,}, not {shown(version)}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise DefinitionError(f"the name of a workflow is a text, not {shown(name)}")

    def decorate(fn: Callable[..., Any]) -> Workflow[Any, Any]:
        _remember_surroundings(fn)
        return Workflow(fn, name or str(getattr(fn, "__name__", fn)), version, divergence, kept)

    return decorate if fn is None else decorate(fn)
