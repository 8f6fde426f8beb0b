"""Workflows and steps, as authors define them, with their names and options."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import CodeType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeGuard,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.retry import Backoff, Duration, seconds
from workflow_sdk.rows.wire import COUNT_MAX, shown
from workflow_sdk.values import Codec
from workflow_sdk.values.hints import parameter_hint, remember_locals, return_hint

InputT = TypeVar("InputT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)
P = ParamSpec("P")

Divergence = Literal["strict", "lenient"]
UNDO = Callable[..., Any]


class TransactOverrides(TypedDict, total=False):
    """The options of a transaction, each optional."""

    retries: int
    backoff: Backoff
    no_retry: type[Exception] | tuple[type[Exception], ...]
    rollback: UNDO | None


class StepOverrides(TransactOverrides, total=False):
    """The options of a step, each optional."""

    timeout: Duration | None
    retry_on_timeout: bool
    repeatable: bool


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is run."""

    retries: int = 3
    """Attempts after the first."""
    backoff: Backoff = Backoff()  # noqa: RUF009  # it is frozen
    timeout: Duration | None = None
    """Seconds that one attempt may take."""
    retry_on_timeout: bool = True
    no_retry: type[Exception] | tuple[type[Exception], ...] = ()
    """Exceptions that end the step at once."""
    repeatable: bool = False
    """Running it twice does no harm. So its record waits for the next commit, which comes before anything that does."""
    rollback: UNDO | None = None
    """Undoes the step, given its value, if the workflow fails later."""

    def __post_init__(self) -> None:
        for name, is_fine, expected in _OPTION_CHECKS:
            value = getattr(self, name)
            if not is_fine(value):
                raise DefinitionError(f"{expected}, not {shown(value)}")
        if self.repeatable and self.rollback is not None:
            raise DefinitionError(
                "a step with a rollback can't be repeatable: what it did a second time would not be undone; leave one "
                "of the two out"
            )

    def override(self, overrides: StepOverrides) -> StepOptions:
        """The options with some of them changed."""
        _check_names("step", overrides, StepOverrides.__optional_keys__, _OF_THE_FUNCTION)
        return replace(self, **overrides)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_exceptions(value: object) -> bool:
    kinds = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    return all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds)


_OPTION_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("retries", lambda value: _is_count(value, 0), "retries is a number of attempts after the first, 0 or more"),
    ("timeout", lambda value: value is None or seconds(value, "timeout") > 0, "timeout must be positive"),
    ("no_retry", _are_exceptions, "no_retry takes exception types"),
    ("backoff", lambda value: isinstance(value, Backoff), "backoff takes a Backoff"),
    ("rollback", lambda value: value is None or is_function(value), "rollback takes a function"),
    ("repeatable", lambda value: isinstance(value, bool), "repeatable is True or False"),
)
"""The options of a step: whether a value is valid, and what to say if not."""
_OF_THE_FUNCTION = ". Keyword arguments of the function itself go through functools.partial"
_DEFAULT_OPTIONS = StepOptions()
_TRANSACT_OPTIONS = StepOptions(retries=0)


class Step(Generic[P, OutputT_co]):
    """A function with the options it has as a step. It stays callable like the function."""

    __name__: str

    def __init__(self, fn: Callable[P, OutputT_co], options: StepOptions) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), fn)
        self.fn = fn
        self.options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> OutputT_co:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = functools.partial(self.fn, cast("Any", instance))
        return Step(functools.update_wrapper(bound, self.fn), self.options)

    def __repr__(self) -> str:
        return f"<step {function_name(self.fn)}>"


def _remember_surroundings(fn: Callable[..., Any]) -> None:
    """Have the annotations of a function find classes that are defined beside it inside another function."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    if frame is not None and frame.f_locals is not frame.f_globals:
        remember_locals(fn, frame.f_locals)


@overload
def step(fn: Callable[P, OutputT], /) -> Step[P, OutputT]: ...
@overload
def step(**options: Unpack[StepOverrides]) -> Callable[[Callable[P, OutputT]], Step[P, OutputT]]: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Give a function the options that it has whenever `ctx.step` runs it."""
    chosen = _DEFAULT_OPTIONS.override(cast("StepOverrides", options)) if options else _DEFAULT_OPTIONS

    def decorate(fn: Callable[..., Any]) -> Step[..., Any]:
        _remember_surroundings(fn)
        return Step(fn, chosen)

    return decorate if fn is None else decorate(fn)


