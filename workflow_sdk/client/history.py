"""The history of an instance, as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workflow_sdk.changes.instances import read_about
from workflow_sdk.changes.rewinding.record import compensations_in, texts_in
from workflow_sdk.driver import Driver
from workflow_sdk.errors import ErrorInfo, InstanceNotFoundError, JoinError
from workflow_sdk.journal.compensation import Compensation, Progress
from workflow_sdk.rows.entries import BranchesData, Entry, EntryTrouble, GraphData, ListenData
from workflow_sdk.rows.instance import InstanceRows
from workflow_sdk.rows.keys import COMPENSATIONS, HISTORY, METADATA, NAMES, InstanceKeys
from workflow_sdk.rows.location import escape, join_path, segments, split_last
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.rows.wire import damaged, time_of
from workflow_sdk.values import Codec, Wrappers
from workflow_sdk.values.basics import short, unpack_cbor
from workflow_sdk.values.exceptions import kind_of
from workflow_sdk.values.failures import describe, unpack_error_info, unpack_failure


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One recorded operation, and the entries under it."""

    path: str
    name: str
    kind: Kind
    status: EntryStatus
    attempts: int
    created_at: datetime
    finished_at: datetime | None
    value: Any
    """The value as plain data: what an object was stored as."""
    error: ErrorInfo | None
    children: tuple[HistoryEntry, ...] = ()
    definition: str = ""
    """Of a graph: the hash of the definition that it goes on with; empty if that is none that can be stored."""

    def __iter__(self) -> Iterator[HistoryEntry]:
        """This entry and everything under it, depth first."""
        yield self
        for child in self.children:
            yield from child


