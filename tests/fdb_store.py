"""Stores in FoundationDB for tests: in a real cluster where one is given, else in the double.

WORKFLOW_SDK_FDB_CLUSTER_FILE names the cluster file. Every store there has a random prefix of its own; all of them are
cleared at the end of the run, those of processes that died as well, and no key outside of them is touched.
"""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from uuid import uuid4
from weakref import WeakValueDictionary

from tests.drivers.fdb_double import Double
from workflow_drivers.foundationdb import FoundationDBDriver, connect
from workflow_drivers.foundationdb._binding import Binding, Settings, load, parse
from workflow_drivers.foundationdb._keys import space_of

__all__ = [
    "CLUSTER_FILE",
    "clear_all",
    "connected",
    "described",
    "fdb_binding",
    "hurry",
    "open_fdb",
    "run_range",
    "settings_for",
]

CLUSTER_FILE = os.environ.get("WORKFLOW_SDK_FDB_CLUSTER_FILE")
_RUN_VARIABLE = "WORKFLOW_SDK_TEST_RUN"
BEGAN_THE_RUN = _RUN_VARIABLE not in os.environ
"""Else it is one of the processes that were started for it, which all know its number."""
RUN = os.environ.setdefault(_RUN_VARIABLE, uuid4().hex)
CLEARING_SECONDS = 60

_prefixes: set[str] = set()
_doubles: WeakValueDictionary[str, Double] = WeakValueDictionary()


def described() -> str:
    """For the head of the test run: what the tests of FoundationDB run on."""
    if CLUSTER_FILE:
        return f"FoundationDB: the cluster of {CLUSTER_FILE}, under random prefixes that begin with test-"
    return "FoundationDB: the double in tests/drivers/fdb_double (WORKFLOW_SDK_FDB_CLUSTER_FILE names no cluster)"


def settings_for(name: str, **changes: Any) -> Settings:
    """Settings of a store that is nobody else's."""
    prefix = f"test-{RUN}-{os.getpid()}-{sha256(name.encode()).hexdigest()[:16]}"
    _prefixes.add(prefix)
    settings = parse(f"fdb://{CLUSTER_FILE}") if CLUSTER_FILE else Settings()
    return replace(settings, prefix=prefix, **changes)


def fdb_binding(name: str) -> Binding:
    """What leads to the cluster. With the double, each name has a cluster, as long as somebody has it open."""
    if CLUSTER_FILE:
        return load(Settings())[0]
    double = _doubles.get(name)
    if double is None:
        double = _doubles[name] = Double()
    return cast("Binding", double)


async def open_fdb(directory: Path, **changes: Any) -> FoundationDBDriver:
    """The store that belongs to the directory of a test."""
    return await connect(fdb_binding(str(directory)), settings_for(str(directory), **changes))


async def connected(double: Double, prefix: str = "test", **changes: Any) -> FoundationDBDriver:
    """A store in a double of one's own."""
    return await connect(cast("Binding", double), replace(Settings(), prefix=prefix, **changes))


def run_range() -> tuple[bytes, bytes]:
    """Where all stores of the run lie, whichever process has opened them."""
    begin = space_of(f"test-{RUN}-").root.removesuffix(b"\x00")
    return begin, begin[:-1] + bytes([begin[-1] + 1])


def hurry(driver: FoundationDBDriver, seconds: float) -> None:
    """From now on, the driver gives up after so many seconds."""
    session = driver._session  # pyright: ignore[reportPrivateUsage]  # nobody else is in a hurry after all
    session.settings = replace(session.settings, timeout=seconds)


def clear_all() -> None:
    """Take everything out of the real cluster again: the others what is theirs, and who has begun the run the rest."""
    if not CLUSTER_FILE:
        return
    spaces = [space_of(prefix) for prefix in sorted(_prefixes)]
    ranges = [run_range()] if BEGAN_THE_RUN else [(space.begin, space.end) for space in spaces]
    if not ranges:
        return
    database = cast("Any", load(Settings())[0].open(CLUSTER_FILE))
    database.options.set_transaction_timeout(1000 * CLEARING_SECONDS)
    for begin, end in ranges:
        database.clear_range(begin, end)
