"""A stand-in for the `foundationdb` binding and a cluster behind it, in memory.

It has the part of the binding that the driver uses, with the binding's signatures: futures that become ready in a
thread of their own and call back there, transactions with conflicts and versions, watches, versionstamps, limits. What
it does is what FoundationDB's documentation says; `test_fdb_double.py` and `test_fdb_double_data.py`
say which sentence each part stands for. On top
of that, `cluster.faults` makes calls fail, by number and by moment.

`Double()` is to the driver what the module `fdb` is after `fdb.api_version`.
"""

from __future__ import annotations

from tests.drivers.fdb_double.cluster import Cluster
from tests.drivers.fdb_double.errors import FDBError
from tests.drivers.fdb_double.faults import Fault, Faults
from tests.drivers.fdb_double.network import Future, Network, Value, failures, network
from tests.drivers.fdb_double.ranges import FDBRange, KeySelector, KeyValue, StreamingMode, TransactionRead
from tests.drivers.fdb_double.transaction import Database, Transaction

__all__ = [
    "Cluster",
    "Database",
    "Double",
    "FDBError",
    "FDBRange",
    "Fault",
    "Faults",
    "Future",
    "KeySelector",
    "KeyValue",
    "Network",
    "StreamingMode",
    "Transaction",
    "TransactionRead",
    "Value",
    "failures",
    "network",
]


class Double:
    """The module, and the one cluster that all its databases lead to."""

    FDBError = FDBError
    KeySelector = KeySelector
    StreamingMode = StreamingMode

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._database = Database(self.cluster)

    def open(self, cluster_file: str | None = None, event_model: str | None = None) -> Database:
        assert event_model is None, "the event models of the binding block, or do not work"
        return self._database
