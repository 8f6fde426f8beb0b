"""The record as a tree."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from workflow_sdk.client.history import History, HistoryEntry, build_history
from workflow_sdk.errors import ErrorInfo, StepExhaustedError
from workflow_sdk.journal.compensation import Compensation, Progress
from workflow_sdk.operations.place import pack_error
from workflow_sdk.rows.entries import BranchesData, Entry, EntryTrouble, ListenData, LoopData, SleepData, Taken
from workflow_sdk.rows.location import pack_pair, pack_segment
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.values import Codec
from workflow_sdk.values.failures import describe, pack_error_info

CODEC = Codec()
DONE, FAILED, WAITING = EntryStatus.COMPLETED, EntryStatus.FAILED, EntryStatus.WAITING
NAMES = ["outer", "inner/step", "join", "b", "a", "nap", "map", "race", "listen", "bad", "retry"]
(OUTER, INNER, JOIN, B, A, NAP, MAP, RACE, LISTEN, BAD, RETRY) = map(pack_segment, range(len(NAMES)))


def entry(kind: Kind, ordinal: int, status: EntryStatus = DONE, **more: Any) -> Entry:
    finished = 10.0 + ordinal if status.is_final else None
    return Entry(kind, ordinal, float(ordinal), status=status, finished_at=finished, **more)


def value(data: Any) -> bytes:
    return CODEC.encode(data)


FAILURE = StepExhaustedError("bad", "bad", 4, ErrorInfo("app.Declined", "no\nway"))
TAKEN = (Taken(b"1", "m", 1.0, value({"x": 1})),)

ROWS: dict[bytes, Entry] = {
    # In the order of keys, which is not that of creation.
    OUTER: entry(Kind.LOOP, 3, value=value("end"), data=LoopData(12, b"")),
    OUTER + pack_pair(0, 2) + INNER: entry(Kind.STEP, 0, value=value(2)),
    OUTER + pack_pair(0, 10) + INNER: entry(Kind.STEP, 0, value=value(10)),
    JOIN: entry(Kind.JOIN, 1, EntryStatus.RUNNING, data=BranchesData(("a", "b"))),
    JOIN + B + NAP: entry(Kind.SLEEP, 0, WAITING, data=SleepData(99.0)),
    JOIN + A: entry(Kind.BRANCH, 0, value=value(None)),
    JOIN + A + INNER: entry(Kind.STEP, 0, value=value([1])),
    MAP: entry(Kind.MAP, 2, data=BranchesData((), 2, ((value(1), None), (value(2), None)))),
    MAP + pack_pair(6, 0): entry(Kind.BRANCH, 0, value=value(1)),
    MAP + pack_pair(6, 1): entry(Kind.BRANCH, 1, value=value(2)),
    RACE: entry(Kind.RACE, 4, value=value("v"), data=BranchesData(("a", "b"), winner=1)),
    RACE + B: entry(Kind.BRANCH, 1, value=value("v")),
    LISTEN: entry(Kind.LISTEN, 5, data=ListenData(("m",), taken=TAKEN)),
    BAD: entry(Kind.STEP, 0, FAILED, attempts=4, error=pack_error(FAILURE, CODEC)),
    RETRY: entry(Kind.STEP, 6, WAITING, attempts=2),
}


def history(**more: Any) -> History:
    trouble = EntryTrouble("a/b", 2, 5.0, pack_error_info(describe(ValueError("again"), CODEC), CODEC))
    undo = [
        Compensation(0, b"", "outer/~2/inner%2Fstep", None, b"", tagged=True),
        Compensation(1, b"", "bad", None, b"", tagged=True, progress=Progress.DONE),
    ]
    parts: dict[str, Any] = {
        "instance_id": "order 1",
        "workflow": "checkout",
        "status": Status.WAITING,
        "error": None,
        "texts": dict(enumerate(NAMES)),
        "entries": [(location, row.pack()) for location, row in sorted(ROWS.items())],
        "troubles": {RETRY: trouble},
        "compensations": undo,
        "codec": CODEC,
    }
    return build_history(**(parts | more))


PATHS = [
    "bad",
    "join",
    "join/a",
    "join/a/inner%2Fstep",
    "join/b",
    "join/b/nap",
    "map",
    "map/0",
    "map/1",
    "outer",
    "outer/~2/inner%2Fstep",
    "outer/~10/inner%2Fstep",
    "race",
    "race/b",
    "listen",
    "retry",
]


def test_it_iterates_depth_first_in_order_of_creation() -> None:
    found = history()
    assert [each.path for each in found] == PATHS
    assert len(found) == len(PATHS)
    assert [each.path for each in found["join"]] == PATHS[1:6]


def test_entries_are_found_by_their_path() -> None:
    found = history()
    assert all(found[path].path == path for path in PATHS)
    assert all(path in found for path in PATHS)
    for missing in ("", "inner/step", "outer/~0", "/bad", 3):
        assert missing not in found
    with pytest.raises(KeyError):
        found["nothing"]


def test_what_an_entry_tells() -> None:
    bad = history()["bad"]
    assert (bad.name, bad.kind, bad.status, bad.attempts, bad.value) == ("bad", Kind.STEP, FAILED, 4, None)
    assert bad.error == ErrorInfo("app.Declined", "no\nway")
    assert bad.created_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert bad.finished_at == datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
    nested = history()["outer/~2/inner%2Fstep"]
    assert (nested.name, nested.value, nested.children) == ("inner/step", 2, ())


def test_values_of_every_kind() -> None:
    found = history()
    values = {path: found[path].value for path in ("outer", "map", "race", "listen", "join/a", "map/1", "retry")}
    assert values == {
        "outer": "end",
        "map": [1, 2],
        "race": {"b": "v"},
        "listen": {"x": 1},
        "join/a": None,
        "map/1": 2,
        "retry": None,
    }


def test_a_step_that_is_tried_again_tells_why() -> None:
    retry = history()["retry"]
    assert retry.error is not None
    assert (retry.error.type, retry.error.message, retry.attempts) == ("ValueError", "again", 2)


def test_a_branch_under_way_has_no_entry_and_is_shown_at_its_place() -> None:
    branch = history()["join/b"]
    assert isinstance(branch, HistoryEntry)
    assert (branch.kind, branch.status, branch.name) == (Kind.BRANCH, EntryStatus.RUNNING, "b")


def test_how_it_prints() -> None:
    assert str(history(error=ErrorInfo("app.Stop", "x" * 100))).splitlines() == [
        f"checkout order 1: waiting (app.Stop: {'x' * 59}...)",
        "├─ bad  step failed, 4 attempts: app.Declined: no way",
        "├─ join  join running",
        "│  ├─ a  branch completed",
        "│  │  └─ inner%2Fstep  step completed: [1]",
        "│  └─ b  branch running",
        "│     └─ nap  sleep waiting",
        "├─ map  map completed",
        "│  ├─ 0  branch completed: 1",
        "│  └─ 1  branch completed: 2",
        "├─ outer  loop completed",
        "│  ├─ ~2/inner%2Fstep  step completed: 2",
        "│  └─ ~10/inner%2Fstep  step completed: 10",
        "├─ race  race completed",
        "│  └─ b  branch completed: 'v'",
        "├─ listen  listen completed: {'x': 1}",
        "└─ retry  step waiting, 2 attempts: ValueError: again",
        "undo bad: done",
        "undo outer/~2/inner%2Fstep: open",
    ]


def test_an_empty_history() -> None:
    empty = history(entries=[], compensations=[])
    assert (str(empty), len(empty), list(empty)) == ("checkout order 1: waiting", 0, [])


def test_names_that_look_like_paths_do_not_collide() -> None:
    texts = {0: "a", 1: "b", 2: "a/b", 3: "~0", 4: "%7E0"}
    rows = {
        pack_segment(0): entry(Kind.ATTEMPT, 0, value=value(None)),
        pack_segment(0) + pack_segment(1): entry(Kind.STEP, 0, value=value(1)),
        pack_segment(2): entry(Kind.STEP, 1, value=value(2)),
        pack_segment(3): entry(Kind.STEP, 2, value=value(3)),
        pack_segment(4): entry(Kind.STEP, 3, value=value(4)),
    }
    found = history(texts=texts, entries=[(at, row.pack()) for at, row in rows.items()])
    assert [each.path for each in found] == ["a", "a/b", "a%2Fb", "%7E0", "%257E0"]
    assert [found[path].value for path in ("a/b", "a%2Fb", "%7E0", "%257E0")] == [1, 2, 3, 4]
