"""Decides whether and when a failed step is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from msgspec import Struct

from workflow_sdk.errors import DefinitionError
from workflow_sdk.rows.wire import shown

SECONDS_MAX = 100_000_000_000

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""


def seconds(duration: Duration, what: str) -> float:
    """A duration in seconds. DefinitionError, which names `what`, if it is not a valid one."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise DefinitionError(f"{what} is a number of seconds or a timedelta, not {shown(duration)}")
    if not abs(duration) <= SECONDS_MAX:
        raise DefinitionError(f"{what} is at most {SECONDS_MAX:,} seconds, some 3,000 years, not {shown(duration)}")
    return float(duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the next attempt: `initial` seconds, `factor` times more with each, up to `maximum`.

    `jitter` is the part of the wait that is left to chance (0.1: up to 10 % less or more), so that a thousand
    workflows that failed together do not come back together.
    """

    initial: Duration = 0.1
    factor: float = 2
    maximum: Duration = 30
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if seconds(self.initial, "Backoff.initial") < 0 or seconds(self.maximum, "Backoff.maximum") < 0:
            raise DefinitionError("Backoff.initial and Backoff.maximum can't be negative")
        if not self.factor >= 1 or not 0 <= self.jitter <= 1:
            raise DefinitionError("Backoff.factor is at least 1, and Backoff.jitter between 0 and 1")

    @property
    def longest(self) -> float:
        """The longest wait before an attempt, in seconds."""
        return seconds(self.maximum, "Backoff.maximum") * (1 + self.jitter)

    def delay(self, attempts: int, chance: float) -> float:
        """Seconds to wait after `attempts` failures; `chance` is a number from 0 to 1."""
        maximum = seconds(self.maximum, "Backoff.maximum")
        try:
            delay = min(seconds(self.initial, "Backoff.initial") * self.factor ** (attempts - 1), maximum)
        except OverflowError:
            delay = maximum
        return delay * (1 + self.jitter * (2 * chance - 1))


class RetryAt(Struct, frozen=True):
    """The step is tried again at this time."""

    when: float


class GiveUp(Struct, frozen=True):
    """The step is not tried again."""


Decision: TypeAlias = RetryAt | GiveUp


def decide(*, attempts: int, retries: int, final: bool, backoff: Backoff, now: float, chance: float) -> Decision:
    """Decide what follows the `attempts`-th failure of a step that may be retried `retries` times.

    `final`: whether another attempt would not mend the failure.
    """
    if final or attempts > retries:
        return GiveUp()
    return RetryAt(now + backoff.delay(attempts, chance))
