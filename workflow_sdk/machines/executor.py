"""Executors: the functions that do what machines ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast

from workflow_sdk.definitions import StepOptions, StepOverrides, function_name, is_function
from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines.effects import Effect, timer
from workflow_sdk.rows.retry import Backoff, Duration
from workflow_sdk.rows.wire import shown

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS: Final[StepOverrides] = {"retries": 0}


class ExecutorOptions(TypedDict, total=False):
    """How an executor is run: as the options of a step, but without retries unless they are given."""

    retries: int
    backoff: Backoff
    timeout: Duration | None
    retry_on_timeout: bool
    no_retry: type[Exception] | tuple[type[Exception], ...]


class Executor:
    """A function `(params, intent) -> receipt` that does an effect. It stays callable like the function."""

    def __init__(self, effect: Effect, fn: Callable[..., Any], options: StepOptions) -> None:
        self.effect = effect
        self.fn = fn
        self.options = options
        self.name: str = f"{fn.__module__}.{function_name(fn)}"
        """As receipts name it."""
        self.__name__: str = function_name(fn)
        self.__doc__: str | None = fn.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<executor of {self.effect.name}: {self.__name__}>"


def executor(effect: Effect, **options: Unpack[ExecutorOptions]) -> Callable[[Callable[..., Any]], Executor]:
    """Have a function do an effect: `async def name(params, intent)`, or a plain function, which runs in a thread.

    It may be run more than once, if a worker dies: `intent.id` is the same each time, and serves as the idempotency
    key. What it returns is the receipt. It is tried once, unless `retries` is given: attempts that have failed are
    counted over all workers. After the fifth death in a row under it, the receipt is a `fault`.
    """
    if not isinstance(effect, Effect):
        raise DefinitionError(f"an executor is for an effect, not for {shown(effect)}")
    if effect is timer:
        raise DefinitionError("timers settle by themselves, and have no executor")
    chosen = StepOptions().override(cast("StepOverrides", {**_DEFAULTS, **options}))

    def decorate(fn: Callable[..., Any]) -> Executor:
        if not is_function(fn):
            raise DefinitionError(f"an executor is a function, not {shown(fn)}")
        return Executor(effect, fn, chosen)

    return decorate
