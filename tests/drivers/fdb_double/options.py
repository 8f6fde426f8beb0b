"""What can be set for a transaction."""

from __future__ import annotations

from typing import Protocol

from tests.drivers.fdb_double.errors import FDBError

__all__ = ["Limits", "TransactionOptions"]

SIZE_MAX = 10_000_000


class Limits:
    """What is set. From API version 610 on, the time limit survives `on_error`, the rest does not."""

    def __init__(self) -> None:
        self.milliseconds = 0
        self.reset()

    def reset(self) -> None:
        self.size = SIZE_MAX
        self.is_idempotent = False
        self.no_read_your_writes = False


class _Limited(Protocol):
    limits: Limits


class TransactionOptions:
    """The setters, named as the binding generates them."""

    def __init__(self, transaction: _Limited) -> None:
        self._limits = transaction.limits

    def set_automatic_idempotency(self) -> None:
        self._limits.is_idempotent = True

    def set_read_your_writes_disable(self) -> None:
        self._limits.no_read_your_writes = True

    def set_size_limit(self, size: int) -> None:
        if not 32 <= size <= SIZE_MAX:
            raise FDBError(2006)
        self._limits.size = size

    def set_timeout(self, milliseconds: int) -> None:
        self._limits.milliseconds = milliseconds