@dataclass(frozen=True, slots=True)
class HistoryCompensation:
    """A step that is undone if the workflow fails, or was undone."""

    path: str
    """The path of the step."""
    progress: str
    """`open`, `retrying`, `done` or `exhausted`."""
    attempts: int
    error: ErrorInfo | None


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is recorded of an instance. Iterating gives the entries, depth first in order of creation."""

    instance_id: str
    workflow: str
    status: Status
    error: ErrorInfo | None
    roots: tuple[HistoryEntry, ...]
    compensations: tuple[HistoryCompensation, ...] = ()
    """The compensations in the order in which they are run."""
    _by_path: dict[str, HistoryEntry] = field(default_factory=dict[str, HistoryEntry], repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_path.update((entry.path, entry) for entry in self)

    def __iter__(self) -> Iterator[HistoryEntry]:
        for root in self.roots:
            yield from root

    def __len__(self) -> int:
        return len(self._by_path)

    def __getitem__(self, path: str) -> HistoryEntry:
        return self._by_path[path]

    def __contains__(self, path: object) -> bool:
        return path in self._by_path

    def __str__(self) -> str:
        lines = [f"{self.workflow} {self.instance_id}: {self.status.value}"]
        if self.error is not None:
            lines[0] += f" ({_short(str(self.error))})"
        _draw(self.roots, "", "", lines)
        lines.extend(
            f"undo {item.path}: {item.progress}" + (f" ({_short(str(item.error))})" if item.error else "")
            for item in (() if self.status is Status.COMPLETED else self.compensations)
        )
        return "\n".join(lines)


def _short(text: str, width: int = 72) -> str:
    line = text.replace("\n", " ")
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _text(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of thousands of digits
        return short(value)


def _draw(entries: Iterable[HistoryEntry], parent: str, indent: str, lines: list[str]) -> None:
    entries = list(entries)
    for entry in entries:
        last = entry is entries[-1]
        label = entry.path[len(parent) :].lstrip("/")
        lines.append(f"{indent}{'└─' if last else '├─'} {label}  {_summary(entry)}")
        _draw(entry.children, entry.path, indent + ("   " if last else "│  "), lines)


def _summary(entry: HistoryEntry) -> str:
    text = f"{entry.kind.value} {entry.status.value}"
    if entry.attempts > 1:
        text += f", {entry.attempts} attempts"
    if entry.error is not None:
        return f"{text}: {_short(str(entry.error))}"
    if entry.value is not None and entry.status is EntryStatus.COMPLETED and not entry.children:
        return f"{text}: {_short(_text(entry.value))}"
    return text


def _branch_names(entry: Entry) -> tuple[str, ...]:
    data = entry.data
    if not isinstance(data, BranchesData):
        return ()
    return data.names if entry.kind is not Kind.MAP else tuple(map(str, range(data.count)))


class _Builder:
    """Puts the entries of one instance together as a tree, and reads what they hold."""

    def __init__(self, texts: Mapping[int, str], codec: Codec, troubles: Mapping[bytes, EntryTrouble]) -> None:
        self.texts = texts
        self.codec = codec
        self.troubles = troubles
        self.children: dict[bytes, dict[bytes, Entry]] = {}

    def add(self, location: bytes, entry: Entry) -> None:
        """Put an entry under its parent. A branch that is under way has no entry, and gets one made up for it."""
        while True:
            parent, segment = split_last(location)
            seen = parent in self.children
            known = self.children.setdefault(parent, {})
            if entry.ordinal >= 0 or segment not in known:
                known[segment] = entry
            if seen or not parent:
                return
            location, entry = parent, Entry(Kind.BRANCH, -1, entry.created_at)

    def tree(
        self, scope: bytes, path: str, branches: tuple[str, ...] = (), *, is_graph: bool = False
    ) -> tuple[HistoryEntry, ...]:
        """The entries of a scope, in order. A branch is placed by its name, since it may have no entry of its own."""
        rows = self.children.get(scope, {})
        if is_graph:
            return self.firings(scope, path, rows)
        places = {name: place for place, name in enumerate(branches)}
        ordered = sorted(
            (places.get(name, entry.ordinal), segment, name, entry)
            for segment, entry in rows.items()
            for name in [self.label(segment)]
        )
        return tuple(
            self.entry(scope + segment, name, join_path(path, escape(name)), entry)
            for _, segment, name, entry in ordered
        )

    def firings(self, scope: bytes, path: str, rows: Mapping[bytes, Entry]) -> tuple[HistoryEntry, ...]:
        """The firings of a graph, in the order in which they began, and what it was told from outside."""
        found: list[HistoryEntry] = []
        for segment, entry in sorted(rows.items(), key=lambda row: (row[1].created_at, row[1].ordinal)):
            (only,) = segments(segment)
            index, number = only if isinstance(only, tuple) else (only, None)
            name = self.texts.get(index, f"?{index}")
            own = join_path(path, escape(name) if number is None else f"{escape(name)}/~{number}")
            if number is None:
                found += self.tree(scope + segment, own)
                continue
            if entry.ordinal < 0:
                entry.kind = Kind.FIRING
            found.append(self.entry(scope + segment, name, own, entry))
        return tuple(found)

    def label(self, segment: bytes) -> str:
        """The name of a segment, as the code gives it."""
        (only,) = segments(segment)
        text = str(only[1]) if isinstance(only, tuple) else self.texts.get(only, f"?{only}")
        if not isinstance(text, str):
            raise damaged("a name")
        return text

    def entry(self, location: bytes, name: str, path: str, entry: Entry) -> HistoryEntry:
        children: tuple[HistoryEntry, ...] = ()
        if entry.kind is Kind.LOOP:
            children = self.turns(location, path)
        elif entry.kind.is_composite:
            children = self.tree(location, path, _branch_names(entry), is_graph=entry.kind is Kind.GRAPH)
        trouble = self.troubles.get(location)
        return HistoryEntry(
            path=path,
            name=name,
            kind=entry.kind,
            status=entry.status,
            attempts=entry.attempts,
            created_at=time_of(entry.created_at),
            finished_at=None if entry.finished_at is None else time_of(entry.finished_at),
            value=self.value(entry),
            error=self.error(entry, trouble),
            children=children,
            definition=entry.data.definition.hex() if isinstance(entry.data, GraphData) else "",
        )

    def turns(self, location: bytes, path: str) -> tuple[HistoryEntry, ...]:
        """The entries of a loop, turn by turn."""
        numbers: list[tuple[int, bytes]] = []
        for segment in self.children.get(location, {}):
            (only,) = segments(segment)
            if not isinstance(only, tuple):
                raise damaged("the entry of what is no loop")
            numbers.append((only[1], segment))
        return tuple(
            entry
            for number, segment in sorted(numbers)
            for entry in self.tree(location + segment, join_path(path, f"~{number}"))
        )

    def plain(self, raw: bytes | None) -> Any:
        return None if raw is None else self.codec.decode(raw, plain=True)

    def value(self, entry: Entry) -> Any:
        """The outcome of an operation as plain data: messages, the values of branches, or its own value."""
        if isinstance(entry.data, ListenData):
            return self.messages(entry, entry.data)
        if isinstance(entry.data, BranchesData) and entry.status is EntryStatus.COMPLETED:
            return self.branch_values(entry, entry.data)
        return self.plain(entry.value)

    def messages(self, entry: Entry, data: ListenData) -> Any:
        if data.timed_out and entry.value is not None:
            return self.plain(entry.value)
        payloads = [self.plain(taken.payload) for taken in data.taken]
        return payloads if data.count > 1 else next(iter(payloads), None)

    def branch_values(self, entry: Entry, data: BranchesData) -> Any:
        if data.winner is not None:
            return {data.names[data.winner]: self.plain(entry.value)}
        values = [self.plain(value) for value, _ in data.outcomes or ()]
        return dict(zip(data.names, values, strict=False)) if entry.kind is Kind.JOIN else values

    def error(self, entry: Entry, trouble: EntryTrouble | None) -> ErrorInfo | None:
        """Why an operation failed, or why it is tried again."""
        if entry.error is not None:
            failure = unpack_failure(unpack_cbor(entry.error), self.codec)
            info = getattr(failure, "error", None)
            return info if isinstance(info, ErrorInfo) else describe(failure, self.codec)
        if entry.status is EntryStatus.FAILED and isinstance(entry.data, BranchesData):
            return self.branch_errors(entry, entry.data)
        if trouble is not None and not entry.is_final:
            return unpack_error_info(trouble.error, self.codec)
        return None

    def branch_errors(self, entry: Entry, data: BranchesData) -> ErrorInfo:
        kind = "RaceError" if entry.kind is Kind.RACE else "JoinError"
        names = data.names or tuple(map(str, range(data.count)))
        failed = {
            name: unpack_failure(unpack_cbor(error), self.codec)
            for name, (_, error) in zip(names, data.outcomes or (), strict=False)
            if error is not None
        }
        which = f": {', '.join(map(escape, list(failed)[:10]))}" if failed else ""
        common = kind_of(JoinError("", failed)) if failed else "application"
        return ErrorInfo(f"workflow_sdk.errors.{kind}", f"branches failed{which}", kind=common)


def build_history(
    *,
    instance_id: str,
    workflow: str,
    status: Status,
    error: ErrorInfo | None,
    texts: Mapping[int, str],
    entries: Iterable[tuple[bytes, bytes]],
    troubles: Mapping[bytes, EntryTrouble],
    compensations: Iterable[Compensation],
    codec: Codec,
) -> History:
    """Build the history from the rows of an instance. `entries` are pairs of a packed location and a packed entry."""
    builder = _Builder(texts, codec, troubles)
    for location, raw in entries:
        entry = Entry.unpack(raw)
        entry.check()
        builder.add(location, entry)
    undo = tuple(
        HistoryCompensation(
            path=item.path,
            progress=Progress(item.progress).name.lower(),
            attempts=item.attempts,
            error=unpack_error_info(item.error, codec) if item.error else None,
        )
        for item in sorted(compensations, key=lambda item: -item.sequence)
    )
    return History(instance_id, workflow, status, error, builder.tree(b"", ""), undo)


LOOKS_MAX = 5
"""How often an instance is read again, if it changes while it is read."""


async def read_history(driver: Driver, instance_id: str, *, codec: Wrappers | None = None) -> History:
    """The recorded operations of an instance, as a tree; `print` draws it."""
    keys = InstanceKeys(instance_id)
    values = Codec(wrapper=codec)
    about, parts = await _read(driver, keys)
    error = about.result.error
    return build_history(
        instance_id=instance_id,
        workflow=about.head.workflow,
        status=about.status,
        error=None if error is None else unpack_error_info(error, values),
        texts=texts_in(parts[NAMES]),
        entries=parts[HISTORY],
        troubles={key: EntryTrouble.unpack(raw) for key, raw in parts[METADATA]},
        compensations=compensations_in(parts[COMPENSATIONS]),
        codec=values,
    )


async def _read(driver: Driver, keys: InstanceKeys) -> tuple[InstanceRows, dict[bytes, list[tuple[bytes, bytes]]]]:
    """Read an instance and its history as they were at one moment. If they change all the time, parts may not match."""
    about = await read_about(driver, keys)
    if not about:
        raise InstanceNotFoundError(f"there is no instance {keys.instance_id!r}")
    looks = 0
    while True:
        parts = await _read_parts(driver, keys)
        looks += 1
        after = await read_about(driver, keys)
        if not after:
            return about, parts  # deleted just now: return it as it was before
        if after.tally == about.tally or looks == LOOKS_MAX:
            return after, parts
        about = after


async def _read_parts(driver: Driver, keys: InstanceKeys) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """Read the rows of a history, but not the inbox, which lies between them and may be large."""
    start = len(keys.space)
    parts: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for first, last in ((NAMES, HISTORY), (METADATA, COMPENSATIONS)):
        parts[first], parts[last] = [], []
        for key, raw in await driver.scan(keys.range(first)[0], keys.range(last)[1]):
            parts[key[start : start + 2]].append((key[start + 2 :], raw))
    return parts
