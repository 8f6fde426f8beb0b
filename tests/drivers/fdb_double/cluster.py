"""The servers: versions of rows, conflicts, watches. All of it runs in the network thread, one thing at a time."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from sortedcontainers import SortedDict

from tests.drivers.fdb_double.errors import FDBError
from tests.drivers.fdb_double.faults import Faults
from tests.drivers.fdb_double.network import Future, network

__all__ = ["Cluster", "Commit", "Mutation", "Range", "added", "place_versionstamp"]

Range: TypeAlias = tuple[bytes, bytes]
Mutation: TypeAlias = tuple[str, bytes, bytes]
"""`set` a key, `add` to it, `clear` from and up to, or set a key `stamped` with the version of its commit."""

VERSIONS_PER_SECOND = 1_000_000
WINDOW_VERSIONS = 5 * VERSIONS_PER_SECOND
"""Older states than this can't be read, nor can commits that rest on them be decided."""
PAGE_BYTES = 80_000
"""What a page of a range is, at least, of rows that are all wanted."""


@dataclass(slots=True)
class Commit:
    """What a client sends to have it committed."""

    read_version: int
    read_conflicts: Sequence[Range]
    write_conflicts: Sequence[Range]
    mutations: Sequence[Mutation]


@dataclass(slots=True)
class _Written:
    """What a commit has written, as far as those who read before it have to know."""

    version: int
    keys: set[bytes] = field(default_factory=set[bytes])
    ranges: list[Range] = field(default_factory=list[Range])

    def meets(self, conflict: Range) -> bool:
        begin, end = conflict
        if end == begin + b"\x00":
            if begin in self.keys:
                return True
        elif any(begin <= key < end for key in self.keys):
            return True
        return any(low < end and begin < high for low, high in self.ranges)


