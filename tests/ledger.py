"""What tests of transactions write in them: numbers by name, in the store's own way."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import anyio.to_thread

from tests.patience import PATIENCE
from workflow_drivers.foundationdb import UserTransaction
from workflow_sdk.driver import Batch, Driver, transacting

__all__ = ["Gate", "add", "read", "total"]

TABLE = "CREATE TABLE IF NOT EXISTS ledger (name TEXT PRIMARY KEY, amount INTEGER NOT NULL)"


def add(transaction: sqlite3.Connection | UserTransaction, name: str, amount: int = 1) -> int:
    """Add to a number; what it is then."""
    if isinstance(transaction, sqlite3.Connection):
        transaction.execute(TABLE)
        transaction.execute(
            "INSERT INTO ledger VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount",
            (name, amount),
        )
    else:
        before = transaction[name.encode()].value
        transaction[name.encode()] = b"%d" % (int(before or b"0") + amount)
    return total(transaction, name)


def total(transaction: sqlite3.Connection | UserTransaction, name: str) -> int:
    """A number; zero if it is not there."""
    if isinstance(transaction, sqlite3.Connection):
        transaction.execute(TABLE)
        row = transaction.execute("SELECT amount FROM ledger WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])
    return int(transaction.get(name.encode()).value or b"0")


async def read(driver: Driver, name: str) -> int:
    """A number in a store."""
    found: list[int] = []

    def look(transaction: Any) -> None:
        found.append(total(transaction, name))

    transacts = transacting(driver)
    assert transacts is not None
    await transacts.transact(look, lambda _: Batch())
    return found[-1]


class Gate:
    """Where a function in a thread waits until the test lets it go on."""

    def __init__(self) -> None:
        self._inside, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        """In the function."""
        self._inside.set()
        assert self._open.wait(PATIENCE), "nobody has opened the gate"

    def open(self) -> None:
        """In the test."""
        self._open.set()

    async def reached(self) -> None:
        """Return once the function is there."""
        assert await anyio.to_thread.run_sync(self._inside.wait, 10), "nobody came to the gate"
