"""Rows that are not of this library's making."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import BOMBS, FOREIGN, bounded, cbor, hostile, mutated
from workflow_sdk.changes.deliver import unpack_key
from workflow_sdk.changes.workers import Heartbeat
from workflow_sdk.client.history import build_history
from workflow_sdk.errors import CodecError, ErrorInfo, JoinError, StepExhaustedError
from workflow_sdk.features.schedules.rows import ScheduleRow
from workflow_sdk.instance.loading import HistoryCursor
from workflow_sdk.journal.compensation import Compensation, HandlerRef, Progress
from workflow_sdk.journal.inbox import Answer, AnswerKind, InboxMessage, SetAside, counted, messages_in
from workflow_sdk.journal.journal import Journal
from workflow_sdk.journal.loop_states import pack_bases, unpack_bases
from workflow_sdk.journal.names import Names
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.rows.entries import (
    BranchesData,
    ChildData,
    Entry,
    EntryTrouble,
    ListenData,
    LoopData,
    RetryData,
    SleepData,
    Taken,
    TaskData,
)
from workflow_sdk.rows.instance import (
    Birth,
    CountRow,
    Death,
    Deaths,
    Head,
    InstanceRows,
    Lease,
    Result,
    Shown,
    Tally,
    Try,
    WaitRow,
    Watchers,
)
from workflow_sdk.rows.keys import HISTORY, TAKINGS, Field, InstanceKeys
from workflow_sdk.rows.location import pack_pair, pack_segment
from workflow_sdk.rows.outside import Cleanup, Ending, Hanging, TaskDone, TaskEvent, TaskRow
from workflow_sdk.rows.status import EntryStatus, Kind, Status
from workflow_sdk.rows.wire import FORMAT, ErrorRow, Text, pack_record, unpack_record
from workflow_sdk.values import Codec
from workflow_sdk.values.basics import unpack_cbor
from workflow_sdk.values.failures import describe, pack_error_info, pack_failure, unpack_error_info, unpack_failure

pytestmark = pytest.mark.law(17)

CODEC = Codec()
INFO = ErrorInfo("app.Declined", "no money", "line 1", {"code": 7})
FAILURE = pack_failure(JoinError("two failed", {"a": ValueError(1, "x"), "b": OSError(2, "no")}), CODEC)
EXHAUSTED = StepExhaustedError("s", "a/s", 3, INFO)
EXHAUSTED.__cause__ = ExceptionGroup("g", [KeyError("k")])
TAKEN = Taken(b"m", "msg", 1.5, CODEC.encode("hi"), b"reply")
DONE, FAILED = EntryStatus.COMPLETED, EntryStatus.FAILED

ENTRIES = [
    Entry(Kind.STEP, 3, 1.5, status=DONE, finished_at=2.5, value=CODEC.encode({"a": [1, 2]})),
    Entry(Kind.STEP, 0, 1.5, status=FAILED, finished_at=2.5, error=cbor2.dumps(FAILURE, canonical=True)),
    Entry(Kind.STEP, 0, 1.5, status=EntryStatus.WAITING, data=RetryData(9.25)),
    Entry(Kind.STEP, 0, 1.5, status=EntryStatus.WAITING, data=RetryData(9.25), digest=CODEC.encode(b"12345678")),
    Entry(Kind.SLEEP, 1, 1.5, status=EntryStatus.WAITING, data=SleepData(9.25)),
    Entry(Kind.LISTEN, 1, 1.5, status=DONE, data=ListenData(("a", "b"), 4.5, 1, (TAKEN,))),
    Entry(Kind.LOOP, 2, 1.5, data=LoopData(40, CODEC.encode([1]), 1.25, 39, 20, 0)),
    Entry(Kind.JOIN, 2, 1.5, status=DONE, data=BranchesData(("x", "y"), 0, ((b"\x01", None), (b"\x02", None)))),
    Entry(Kind.RACE, 2, 1.5, status=DONE, value=b"\x01", data=BranchesData(("x", "y"), 0, None, 1)),
    Entry(Kind.MAP, 2, 1.5, status=FAILED, data=BranchesData((), 2, ((b"\x01", None), (None, b"\x80")))),
    Entry(Kind.BRANCH, 1, 1.5, status=DONE, value=b"\x01"),
    Entry(Kind.CHILD, 1, 1.5, status=EntryStatus.WAITING, data=ChildData("i/child", cancels=True)),
    Entry(Kind.TASK, 1, 1.5, status=DONE, value=b"\x01", data=TaskData("t", 9.5, "anna", 2.5)),
]
ENTRIES[2].since = 7
HANDLER = HandlerRef("app:undo", (b"\x01",), (("key", b"\x02"),))
ERROR = pack_error_info(INFO, CODEC)
COMPENSATION = Compensation(4, pack_segment(3), "a/b", HANDLER, b"\x01", True, Progress.RETRYING, 2, 9.5, ERROR)
HEAD = Head("w", 1, "x", 1.5, Status.RUNNING, 3, 2.5, 9.5)
MESSAGE = InboxMessage(b"id", "msg", CODEC.encode([1]), 1.5, b"reply", pack_segment(3))
LOOP = pack_segment(0)
TOKEN = pack_segment(7) + LOOP


def load_name(raw: bytes) -> str:
    names = Names(lambda key, value: None)
    names.load(1, raw)
    assert isinstance(names.texts[1], str)
    return names.texts[1]


def load_taking(raw: bytes) -> InboxMessage:
    journal = Journal(InstanceKeys("i"))
    journal.takings.load(TAKINGS + LOOP, raw)
    return journal.takings.rows[TAKINGS + LOOP]


def load_entry(raw: bytes) -> Entry:
    """As a run does."""
    journal = Journal(InstanceKeys("i"))
    cursor = HistoryCursor(journal, HISTORY)
    cursor.feed([(journal.keys.space + HISTORY + LOOP, raw)])
    return journal.history.loaded[b""][LOOP]


def read_counts(raw: bytes) -> int:
    """How many messages an instance has that has taken some."""
    rows = InstanceRows({Field.HEAD: HEAD.pack(), Field.BIRTH: Birth(b"\xf6", b"seed").pack(), Field.TALLY: raw})
    return messages_in(rows, {b"": CountRow(5).pack()})


def read_error_info(raw: bytes) -> ErrorInfo:
    info = unpack_error_info(ErrorRow.unpack(raw), CODEC)
    assert all(isinstance(part, str) for part in (info.type, info.message, info.traceback, info.kind, str(info)))
    return info


def read_failure(raw: bytes) -> Exception:
    failure = unpack_failure(unpack_cbor(raw), CODEC)
    assert isinstance(failure, Exception)
    describe(failure, CODEC)
    return failure


def apply_change(raw: bytes) -> PublicState:
    world = PublicState(CODEC)
    world.apply({LOOP: raw})
    assert isinstance(dict(world.state), dict)
    return world


def change() -> bytes:
    world = PublicState(CODEC)
    world.state["a"] = [1, {"b": 2}]
    world.refer("r-1")
    world.advance(1, 2.5, "half")
    return world.whole()


SCHEDULE = ScheduleRow(
    *("w", b"\xf6", None, 60_000_000, "UTC", "skip", "last", False, 1.5, 1.5, 60.0, None, "s/1", (2.5,))
)
TASK = TaskRow("t", "approve", "i", "a/approve", TOKEN, b"\x01", "anna", ("boss", "owner"), "r-1", 1.5, 9.5)


ROWS: Mapping[str, tuple[Callable[[bytes], Any], list[bytes]]] = {
    "record": (unpack_record, [pack_record([1, "a", b"b", None, 1.5, [True], {"k": 2**60}])]),
    "entry": (Entry.unpack, [entry.pack() for entry in ENTRIES]),
    "loaded entry": (load_entry, [entry.pack() for entry in ENTRIES]),
    "trouble": (EntryTrouble.unpack, [EntryTrouble("a/b", 2, 1.5, ERROR).pack()]),
    "compensation": (lambda raw: Compensation.unpack(4, raw), [COMPENSATION.pack()]),
    "message": (lambda raw: InboxMessage.unpack(b"id", raw), [MESSAGE.pack()]),
    "set aside": (SetAside.unpack, [SetAside("msg", CODEC.encode([1]), 1.5, CODEC.encode("why")).pack()]),
    "answer": (Answer.unpack, [Answer(b"\x01").pack(), Answer(CODEC.encode("why"), AnswerKind.UNFIT).pack()]),
    "count": (counted, [CountRow(7).pack(), CountRow(-2).pack()]),
    "counts": (read_counts, [Tally(7).pack(), Tally(7, 300).pack(), Tally(7, -1).pack()]),
    "key": (unpack_key, [pack_record(["key", 1.5, 7])]),
    "taking": (load_taking, [pack_record([b"id", MESSAGE.pack()])]),
    "bases": (unpack_bases, [pack_bases([(1, 1, 1.5, b"\x01"), (2, 2, 2.5, b"\x02"), (5, 5, 3.5, b"\x03")])]),
    "name": (load_name, [pack_record(["charge"]), pack_record(["charge", LOOP, True, 7])]),
    "error": (read_error_info, [ERROR.pack()]),
    "outside": (Hanging.unpack, [Hanging("child", "i/c", ends=True, since=4).pack()]),
    "cleanup": (Cleanup.unpack, [Cleanup("task", "t", "i", TOKEN, rollback=False).pack()]),
    "ending": (Ending.unpack, [Ending(Status.FAILED, None, ERROR).pack()]),
    "task done": (TaskDone.unpack, [TaskDone(b"\x01", "anna", 2.5).pack()]),
    "task": (TaskRow.unpack, [TASK.pack()]),
    "task event": (TaskEvent.unpack, [TaskEvent("assigned", "anna", 1.5, "ben").pack()]),
    "change": (apply_change, [change()]),
    "wait": (WaitRow.unpack, [WaitRow("task", "a", "b/a", 9.5, 1, 0, 7).pack()]),
    "head": (Head.unpack, [HEAD.pack()]),
    "birth": (Birth.unpack, [Birth(b"\xf6", b"seed", 5.0, 2, 1.5, b"\xf6", b"\x01", 1, (b"\xf6",)).pack()]),
    "result": (Result.unpack, [Result(b"\x01").pack(), Result(None, ERROR, ERROR, ("a/b",)).pack()]),
    "deaths": (Deaths.unpack, [Deaths((Death("w/1", noted=True),)).pack()]),
    "try": (Try.unpack, [Try("a/b", ("w/1",)).pack()]),
    "shown": (Shown.unpack, [Shown("r-1", (1, 2.5, Text("half"))).pack()]),
    "watchers": (Watchers.unpack, [Watchers((("i", TOKEN),)).pack()]),
    "lease": (Lease.unpack, [Lease("w", 1, 5.0).pack()]),
    "schedule": (ScheduleRow.unpack, [SCHEDULE.pack()]),
    "heartbeat": (Heartbeat.unpack, [Heartbeat(1.5, 5.0, 7).pack()]),
}

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 12)
    | st.sampled_from([2**63, -(2**63)])
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["builtins:ValueError", "builtins:ExceptionGroup", "workflow_sdk.errors:JoinError", "x:y"])
    | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=25,
)


@pytest.mark.parametrize("what", ROWS)
def test_a_row_of_random_bytes_is_a_clear_error(what: str) -> None:
    read, rows = ROWS[what]
    for row in rows:
        read(row)

    @given(hostile | mutated(rows))
    @examples(100)
    def check(raw: bytes) -> None:
        with suppress(CodecError):
            read(raw)

    check()


@pytest.mark.parametrize("what", ROWS)
def test_a_record_with_other_fields_is_a_clear_error(what: str) -> None:
    read, rows = ROWS[what]

    @given(st.data())
    @examples(100)
    def check(data: st.DataObject) -> None:
        fields = unpack_record(data.draw(st.sampled_from(rows)))
        holder = fields
        # Somewhere in it, also deep.
        while True:
            inner = [part for part in holder if type(part) is list and part]
            if not inner or data.draw(st.booleans()):
                break
            holder = data.draw(st.sampled_from(inner))
        at = data.draw(st.integers(0, len(holder) - 1))
        match data.draw(st.sampled_from(["other", "other", "less", "more"])):
            case "less":
                del holder[at]
            case "more":
                holder.insert(at, data.draw(plain))
            case _:
                holder[at] = data.draw(plain)
        with suppress(CodecError, UnicodeEncodeError):
            read(pack_record(fields))

    check()


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_row_that_is_a_bomb_is_a_clear_error(bomb: str) -> None:
    raw = BOMBS[bomb]
    with bounded():
        for read, _ in ROWS.values():
            for row in (
                raw,
                FORMAT + raw,
                FORMAT + b"\x91" + raw,
                FORMAT + b"\x99" + raw * (9 if len(raw) < 1000 else 1),
            ):
                with suppress(CodecError):
                    read(row)


@pytest.mark.parametrize("tag", FOREIGN)
def test_a_failure_with_a_tag_of_others_is_a_clear_error(tag: str) -> None:
    with pytest.raises(CodecError, match="damaged"):
        unpack_cbor(b"\x81" + FOREIGN[tag])


def test_no_tag_is_read_but_those_of_large_integers() -> None:
    """A release of cbor2 may know more of them than the last one."""
    for tag in range(60_000):
        for content in (b"\x80", b"\x41\x00", b"\x61a", b"\x00"):
            try:
                found = unpack_cbor(b"\xd9" + tag.to_bytes(2, "big") + content)
            except CodecError:
                continue
            assert isinstance(found, cbor2.CBORTag) or tag in (2, 3), tag


@given(cbor | mutated([cbor2.dumps(FAILURE), cbor2.dumps(pack_failure(EXHAUSTED, CODEC))]))
@examples(100)
def test_a_failure_of_random_bytes_is_a_clear_error(raw: bytes) -> None:
    with suppress(CodecError):
        read_failure(raw)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.binary(max_size=40) | mutated([e.pack() for e in ENTRIES])))
)
@examples(150)
def test_a_history_of_random_rows_is_a_tree_or_a_clear_error(rows: list[tuple[int, bytes]]) -> None:
    places = [LOOP, LOOP + pack_pair(0, 3), LOOP + pack_segment(1), pack_segment(1)]
    with suppress(CodecError):
        history = build_history(
            instance_id="i",
            workflow="w",
            status=Status.RUNNING,
            error=None,
            texts={0: "a", 1: "b"},
            entries=sorted((places[place], raw) for place, raw in rows),
            troubles={},
            compensations=[COMPENSATION] if rows else [],
            codec=CODEC,
        )
        assert str(history)


def test_a_value_of_very_many_digits_can_be_drawn() -> None:
    entry = Entry(Kind.STEP, 0, 1.5, status=DONE, finished_at=2.5, value=CODEC.encode(10**5000))
    history = build_history(
        instance_id="i",
        workflow="w",
        status=Status.RUNNING,
        error=None,
        texts={0: "a"},
        entries=[(LOOP, entry.pack())],
        troubles={},
        compensations=[],
        codec=CODEC,
    )
    assert "a  step completed" in str(history)


@given(cbor)
@examples(100)
def test_a_failure_that_is_none_is_a_clear_error(raw: bytes) -> None:
    entry = Entry(Kind.STEP, 0, 1.5, status=FAILED, finished_at=2.5, error=raw)
    with suppress(CodecError):
        build_history(
            instance_id="i",
            workflow="w",
            status=Status.FAILED,
            error=None,
            texts={0: "a"},
            entries=[(LOOP, entry.pack())],
            troubles={},
            compensations=[],
            codec=CODEC,
        )
