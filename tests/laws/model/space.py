"""What a store holds, read as what it means. Nothing of the engine's own loading is used for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from workflow_sdk.journal.compensation import Compensation
from workflow_sdk.journal.inbox import InboxMessage
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import BranchesData, Entry, LoopData
from workflow_sdk.rows.instance import InstanceRows, WaitRow
from workflow_sdk.rows.keys import ROOT, Field
from workflow_sdk.rows.location import escape, join_path, pack, unpack
from workflow_sdk.rows.status import Kind, Status

__all__ = ["Location", "Space", "Store", "prefixes"]

Rows = dict[bytes, bytes]

# The whole store is read again after each commit, and most of its rows are those of the commit before: each is decoded
# once. Nobody changes what comes out of these.
read_key = lru_cache(maxsize=20_000)(unpack)
read_entry = lru_cache(maxsize=20_000)(Entry.unpack)

Location = tuple[Any, ...]
"""Segments: an index, or for a turn or the branch of a map (index, number)."""


@dataclass(frozen=True)
class Name:
    """A name's row."""

    text: str
    owner: bytes
    """The loop that it belongs to; empty for the root."""
    shadowed: bool


class Store:
    """All rows of a store, by what they are for."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.spaces: dict[str, Rows] = {}
        self._read: dict[str, Space] = {}
        self.alarms: list[tuple[str, float]] = []
        self.listed: list[tuple[Any, ...]] = []
        self.claims: list[tuple[str, str]] = []
        for key, raw in rows.items():
            parts = read_key(key[len(ROOT) :])
            match parts:
                case (1, str(id), *_):
                    self.spaces.setdefault(id, {})[key] = raw
                case (3, _, when, str(id)):
                    self.alarms.append((id, float(str(when))))
                case (5, *listed):
                    self.listed.append(tuple(listed))
                case (7, str(worker), str(id)):
                    self.claims.append((id, worker))
                case _:
                    pass

    def space(self, id: str) -> Space:
        """What is stored in the space of an instance."""
        if id not in self._read:
            self._read[id] = Space(id, self.spaces.get(id, {}))
        return self._read[id]


class Space:
    """The rows of one instance."""

    def __init__(self, id: str, rows: Rows) -> None:
        self.id = id
        self.rows = rows
        self.prefix: bytes = ROOT + pack((1, id))
        self.parts: dict[int, dict[Location, bytes]] = {}
        for key, raw in rows.items():
            part, *rest = read_key(key[len(self.prefix) :])
            assert isinstance(part, int), "parts are numbered"
            self.parts.setdefault(part, {})[tuple(rest)] = raw

    def part(self, number: int) -> dict[Location, bytes]:
        """The rows of one part."""
        return self.parts.get(number, {})

    @cached_property
    def about(self) -> InstanceRows:
        """What is stored beside the history."""
        return InstanceRows({Field(key[0]): raw for key, raw in self.part(4).items() if key[0] not in (20, 21)})

    @property
    def status(self) -> Status | None:
        """What the instance is doing; None if there is none."""
        return self.about.status if self.about else None

    @property
    def lease(self) -> bytes | None:
        """Who has it."""
        return self.part(4).get((20,))

    @property
    def alarm(self) -> float | None:
        """When it is due, as its head has it."""
        return self.about.head.alarm if self.about else None

    @cached_property
    def names(self) -> dict[int, Name]:
        """The names, by index."""
        found: dict[int, Name] = {}
        for (index,), raw in self.part(1).items():
            name = NameRow.unpack(raw)
            found[index] = Name(name.text, name.owner, name.shadowed)
        return found

    @cached_property
    def history(self) -> dict[Location, Entry]:
        """The entries."""
        return {location: read_entry(raw) for location, raw in self.part(2).items()}

    @cached_property
    def compensations(self) -> dict[int, Compensation]:
        """What is to be undone, by number."""
        return {number: Compensation.unpack(number, raw) for (number,), raw in self.part(6).items()}

    @cached_property
    def waits(self) -> dict[Location, WaitRow]:
        """What is waited for, by who waits; once, however many messages it is."""
        return {location[1:]: WaitRow.unpack(raw) for location, raw in self.part(9).items()}

    @property
    def served(self) -> list[Location]:
        """Who waits for messages, of which there are enough."""
        there = Counter(str(InboxMessage.unpack(b"", raw).name) for raw in self.part(3).values())
        found: Counter[Location] = Counter()
        for location in self.part(9):
            found[location[1:]] += there[location[0]] if location[0] else 0
        return [location for location, number in found.items() if number and number >= self.waits[location].takes]

    @cached_property
    def inbox(self) -> set[bytes]:
        """The ids of the messages that nobody has taken."""
        inbox = self.prefix + pack((3,))
        return {key[len(inbox) :] for key in self.rows if key.startswith(inbox)}

    @cached_property
    def aside(self) -> dict[bytes, bytes]:
        """The messages that were set aside, by their ids."""
        aside = self.prefix + pack((14,))
        return {key[len(aside) :]: raw for key, raw in self.rows.items() if key.startswith(aside)}

    def path(self, location: Location) -> str:
        """A location as a path."""
        found = ""
        for end, segment in enumerate(location):
            if isinstance(segment, tuple):
                around = self.history.get(location[:end])
                turn = around is not None and around.kind is Kind.LOOP
                found = join_path(found, f"~{segment[1]}" if turn else str(segment[1]))
            else:
                found = join_path(found, escape(self.names[segment].text))
        return found

    def is_pruned(self, location: Location) -> bool:
        """Whether it is in a turn that a loop does not keep."""
        for parent, segment in prefixes(location):
            entry = self.history.get(parent)
            if entry is not None and isinstance(entry.data, LoopData) and segment[1] < entry.data.first:
                return True
        return False

    def has_lost(self, location: Location) -> bool:
        """Whether it is in the branch of a race that another has won."""
        for parent, segment in prefixes(location):
            entry = self.history.get(parent)
            if entry is None or entry.kind is not Kind.RACE or not entry.is_final:
                continue
            data = entry.data
            assert isinstance(data, BranchesData), "a race has branches"
            if data.winner is not None and self.names[segment].text != data.names[data.winner]:
                return True
        return False

    def around(self, location: Location) -> Iterator[tuple[Location, Entry]]:
        """The entries that an entry is in, from the outermost."""
        for parent, _ in prefixes(location):
            if parent in self.history:
                yield parent, self.history[parent]


def prefixes(location: Location) -> Iterator[tuple[Location, Any]]:
    """Every location around one, with the segment that leads on from there; the root is none."""
    for end in range(1, len(location)):
        yield location[:end], location[end]
