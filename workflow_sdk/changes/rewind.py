"""The changes behind `Handle.recover` and `Handle.restart_from`, which have an instance run again."""

from __future__ import annotations

from msgspec.structs import replace

from workflow_sdk.changes.change import Steps, change
from workflow_sdk.changes.decide import add_cleanups, changing, go_on, refuse, set_deaths, set_status, take_away
from workflow_sdk.changes.instances import find_to_decide, make_due
from workflow_sdk.changes.rewinding.cut import cut_failures, cut_from
from workflow_sdk.changes.rewinding.record import read_record
from workflow_sdk.changes.rewinding.rewriting import forget_history, rewrite
from workflow_sdk.rows.keys import Field
from workflow_sdk.rows.status import Status


@change
def recover(instance_id: str, now: float) -> Steps[None]:
    """Have a failed or stuck instance run again, with fresh attempts for what made it fail."""
    found = yield from find_to_decide(instance_id)
    if found.status not in (Status.STUCK, Status.FAILED):
        raise refuse(found, "only a failed or stuck one can be recovered")
    if found.status is Status.FAILED:
        record = yield from read_record(found.keys)
        yield rewrite(record, cut_failures(record, found.about.result.failed_operations), gives_back=False).writes
    yield from go_on(found, now)


@change
def restart_from(instance_id: str, path: str | None, now: float) -> Steps[list[bytes] | None]:
    """Forget the entry at `path` (all, if none) and what finished after it, and have the instance run again.

    Returns the keys of the cleanups that come of it. None means that the instance was only taken away from whoever ran
    it, and that the change is to be made again.
    """
    found = yield from find_to_decide(instance_id)
    record = yield from read_record(found.keys)
    # Found out before anything is taken away: whether there is such a path.
    done = forget_history(record) if path is None else rewrite(record, cut_from(record, path))
    if found.lease is not None:
        # Whoever has it may have written since the history was read. Taken away first, it is read again; should we not
        # come to that, it goes on by itself.
        yield from take_away(found, now)
        return None
    yield done.writes
    cleanups = yield from add_cleanups(done.cleanups)
    after = yield from changing(found)
    after.set(Field.RESULT, None)
    after.set(Field.HEAD, replace(after.head, cancelled=False))
    yield from set_deaths(found, after, None)
    if record.undoes_again:
        # What happens again is not what happened before: it has other idempotency keys.
        after.set(Field.BIRTH, replace(after.birth, restarts=after.birth.restarts + 1))
    if done.given_back and after.tally.taken:
        after.set(Field.TALLY, replace(after.tally, taken=max(0, after.tally.taken - done.given_back)))
    rows = yield from set_status(found, after, Status.RUNNING, now)
    yield make_due(found.keys, rows.head, now)
    return cleanups
