"""Writing down what happens in a run: the rows of its marking, and an entry for each firing that has ended."""

from __future__ import annotations

from msgspec.structs import replace

from workflow_sdk.graphs.expressions import ExpressionError
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.moves import Effects, Ended
from workflow_sdk.graphs.rows import Firing, RowKey, packed
from workflow_sdk.operations.engine import Engine
from workflow_sdk.operations.place import COMMIT_BYTES_SOFT_MAX, Place, make_room, pack_error
from workflow_sdk.rows.entries import Entry, FiringData
from workflow_sdk.rows.instance import WaitRow
from workflow_sdk.rows.keys import marking_of
from workflow_sdk.rows.location import escape, join_path, pack_pair, pack_segment
from workflow_sdk.rows.status import Kind

ROW_BYTES = 100
"""What a store may count for each row beside its key, of which it keeps several copies, and its value."""


class Recording:
    """Writes down what happens in one run. The next flush stores it."""

    def __init__(self, place: Place, engine: Engine, marking: Marking) -> None:
        self._place = place
        self._engine = engine
        self._marking = marking
        self._denied = DeniedTokens(place, engine, marking)
        self.is_deciding = False
        """What an event has changed is not all recorded yet."""

    def location_of(self, firing: Firing) -> bytes:
        """Where a firing is recorded."""
        index = self._place.scope.names.intern(firing.step)
        return self._place.location + pack_pair(index, firing.count)

    def write(self, own: RowKey | None = None) -> None:
        """Have the rows written that have changed; those of an event go with the record of it.

        `own`: a row that is no part of an event, since it goes with something else.
        """
        changed = self._marking.changed
        if not self.is_deciding:
            self._denied.show()
            changed = self._marking.take_changes()
        elif own is None or own not in changed:
            return
        else:
            changed = {own: changed.pop(own)}
        write, prefix = self._engine.journal.unwritten.write, marking_of(self._place.location)
        for key, raw in packed(changed):
            write(prefix + key, raw)

    async def write_first(self) -> None:
        """Have the first rows written. Those of a large graph are stored before it has begun: commits are limited."""
        journal, prefix = self._engine.journal, marking_of(self._place.location)
        rows = packed(self._marking.take_changes())
        weights = [ROW_BYTES + 3 * len(key) + len(raw or b"") for key, raw in rows]
        is_large = sum(weights) > COMMIT_BYTES_SOFT_MAX
        # Those of an attempt that was killed before it was through, perhaps by code with more steps.
        journal.history.clear_marking(self._place.location)
        for (key, raw), weight in zip(rows, weights, strict=True):
            if is_large:
                await make_room(self._engine)
                journal.unwritten.weight += weight
            journal.unwritten.write(prefix + key, raw)

    def record(self, effects: Effects) -> None:
        """Put what an event has come to beside what has caused it."""
        event = self._marking.head.events
        for firing, ended in effects.passed:
            if ended.number >= 0:
                self.put_firing(firing, ended, event, self.location_of(firing))
        self.write()

    def put_firing(
        self, firing: Firing, ended: Ended, event: int, location: bytes, given: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        """Record a firing that has ended. `given`: digests of arguments that are not stored."""
        engine = self._engine
        entry = Entry(Kind.FIRING, max(ended.number, 0), firing.at)
        patches = None if ended.patches is None else engine.codec.encode(dict(ended.patches))
        made = engine.codec.encode(ended.made) if ended.made else b""
        entry.data = FiringData(firing.args, firing.began, event, firing.depth, patches, made, given)
        entry.attempts = firing.attempts
        if ended.is_done and ended.raw_error is None:
            entry.complete(ended.output, engine.clock.time())
        else:
            raw = ended.raw_error or pack_error(_told(ended), engine.codec)
            entry.fail(raw, engine.clock.time())
        engine.journal.history.put(location, entry)


class DeniedTokens:
    """Tokens whose admission was denied, as everybody can see them: as waits of the instance."""

    def __init__(self, place: Place, engine: Engine, marking: Marking) -> None:
        self._place = place
        self._engine = engine
        self._marking = marking
        self._shown: dict[int, bytes] = {}
        """Those that are shown, with the place of the wait."""

    def show(self) -> None:
        """Show those that there are now, with the next commit."""
        journal, marking, blocked = self._engine.journal, self._marking, self._marking.blocked
        if blocked.keys() == self._shown.keys():
            return
        self._engine.parking.waits.denied += len(blocked) - len(self._shown)
        for number in [number for number in self._shown if number not in blocked]:
            journal.end_wait(self._shown.pop(number), ())
            if number in marking.tokens:
                # It waits for something else now, such as for room.
                marking.put_token(number, replace(marking.tokens[number], since=0))
        for number in blocked:
            if number not in self._shown:
                self._shown[number] = self._show(number)

    def _show(self, number: int) -> bytes:
        """Begin a wait, or go on with the one that an earlier run has begun. Returns its place."""
        journal, marking, place = self._engine.journal, self._marking, self._place
        token = marking.tokens[number]
        if not token.since:
            token = replace(token, since=journal.unwritten.version + 1)
            marking.put_token(number, token)
        index = place.scope.names.intern(token.step)
        location = place.location + pack_pair(index, number) + pack_segment(index)
        path = join_path(place.path, escape(token.step))
        journal.begin_wait(location, (), WaitRow("admission", token.step, path, None, 1, 0, token.since), None)
        return location


def _told(ended: Ended) -> Exception:
    return ExpressionError("" if ended.error is None else str(ended.error["message"]))
