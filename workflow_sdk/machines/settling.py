"""Effects on their way from being asked for to being settled: taken by workers, given back, answered."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from workflow_sdk.changes.change import Get, Signal, Steps, change, read
from workflow_sdk.changes.deliver import Delivery, NewMessage, Posted
from workflow_sdk.driver import Append, Clear, ClearRange, Set
from workflow_sdk.machines.cell import Answer, CellMessage, Pending, receipt_message
from workflow_sdk.machines.emitting import Told, answer_to, answer_to_wait, under
from workflow_sdk.machines.rows import FrameRow, IntentRow, executed_key, intent_key, queued_key, signal_key
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
    taken = replace(row, worker=worker, claim=row.claim + 1)
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
    if row.worker != worker or claim not in (None, row.claim):
        return
    free = replace(row, worker=None)
    yield [Clear(executed_key(worker, id)), Set(intent_key(id), free.pack())]
    yield [Set(queued_key(id, free), b""), Signal(signal_key(row.effect))]


@change
def next_attempt(id: str, mine: IntentRow) -> Steps[bool]:
    """Count one more attempt; False if it is not ours any more. What earlier attempts send from now on is refused."""
    row = yield from read(IntentRow, intent_key(id))
    if row is None or (row.worker, row.claim) != (mine.worker, mine.claim):
        return False
    yield Set(intent_key(id), replace(row, attempt=mine.attempt).pack())
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
