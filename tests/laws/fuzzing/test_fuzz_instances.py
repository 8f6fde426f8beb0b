"""Whole instances, of which one row is not what was written."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.laws.examples import examples
from tests.laws.fuzzing.hostile import SURROGATE, mutated
from tests.laws.fuzzing.instances import ACTIONS, FLOWS, act, do, rows_of
from workflow_sdk import RunResult, Status, WorkflowSDKError
from workflow_sdk.rows.instance import Head
from workflow_sdk.rows.keys import (
    ASIDE,
    BASES,
    COMPENSATIONS,
    HISTORY,
    INBOX,
    METADATA,
    NAMES,
    TAKINGS,
    Field,
    InstanceKeys,
    field_key,
    waits_of,
)
from workflow_sdk.rows.location import pack, pack_segment
from workflow_sdk.rows.wire import pack_record, unpack_record

pytestmark = pytest.mark.law(17)

READ_BY_CORE = (HISTORY, INBOX, ASIDE, METADATA, COMPENSATIONS, TAKINGS, BASES)
"""The parts of an instance's space that `core` alone knows how to read."""
READS_NAMES_ITSELF = {"history", "restart", "restart from", "recover"}

wrong = st.none() | st.integers(-2, 9) | st.floats() | st.sampled_from(["x", b"", b"\x01", 2**63, [], [1], {}, True])


@st.composite
def refielded(draw: st.DrawFn, rows: list[bytes]) -> bytes:
    """One of the records, with a field that is another, somewhere in it."""
    fields: list[Any] = unpack_record(draw(st.sampled_from(rows)))
    holder = fields
    while inner := [part for part in holder if type(part) is list and part]:
        if draw(st.booleans()):
            break
        holder = draw(st.sampled_from(inner))
    if not holder:
        return pack_record([draw(wrong)])
    at = draw(st.integers(0, len(holder) - 1))
    if draw(st.booleans()):
        holder[at] = draw(wrong)
    else:
        del holder[at]
    return pack_record(fields)


def outcome(action: str, id: str, key: bytes, raw: bytes) -> object:
    """What comes of it: a result, or an error of this library."""
    try:
        return act(action, id, (key, raw))
    except WorkflowSDKError as error:
        return error


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("id", FLOWS)
def test_with_every_row_as_it_was_written_none_is_damaged(action: str, id: str) -> None:
    try:
        act(action, id)
    except WorkflowSDKError as error:
        assert "damaged" not in str(error)  # noqa: PT017  # the status of some does not allow the action


@pytest.mark.parametrize("action", ACTIONS)
def test_a_row_that_was_damaged_is_a_clear_error(action: str) -> None:
    parts: tuple[bytes, ...] = READ_BY_CORE if action in READS_NAMES_ITSELF else (*READ_BY_CORE, NAMES)
    if action in ("restart from", "recover"):
        parts = tuple(part for part in parts if part != COMPENSATIONS)  # the last case below

    def readable(id: str) -> list[tuple[bytes, bytes]]:
        start = len(InstanceKeys(id).space)
        return [(key, raw) for key, raw in rows_of(id) if key[start:].startswith(parts)]

    rows = {id: readable(id) for id in FLOWS}
    values = [raw for of_one in rows.values() for _, raw in of_one]

    @given(st.data())
    @examples(60)
    def check(data: st.DataObject) -> None:
        id = data.draw(st.sampled_from([*FLOWS, "parks", "parks", "parks"]))
        key, raw = data.draw(st.sampled_from(rows[id]))
        changed = data.draw(mutated([raw]) | refielded([raw]) | st.sampled_from(values))
        outcome(action, id, key, changed)

    check()


@pytest.mark.parametrize("id", FLOWS)
def test_a_row_that_was_damaged_does_not_fail_the_instance(id: str) -> None:
    """Nothing is undone because of it; what has recorded its failure is the case of its own below."""
    start = len(InstanceKeys(id).space)
    rows = [
        (key, raw)
        for key, raw in rows_of(id)
        if key[start:].startswith((HISTORY, INBOX, METADATA, TAKINGS, NAMES)) and not has_failure(key[start:], raw)
    ]

    @given(st.sampled_from(rows), st.binary(max_size=20))
    @examples(25)
    def check(row: tuple[bytes, bytes], raw: bytes) -> None:
        before = outcome("run", id, *row)
        after = outcome("run", id, row[0], raw)
        assert isinstance(before, RunResult)
        if isinstance(after, RunResult) and after.status in (Status.FAILED, Status.ROLLED_BACK):
            assert after.status is before.status
            assert after.error == before.error

    check()


def has_failure(key: bytes, raw: bytes) -> bool:
    """Whether the row is an entry with a recorded failure."""
    return key.startswith(HISTORY) and unpack_record(raw)[7] is not None


def test_there_are_messages_of_every_kind() -> None:
    start = len(InstanceKeys("parks").space)
    found = {key[start : start + 2] for key, _ in rows_of("parks")}
    assert found >= {INBOX, ASIDE, TAKINGS}


def field(field: Field, *fields: Any) -> tuple[bytes, bytes]:
    """A row of an instance that is another."""
    return field_key(field), pack_record(fields)


def head(**wrong: object) -> tuple[bytes, bytes]:
    """The head of an instance with fields that are none."""
    right = structs.asdict(Head("mistakes", 1, "x", 1.5, Status.RUNNING, 1, 1.5))
    return field(Field.HEAD, *{**right, **wrong}.values())


texts = st.text() | st.sampled_from(
    ["", "/", "~", "turns/~", "turns/~x", "turns/~-1", "turns/~٣", "a/%", "\0", SURROGATE]
)
cursors = texts | st.binary().map(bytes.hex) | st.binary().map(lambda raw: (pack((1,)) + raw).hex())


