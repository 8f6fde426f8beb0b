"""Having an instance run again: `recover`, and `restart_from`."""

from __future__ import annotations

from workflow_sdk.changes.change import Steps, change
from workflow_sdk.changes.decide import errand_key, go_on, refuse, set_status, take_away
from workflow_sdk.changes.instances import find_to_decide, make_due
from workflow_sdk.changes.rewinding.tape import Tape
from workflow_sdk.core.status import Status
from workflow_sdk.driver import Batch, Set

__all__ = ["recover", "restart_from"]


@change
def recover(instance_id: str, now: float) -> Steps[None]:
    """Have a failed or stuck instance run again, with fresh attempts for what made it fail."""
    found = yield from find_to_decide(instance_id)
    if found.status not in (Status.STUCK, Status.FAILED):
        raise refuse(found, "only a failed or stuck one can be recovered")
    if found.status is Status.FAILED:
        batch, tape = Batch(), (yield from Tape.read(found.keys))
        tape.retry(batch, found.about.result.culprits)
        yield [*batch.writes]
    yield from go_on(found, now)


@change
def restart_from(instance_id: str, path: str | None, now: float) -> Steps[list[bytes] | None]:
    """Forget the entry at `path` (all, if none) and what finished after it, and have the instance run again.

    The keys of the errands that come of it; None, if it was only taken away, to be rewound next.
    """
    found = yield from find_to_decide(instance_id)
    batch, tape = Batch(), (yield from Tape.read(found.keys))
    if path is None:
        tape.restart(batch)
    else:
        tape.restart_from(batch, path)
    if found.lease is not None:
        # Whoever has it may have written since the history was read. Taken away first, it is read again; should we not
        # come to that, it goes on by itself.
        yield from take_away(found, now)
        return None
    yield [*batch.writes]
    errands: list[bytes] = []
    for errand in tape.errands:
        errands.append((yield from errand_key()))
        yield Set(errands[-1], errand.pack())
    rows = yield from set_status(
        found,
        Status.RUNNING,
        now,
        result=None,
        cancelled=False,
        deaths=None,
        again=tape.undoes_again,
        untaken=tape.given_back,
    )
    yield make_due(found.keys, rows.head, now)
    return errands