def as_step_options(fn: object, overrides: StepOverrides) -> StepOptions:
    """The options of a call of `ctx.step`: those of the call, else those of the step, else the defaults."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    options = fn.options if isinstance(fn, Step) else _DEFAULT_OPTIONS
    return options.override(overrides) if overrides else options


def as_transact_options(overrides: TransactOverrides) -> StepOptions:
    """The options of a call of `ctx.transact`. Unlike a step, it has no retries unless they are given."""
    _check_names("transaction", overrides, TransactOverrides.__optional_keys__)
    return replace(_TRANSACT_OPTIONS, **overrides)


def _check_names(what: str, given: Mapping[str, object], known: frozenset[str], hint: str = "") -> None:
    if not given.keys() <= known:
        unknown = ", ".join(sorted(given.keys() - known))
        raise DefinitionError(f"a {what} has no option {unknown}; it has {', '.join(sorted(known))}{hint}")


def function_name(fn: object) -> str:
    """The name that a function gives to its step."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """A workflow returns this to start over with a fresh history and this input.

    It stays the same instance: it keeps its id, its handles, who waits for it, and the messages it has not taken.
    """

    input: Any = None


_Runs = Coroutine[Any, Any, OutputT | ContinueAsNew]
"""What the function of a workflow returns when it is called."""


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
        """How many seconds after its end an instance is kept; None leaves that to the runtime."""
        _check_kind(fn, name)
        inputs = _inputs(fn, name)
        self.takes_input: bool = bool(inputs)
        self.default_input: object = inputs[0].default if inputs and inputs[0].default is not inputs[0].empty else None
        """The input if none is given."""
        self.__doc__ = fn.__doc__
        self.__name__: str = fn.__name__
        self.__module__ = fn.__module__

    def check(self) -> None:
        """Raise `DefinitionError`, with everything that is wrong, if it can't be run."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the code of the function and of the functions nested in it."""
        digest = hashlib.blake2b(digest_size=16)
        feed_code(digest.update, self.fn.__code__)
        return digest.hexdigest()

    @property
    def input_hint(self) -> object:
        """The annotation of the input."""
        return parameter_hint(self.fn, 1) if self.takes_input else None

    def check_calls(self, transports: Mapping[str, Callable[..., Any]]) -> None:
        """Raise `DefinitionError`, if it makes calls by transports that are not there."""

    def read_input(self, codec: Codec, raw: bytes) -> Any:
        """The input that is stored for an instance."""
        return codec.decode_checked(raw, self.input_hint)

    def write_output(self, codec: Codec, value: Any) -> tuple[bytes | None, bytes | None]:
        """The output as it is stored: its bytes, or what the keys of its parts begin with."""
        return codec.encode(value, self.output_hint), None

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
    """Whether an operation can call it. A workflow can't be called."""
    return callable(value) and not isinstance(value, Workflow)


def check_retention(retention: Duration | None) -> float | None:
    """How long instances are kept after their end, in seconds."""
    kept = None if retention is None else seconds(retention, "retention")
    if kept is not None and kept < 0:
        raise DefinitionError(f"retention must not be negative, got {shown(retention)}")
    return kept


def _without(hint: object, kind: type) -> object:
    """A union, without a part."""
    if get_origin(hint) not in (Union, UnionType) or kind not in get_args(hint):
        return hint
    return Union[tuple(part for part in get_args(hint) if part is not kind)]  # noqa: UP007  # of parts that are known only now


def _check_kind(fn: Callable[..., Any], name: str) -> None:
    decorator = type(fn)
    if decorator in (staticmethod, classmethod):
        raise DefinitionError(f"workflow {name!r}: @{decorator.__name__} belongs above @workflow, not under it")
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(f"workflow {name!r} is not an `async def` function")
    around, first = fn.__qualname__.rpartition(".")[0], next(iter(inspect.signature(fn).parameters), "")
    if around and not around.endswith("<locals>") and first in ("self", "cls"):
        raise DefinitionError(
            f"workflow {name!r} is a method of {around}: whoever runs it in another process has no {first} to give it. "
            f"Write it as a function, or without {first}; what it needs of the object is its input"
        )


def _inputs(fn: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameter for the input of a workflow, if there is one."""
    positional: list[inspect.Parameter] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter)
        elif parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise DefinitionError(f"workflow {name!r} takes a ctx and at most one input; {parameter} is neither")
    if not 1 <= len(positional) <= 2:
        raise DefinitionError(f"workflow {name!r} takes a ctx and at most one input, not {len(positional)} parameters")
    return positional[1:]


def feed_code(feed: Callable[[bytes], object], code: CodeType) -> None:
    feed(code.co_code)
    feed(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            feed_code(feed, constant)
        else:
            # The members of a set have another order in every process.
            is_set = isinstance(constant, frozenset)
            feed(repr(sorted(map(repr, cast("frozenset[object]", constant))) if is_set else constant).encode())


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
    if not _is_count(version, 1) or version > COUNT_MAX:
        raise DefinitionError(
            f"the version of a workflow is a whole number from 1 on, up to {COUNT_MAX:,}, not {shown(version)}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise DefinitionError(f"the name of a workflow is a text, not {shown(name)}")

    def decorate(fn: Callable[..., Any]) -> Workflow[Any, Any]:
        _remember_surroundings(fn)
        return Workflow(fn, name or str(getattr(fn, "__name__", fn)), version, divergence, kept)

    return decorate if fn is None else decorate(fn)
