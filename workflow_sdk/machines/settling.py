"""Effects on their way from being asked for to being settled: taken by workers, given back, answered."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from workflow_sdk.changes.change import Get, Signal, Steps, Writing, change, read
from workflow_sdk.changes.decide import DEATHS_MAX
from workflow_sdk.changes.deliver import Delivery, NewMessage, Posted
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.machines.cell import Answer, CellMessage, Pending, receipt_message
from workflow_sdk.machines.emitting import Told, answer_to, answer_to_wait, under
from workflow_sdk.machines.rows import (
    FrameRow,
    IntentRow,
    executed_key,
    intent_key,
    queued_key,
    queued_row,
    signal_key,
)
from workflow_sdk.rows.cells import frames_of
from workflow_sdk.rows.keys import InstanceKeys
from workflow_sdk.rows.location import subtree
from workflow_sdk.values import Codec


@change
def take_intent(id: str, worker: str, active: bytes) -> Steps[IntentRow | None]:
    """Have a worker run a queued effect; None if it is settled, or somebody runs it."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None or row.worker is not None:
        return None
    yield from under(active)
    yield Clear(queued_key(id, row))
    # What somebody has done who had it before was an attempt, too.
    taken = replace(row, worker=worker, claim=row.claim + 1, attempt=row.attempt + (row.claim > 0))
    yield [Set(intent_key(id), taken.pack()), Set(executed_key(worker, id), b"")]
    return taken


@change
def drop_queued(id: str, place: bytes) -> Steps[None]:
    """Clear a row of a queue, unless the effect waits there: else it would be read again and again."""
    if (yield Get(place)) is None:
        return
    row = yield from read(IntentRow, intent_key(id))
    if row is None or row.worker is not None or queued_key(id, row) != place:
        yield Clear(place)


@change
def queue_again(id: str, worker: str, claim: int | None = None) -> Steps[None]:
    """Give an effect back that a worker had, so that any worker takes it. `claim`: only if it is still this one."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None:
        # It was settled from outside meanwhile.
        yield Clear(executed_key(worker, id))
        return
    if row.worker == worker and claim in (None, row.claim):
        yield _queued(id, worker, row)


def _queued(id: str, worker: str, row: IntentRow) -> list[Writing]:
    free = replace(row, worker=None)
    writes: list[Writing] = [Clear(executed_key(worker, id)), Set(intent_key(id), free.pack())]
    return [*writes, queued_row(id, free), Signal(signal_key(row.effect))]


@change
def outlive(id: str, worker: str, codec: Codec, now: float, is_here: Callable[[str], bool]) -> Steps[Told | None]:
    """Queue an effect again whose worker has died; settle it, if that has happened too often."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None or row.worker != worker:
        # It was settled from outside meanwhile, or somebody else has seen that the worker is dead.
        yield Clear(executed_key(worker, id))
        return None
    row = replace(row, deaths=row.deaths + 1)
    if row.deaths < DEATHS_MAX:
        yield _queued(id, worker, row)
        return None
    fault = f"{row.deaths} workers in a row have died while it ran, so it is not run again"
    return (yield from _settle(id, row, Answer("fault", fault), codec, now, is_here))


@change
def next_attempt(id: str, mine: IntentRow) -> Steps[bool]:
    """Count a failed attempt; False if it is not ours any more. What that attempt sends from now on is refused."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None or (row.worker, row.claim) != (mine.worker, mine.claim):
        return False
    yield Set(intent_key(id), replace(row, attempt=mine.attempt, failed=mine.failed, deaths=mine.deaths).pack())
    return True


@change
def send_frame(id: str, mine: IntentRow, value: bytes, now: float) -> Steps[bool]:
    """Store what an executor has sent; False if its attempt is over."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None or (row.worker, row.claim, row.attempt) != (mine.worker, mine.claim, mine.attempt):
        return False
    yield Append(frames_of(id), FrameRow(row.attempt, value, float(now)).pack())
    return True


@change
def settle(
    id: str,
    answer: Answer,
    codec: Codec,
    now: float,
    is_here: Callable[[str], bool],
    mine: IntentRow | None = None,
) -> Steps[Told]:
    """Settle an effect, and tell the instance that asked for it; `STALE`, if it is settled or `mine` is out of date.

    `mine`: the effect as the worker that ran it has it; None, if it is settled from outside.
    """
    row = yield from read(IntentRow, intent_key(id))
    if row is None or (mine is not None and (row.worker, row.claim) != (mine.worker, mine.claim)):
        return Told("", Posted(Delivery.STALE))
    return (yield from _settle(id, row, answer, codec, now, is_here))


def _settle(
    id: str, row: IntentRow, answer: Answer, codec: Codec, now: float, is_here: Callable[[str], bool]
) -> Steps[Told]:
    message, keys = message_of(id, row, answer, codec, now), InstanceKeys(row.instance)
    payload = codec.seal(message.event.value)
    if row.token is not None:
        told = yield from answer_to_wait(keys, id, row.token, payload, now, is_here)
    else:
        # It finds room in any inbox: an effect that was done can't wait for others.
        new = NewMessage(message.event.schema, payload, needs_room=False, is_event=True)
        told = yield from answer_to(keys, new, now, is_here)
    yield Clear(intent_key(id))
    yield Clear(queued_key(id, row) if row.worker is None else executed_key(row.worker, id))
    if row.token is not None or not told.posted.is_stored:
        yield ClearRange(*subtree(frames_of(id)))
    return told


def message_of(id: str, row: IntentRow, answer: Answer, codec: Codec, now: float) -> CellMessage:
    """The receipt of an effect, as it is delivered."""
    key = None if row.key is None else codec.unseal(row.key)
    return receipt_message(
        row.machine, key, Pending(id, row.effect, b"", row.issuer, row.sequence, row.at), answer, now
    )
