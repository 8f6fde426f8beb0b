"""The errors of FoundationDB, as the binding raises them."""

from __future__ import annotations

__all__ = ["MAYBE_COMMITTED", "RETRYABLE", "FDBError"]

DESCRIPTIONS = {
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1039: "Cluster has been upgraded to a new protocol version",
    1042: "Commit proxy memory limit exceeded",
    1101: "Asynchronous operation cancelled",
    1500: "Platform error",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2017: "Operation issued while a commit was outstanding",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
}

# What `on_error` tries again. The first are those after which the commit may have happened all the same.
MAYBE_COMMITTED = frozenset({1021, 1039})
RETRYABLE = MAYBE_COMMITTED | {1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1235}


class FDBError(Exception):
    """An error of the API, known by its number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> bytes:
        return DESCRIPTIONS.get(self.code, "Unknown error").encode()

    def __str__(self) -> str:
        return f"{self.description!r} ({self.code})"

    def __repr__(self) -> str:
        return f"FDBError({self.code})"