@given(texts | st.integers(0, 10**30).map("turns/~{}".format) | st.text().map("turns/~3/{}".format))
@examples(60)
def test_a_path_that_is_none_is_a_clear_error(path: str) -> None:
    with suppress(WorkflowSDKError):
        do(lambda driver, client: client.handle("", "parks").restart_from(path))


@given(cursors, texts | st.none())
@examples(60)
def test_a_cursor_that_is_none_is_a_clear_error(cursor: str, name: str | None) -> None:
    with suppress(WorkflowSDKError):
        do(lambda driver, client: client.list(cursor=cursor, workflow=name))


@given(texts, st.sampled_from(["info", "history", "list", "send", "restart", "recover", "cancel", "delete"]))
@examples(60)
def test_an_id_that_is_none_is_a_clear_error(id: str, action: str) -> None:
    with suppress(WorkflowSDKError):
        do(lambda driver, client: ACTIONS[action](driver, client, id))


@given(texts, texts, texts | st.binary().map(bytes.hex))
@examples(60)
def test_a_message_to_nobody_is_a_clear_error(message: str, key: str, token: str) -> None:
    with suppress(WorkflowSDKError):
        do(lambda driver, client: client.handle("", "parks").send(message, 1, key=key, token=token))


SLEEPING = waits_of("") + pack_segment(1)
DAMAGED: dict[str, tuple[str, str, tuple[bytes, bytes]]] = {
    "a head that is empty, run": ("run", "mistakes", field(Field.HEAD)),
    "a head with fields less, run": ("run", "mistakes", field(Field.HEAD, "mistakes", 1, "x", 1.5, "running", 1)),
    "a head with fields more, info": ("info", "mistakes", head(more=1)),
    "a head with fields more, cancel": ("cancel", "unwinds", head(workflow="unwinds", more=1)),
    "a status that is none, run": ("run", "mistakes", head(status="x")),
    "a status that is none, info": ("info", "mistakes", head(status=11)),
    "a status that is none, list": ("list", "mistakes", head(status=None)),
    "a status that is none, history": ("history", "mistakes", head(status=7)),
    "a status that is none, send": ("send", "mistakes", head(status=[])),
    "a status that is none, result": ("result", "mistakes", head(status=None)),
    "a status that is none, recover": ("recover", "mistakes", head(status=1)),
    "a head of another time, info": ("info", "mistakes", head(changed_at=1e300)),
    "a head of no time, list": ("list", "mistakes", head(created_at=b"x")),
    "a head whose time is not a number, info": ("info", "mistakes", head(created_at=float("nan"))),
    "a head whose count is none, send": ("send", "mistakes", head(changes=b"\x01")),
    "a birth of no time, recover": ("recover", "dies", field(Field.BIRTH, b"\xf6", b"y", None, 1, [])),
    "a birth with fields more, run": ("run", "parks", field(Field.BIRTH, *range(20))),
    "a birth that is empty, delete": ("delete", "completes", field(Field.BIRTH)),
    "an alarm of no time, run": ("run", "parks", head(workflow="parks", alarm="x")),
    "an alarm of no time, send": ("send", "parks", head(workflow="parks", alarm=[])),
    "an alarm of no time, cancel": ("cancel", "unwinds", head(workflow="unwinds", alarm=1e300)),
    "a result of nothing, recover": ("recover", "mistakes", field(Field.RESULT)),
    "a result with fields more, run": ("run", "mistakes", field(Field.RESULT, None, None, None, [], 1)),
    "a result of operations that are none, recover": (
        "recover",
        "dies",
        field(Field.RESULT, None, None, None, 1.5),
    ),
    "an input that is none, info": ("info", "mistakes", field(Field.BIRTH, None, b"y")),
    "an input that is none, start": ("start", "completes", field(Field.BIRTH, "x", b"y")),
    "an output that is none, run": ("run", "completes", field(Field.RESULT, 7)),
    "a name that is empty, history": ("history", "mistakes", (NAMES + pack_segment(0), pack_record([]))),
    "a name that is none, restart from": ("restart from", "mistakes", (NAMES + pack_segment(0), pack_record([[1]]))),
    "a wait with fields less, info": ("info", "parks", (SLEEPING, pack_record(["sleep"]))),
    "a wait until no time, info": ("info", "parks", (SLEEPING, pack_record(["sleep", "n", "n", "x", 1, 0]))),
}
"""Fields, waits and names that are not what they should be, and who reads them."""


@pytest.mark.parametrize("what", DAMAGED)
def test_a_field_that_was_damaged_is_a_clear_error(what: str) -> None:
    action, id, (key, raw) = DAMAGED[what]
    outcome(action, id, InstanceKeys(id).space + key, raw)


def test_a_failure_that_was_damaged_does_not_fail_the_instance() -> None:
    keys = InstanceKeys("mistakes")
    key = keys.space + HISTORY + pack_segment(0)
    fields = unpack_record(dict(rows_of("mistakes"))[key])
    fields[3], fields[7] = "failed", b"\x80"
    result = outcome("run", "mistakes", key, pack_record(fields))
    assert not (isinstance(result, RunResult) and result.status in (Status.FAILED, Status.ROLLED_BACK))


def test_the_place_of_a_compensation_that_is_none_is_a_clear_error() -> None:
    key, raw = next(
        (key, raw) for key, raw in rows_of("unwinds") if key.startswith(InstanceKeys("unwinds").space + COMPENSATIONS)
    )
    fields = unpack_record(raw)
    fields[0] = b"\x14\x01"
    outcome("restart from", "unwinds", key, pack_record(fields))