class Cluster:
    """A database. Its clients share it by name."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.latency = 0.0
        self.page_bytes = PAGE_BYTES
        self.commits = 0
        self.reads = 0
        self.version = 1
        self._started = monotonic() - 10
        self._rows: SortedDict[bytes, list[tuple[int, bytes | None]]] = SortedDict()
        self._recent: deque[_Written] = deque()
        self._old: deque[tuple[int, bytes]] = deque()
        self._watches: dict[bytes, list[tuple[weakref.ref[Future], bytes | None]]] = {}

    def request(self, job: Callable[[], object]) -> None:
        """Have `job` run where the cluster is, after the time that it takes to get there."""
        network.post(lambda: self.faults.held.append(job) if self.faults.hangs else job(), self.latency)

    def hang(self) -> None:
        """From now on nothing is answered."""
        self.faults.hangs = True

    def answer(self) -> None:
        """Answer again, what was asked meanwhile first."""
        self.faults.hangs = False
        held, self.faults.held = self.faults.held, []
        for job in held:
            network.post(job)

    def arrive(self) -> None:
        """The commits that were on their way are here."""
        late, self.faults.late = self.faults.late, []
        for job in late:
            network.post(job)

    def grow_older(self, seconds: float) -> None:
        """Let time pass, for versions."""
        self._started -= seconds

    # What follows runs in the network thread.

    def now(self) -> int:
        """The newest version: it grows with time."""
        return max(self.version, int((monotonic() - self._started) * VERSIONS_PER_SECOND))

    def read_version(self) -> int:
        """A version that has all that was committed before it was asked for."""
        self.version = self.now()
        return self.version

    def check_age(self, version: int) -> None:
        """1007 if that state is forgotten."""
        if version < self.now() - WINDOW_VERSIONS:
            raise FDBError(1007)

    def value(self, key: bytes, version: int) -> bytes | None:
        """What was there at that version."""
        self.reads += 1
        self.check_age(version)
        return _at(self._rows.get(key), version)

    def rows(self, begin: bytes, end: bytes, version: int, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """What was there at that version, in order."""
        self.reads += 1
        self.check_age(version)
        for key in self._rows.irange(begin, end, (True, False), reverse):
            value = _at(self._rows[key], version)
            if value is not None:
                yield key, value

    def key_from(self, key: bytes, or_equal: bool, offset: int) -> bytes:
        """What a key selector resolves to: the edge, if it leads over it."""
        index = self._rows.bisect_right(key) if or_equal else self._rows.bisect_left(key)
        present = [found for found in self._rows if self._rows[found][-1][1] is not None]
        index = sum(1 for found in present if found <= key) if or_equal else sum(1 for found in present if found < key)
        index += offset - 1
        return b"" if index < 0 else b"\xff" if index >= len(present) else present[index]

    def commit(self, commit: Commit) -> tuple[int, bytes]:
        """Make the writes, unless somebody has written what was read: 1020. The version, and the versionstamp."""
        self.check_age(commit.read_version)
        for written in reversed(self._recent):
            if written.version <= commit.read_version:
                break
            if any(written.meets(conflict) for conflict in commit.read_conflicts):
                raise FDBError(1020)
        self.version = max(self.version + 1, self.now())
        stamp = self.version.to_bytes(8, "big") + b"\x00\x00"
        record = _Written(self.version)
        for begin, end in commit.write_conflicts:
            if end == begin + b"\x00":
                record.keys.add(begin)
            else:
                record.ranges.append((begin, end))
        changed: dict[bytes, None] = {}
        for kind, first, second in commit.mutations:
            if kind == "clear":
                for key in list(self._rows.irange(first, second, (True, False))):
                    if self._rows[key][-1][1] is not None:
                        self._put(key, None)
                        changed[key] = None
            else:
                key = place_versionstamp(first, stamp) if kind == "stamped" else first
                record.keys.add(key)
                self._put(key, added(_at(self._rows.get(key), self.version), second) if kind == "add" else second)
                changed[key] = None
        self._recent.append(record)
        self._forget()
        self.commits += 1
        if self._watches:
            for key in changed:
                self._notice(key)
        return self.version, stamp

    def watch(self, key: bytes, value: bytes | None, future: Future) -> None:
        """Report when the key has another value."""
        if _at(self._rows.get(key), self.version) != value:
            future.set()
            return
        self._watches.setdefault(key, []).append((weakref.ref(future), value))

    @property
    def watched(self) -> int:
        """How many watches have nothing to report yet, and somebody who waits for it."""
        found = 0
        for key in list(self._watches):
            alive = [(ref, value) for ref, value in self._watches[key] if (f := ref()) and not f.is_ready()]
            self._watches[key] = alive
            found += len(alive)
        return found

    def _put(self, key: bytes, value: bytes | None) -> None:
        history = self._rows.get(key)
        if history is None:
            if value is None:
                return
            history = self._rows[key] = []
        elif history[-1][0] == self.version:
            history.pop()
        if history or value is None:
            self._old.append((self.version, key))
        history.append((self.version, value))

    def _forget(self) -> None:
        oldest = self.now() - WINDOW_VERSIONS
        while self._recent and self._recent[0].version < oldest:
            self._recent.popleft()
        while self._old and self._old[0][0] < oldest:
            key = self._old.popleft()[1]
            history = self._rows.get(key)
            if history is None:
                continue
            while len(history) > 1 and history[1][0] <= oldest:
                del history[0]
            if len(history) == 1 and history[0][1] is None:
                del self._rows[key]

    def _notice(self, key: bytes) -> None:
        watches = self._watches.get(key)
        if not watches:
            return
        value = _at(self._rows.get(key), self.version)
        left: list[tuple[weakref.ref[Future], bytes | None]] = []
        for ref, seen in watches:
            future = ref()
            if future is None or future.is_ready():
                continue
            if seen == value:
                left.append((ref, seen))
            else:
                future.set()
        if left:
            self._watches[key] = left
        else:
            del self._watches[key]


def _at(history: list[tuple[int, bytes | None]] | None, version: int) -> bytes | None:
    for written, value in reversed(history or ()):
        if written <= version:
            return value
    return None


def added(value: bytes | None, param: bytes) -> bytes:
    """Little-endian numbers of the size of the second, which overflow; what is not there is zero."""
    number = int.from_bytes((value or b"")[: len(param)], "little") + int.from_bytes(param, "little")
    return (number % (1 << 8 * len(param))).to_bytes(len(param), "little")


def place_versionstamp(key: bytes, stamp: bytes) -> bytes:
    """The key with the versionstamp where its last four bytes say, and without these."""
    place = int.from_bytes(key[-4:], "little")
    return key[:place] + stamp + key[place + len(stamp) : -4]
