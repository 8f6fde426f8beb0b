"""The changes behind `Handle.recover` and `Handle.restart_from`, which have an instance run again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from workflow_sdk.changes.change import Steps, Writing, change
from workflow_sdk.changes.decide import add_cleanups, changing, go_on, refuse, set_deaths, set_status, take_away
from workflow_sdk.changes.instances import find_to_decide, make_due
from workflow_sdk.changes.rewinding.cut import Cut, Remainder, cut_failures, cut_from
from workflow_sdk.changes.rewinding.loop_tape import turn_of
from workflow_sdk.changes.rewinding.record import Record, read_record, scopes_around
from workflow_sdk.driver import Clear, ClearRange, Set, Write
from workflow_sdk.journal.compensation import Progress
from workflow_sdk.journal.inbox import InboxMessage, TakingRow
from workflow_sdk.journal.names import NameRow
from workflow_sdk.rows.entries import Entry, ListenData, LoopData
from workflow_sdk.rows.keys import (
    ARCHIVE,
    BASES,
    CHANGES,
    COMPENSATIONS,
    FOLDED,
    HISTORY,
    INBOX,
    MARKINGS,
    METADATA,
    NAMES,
    OUTSIDE,
    PATCHED,
    TAKINGS,
    Field,
    marking_of,
    sequence_key,
)
from workflow_sdk.rows.location import Segment, pack_pair, pack_segment, segments, split_last, subtree
from workflow_sdk.rows.outside import Cleanup
from workflow_sdk.rows.status import Kind, Status

# The writes that cut a history: entries, names, and assignments to the public state.


def rewind_assigned(record: Record, kept: Remainder) -> list[Write]:
    """The writes after which assignments to the public state count only where the code is not run again."""
    space = record.keys.space
    writes: list[Write] = [Clear(space + CHANGES + at) for at in record.changed if _happens_again(at, kept)]
    for at, raw in record.folded.items():
        if _is_turn(at, kept):
            writes += _fold_turn(space, at, raw, kept)
        else:
            writes += _fold_scope(space, at, raw, kept)
    return writes


def _rewind_patched(record: Record, kept: Remainder) -> Iterator[Write]:
    """The writes after which changes of the contexts of graphs count only where the code is not run again."""
    space = record.keys.space + PATCHED
    again: dict[bytes, bytes] = {}
    for at, raw in record.patched.items():
        loop, _ = split_last(at)
        if not _is_turn(at, kept):
            if _happens_again(at, kept):
                yield Clear(space + at)
        elif loop not in kept.entries:
            yield Clear(space + at)
        elif loop in kept.loops and turn_of(loop, at) == kept.loops[loop].turn:
            again[loop] = raw
    for loop, raw in again.items():
        yield Set(space + loop, raw)


def _is_turn(at: bytes, kept: Remainder) -> bool:
    """Whether a location is that of a turn of a loop, even if the loop was deleted. Branches of a map look alike."""
    around, own = split_last(at)
    loop = kept.entries.get(around)
    return isinstance(next(segments(own)), tuple) and (loop is None or loop.kind is Kind.LOOP)


def _fold_turn(space: bytes, at: bytes, raw: bytes, kept: Remainder) -> list[Write]:
    """The writes for the row of a turn. It has what the loop had assigned before that turn, and counts if the loop
    begins again with it."""
    loop, _ = split_last(at)
    if loop not in kept.entries:
        return [Clear(space + FOLDED + at)]
    if loop in kept.loops and turn_of(loop, at) == kept.loops[loop].turn:
        return [Set(space + CHANGES + loop, raw)]
    return []


def _fold_scope(space: bytes, at: bytes, raw: bytes, kept: Remainder) -> list[Write]:
    """The writes for the row of a scope inside a finished one: it counts by itself if the code comes to the scope."""
    if _happens_again(at, kept):
        return [Clear(space + FOLDED + at)]
    if _is_passed_over(at, kept):
        return []
    return [Clear(space + FOLDED + at), Set(space + CHANGES + at, raw)]


def _happens_again(at: bytes, kept: Remainder) -> bool:
    return at not in kept.entries or kept.is_open(at)


def _is_passed_over(at: bytes, kept: Remainder) -> bool:
    """Whether the code does not come to a location, since a finished scope or an earlier turn around it is recorded."""
    around = at
    while around:
        around, _ = split_last(around)
        entry = kept.entries.get(around)
        if entry is None:
            continue
        data = kept.loops.get(around, entry.data)
        if entry.is_final or (isinstance(data, LoopData) and turn_of(around, at) < data.turn):
            return True
    return False


class _Use(Struct):
    """The locations in which a name occurs."""

    loops: dict[bytes, int]
    """The loops that go on again and have all of these locations in their turns, each with the last of those turns."""
    wanted: bool = False
    """Whether the code asks for the name again at one of these locations: then it is not in a loop that has ended."""


def rewrite_names(record: Record, kept: Remainder, locations: Iterable[bytes]) -> list[Write]:
    """The writes that give loops that go on again their names back, and delete names that do not occur any more.

    `locations`: all locations in which names occur.
    """
    writes: list[Write] = []
    uses: dict[int, _Use] = {}
    for location in locations:
        _note(uses, location, kept)
    texts = record.tree.texts
    taken: set[tuple[bytes, str]] = set()
    # A loop may have several indexes for one text, of which the code finds only the first. So the names that the code
    # asks for come first.
    for index in sorted(texts, key=lambda index: (index not in uses or not uses[index].wanted, index)):
        key, text, use = record.keys.space + NAMES + pack_segment(index), texts[index], uses.get(index)
        if use is None:
            writes.append(Clear(key))
        elif use.loops:
            owner = max(use.loops, key=len)
            # True if the loop has the text already: loops inside it may have had indexes of their own for the same
            # text.
            writes.append(Set(key, NameRow(text, owner, (owner, text) in taken, use.loops[owner]).pack()))
            taken.add((owner, text))
    return writes


def _note(uses: dict[int, _Use], location: bytes, kept: Remainder) -> None:
    """Note for each name in one location where it occurs."""
    loops: dict[bytes, int] = {}
    wanted, at = False, b""
    for segment in segments(location):
        index = segment[0] if isinstance(segment, tuple) else segment
        use = uses.get(index)
        if use is None:
            use = uses[index] = _Use(dict(loops))
        else:
            use.loops = {loop: max(turn, loops[loop]) for loop, turn in use.loops.items() if loop in loops}
        use.wanted |= wanted
        around = kept.entries.get(at)
        if isinstance(segment, tuple) and around is not None and around.kind is Kind.LOOP:
            wanted = at in kept.reopened
            if wanted:
                loops[at] = segment[1]
        at += _packed(segment)


def _packed(segment: Segment) -> bytes:
    return pack_pair(*segment) if isinstance(segment, tuple) else pack_segment(segment)


class Rewritten(Struct):
    """The writes of a rewind, and what is to be done after them."""

    writes: list[Writing] = field(default_factory=list[Writing])
    cleanups: list[Cleanup] = field(default_factory=list[Cleanup])
    """The children and tasks to be ended after the commit, since nobody waits for them any more."""
    given_back: int = 0
    """How many messages are put back into the inbox."""


def forget_history(record: Record) -> Rewritten:
    """Delete the whole history, and put the messages that were taken back into the inbox."""
    done, keys = Rewritten(), record.keys
    _give_back(done, record, record.tree.entries)
    _abandon(done, record, set(record.outside))
    for part in (NAMES, HISTORY, METADATA, COMPENSATIONS, TAKINGS, ARCHIVE, BASES, CHANGES, FOLDED, MARKINGS, PATCHED):
        done.writes.append(ClearRange(*keys.range(part)))
    return done


def rewrite(record: Record, cut: Cut, *, gives_back: bool = True) -> Rewritten:
    """Store the history that a cut leaves. `gives_back`: put back the messages that the deleted part had taken."""
    done, keys, kept = Rewritten(), record.keys, Remainder.after(cut)
    if gives_back:
        _give_back(done, record, cut.dropped)
    # Writes take effect in this order: loops clear whole ranges, in which rows are set again below.
    for start in cut.loops.values():
        done.writes += start.rewind(keys)
    _clear_entries(done, record, kept)
    _forget_markings(done, record, cut, kept)
    _abandon(done, record, record.outside.keys() - kept.entries.keys())
    for at in record.left.keys() & kept.entries.keys():
        done.writes += record.left[at].wait_again(keys, at)
    done.writes += rewind_assigned(record, kept)
    done.writes += _rewind_patched(record, kept)
    for at in kept.reopened | kept.loops.keys():
        entry = kept.entries[at]
        entry.data = kept.loops.get(at, entry.data)
        done.writes.append(Set(keys.space + HISTORY + at, entry.pack()))
    # A name is kept as long as any row uses it: an entry, or one of the rows that belong to entries.
    stand = [
        *kept.entries,
        *record.addressed,
        *_rewrite_takings(done, record, kept),
        *_rewrite_archive(done, record, cut),
        *_rewrite_compensations(done, record, cut),
    ]
    done.writes += rewrite_names(record, kept, stand)
    return done


def _give_back(done: Rewritten, record: Record, locations: Iterable[bytes]) -> None:
    """Put the messages that were taken at these locations back into the inbox, where they were before."""
    for at in locations:
        for message in _taken(record.tree.entries[at]):
            done.given_back += 1
            done.writes.append(Set(record.keys.space + INBOX + message.id, message.pack()))


def _taken(entry: Entry) -> Iterator[InboxMessage]:
    """The messages that an entry has taken."""
    if isinstance(entry.data, ListenData):
        for taken in entry.data.taken:
            yield InboxMessage(taken.id, taken.name, taken.payload, taken.sent_at, taken.reply_to)


def _abandon(done: Rewritten, record: Record, locations: Iterable[bytes]) -> None:
    """Stop waiting for the children and tasks at these locations."""
    keys = record.keys
    for at in locations:
        what = record.outside[at]
        done.writes.append(Clear(keys.space + OUTSIDE + at))
        if what.ends:
            token = pack_segment(what.since) + at
            done.cleanups.append(Cleanup(what.kind, what.id, keys.instance_id, token, rollback=False))


def _clear_entries(done: Rewritten, record: Record, kept: Remainder) -> None:
    space = record.keys.space
    for at in record.tree.entries.keys() - kept.entries.keys():
        done.writes += Clear(space + HISTORY + at), Clear(space + METADATA + at)
        if record.tree.is_loop(at):
            done.writes.append(ClearRange(*subtree(space + BASES + at)))


def _forget_markings(done: Rewritten, record: Record, cut: Cut, kept: Remainder) -> None:
    """Delete the markings of graphs of which something is deleted: each is made again from the rest of its history."""
    keys = record.keys
    for graph in [at for at, entry in record.tree.entries.items() if entry.kind is Kind.GRAPH]:
        if graph not in kept.entries or any(at.startswith(graph) for at in (*cut.dropped, *cut.unended)):
            begin = keys.space + marking_of(graph)
            done.writes.append(ClearRange(begin, begin + b"\xff"))


def _rewrite_takings(done: Rewritten, record: Record, kept: Remainder) -> list[bytes]:
    """Note the messages that branches of reopened races have taken, so that they can be given back if a branch loses.

    Returns the locations of the listens for which there are such rows.
    """
    space = record.keys.space
    stand = {split_last(key)[0] for key in record.takings} & kept.entries.keys()
    done.writes += [Clear(space + TAKINGS + key) for key in record.takings if split_last(key)[0] not in stand]
    races = {at for at in kept.reopened if kept.entries[at].kind is Kind.RACE}
    for at in kept.entries if races else ():
        if races.isdisjoint(scopes_around(at)):
            continue
        for number, message in enumerate(_taken(kept.entries[at])):
            row = TakingRow(message.id, message.pack())
            done.writes.append(Set(space + TAKINGS + at + pack_segment(number), row.pack()))
    return list(stand)


def _rewrite_archive(done: Rewritten, record: Record, cut: Cut) -> list[bytes]:
    """Delete from the archive what belongs to deleted races; return the locations of what is kept."""
    stand: list[bytes] = []
    for at in record.archive:
        # A loser has no entries any more. Its archive is deleted if the race, or a scope around it, is.
        if cut.is_dropped(at):
            done.writes.append(Clear(record.keys.space + ARCHIVE + at))
        else:
            stand.append(at)
    return stand


def _rewrite_compensations(done: Rewritten, record: Record, cut: Cut) -> list[bytes]:
    """Delete the compensations of deleted entries; give the others fresh attempts, and return their locations."""
    stand: list[bytes] = []
    for compensation in record.compensations:
        key = record.keys.space + sequence_key(compensation.sequence)
        if cut.is_dropped(compensation.location) or compensation.location in cut.unended:
            done.writes.append(Clear(key))
            continue
        stand.append(compensation.location)
        if compensation.progress in (Progress.RETRYING, Progress.EXHAUSTED):
            fresh = replace(compensation, progress=Progress.OPEN, attempts=0, retry_at=None)
            done.writes.append(Set(key, fresh.pack()))
    return stand


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
    """Delete the entry at `path` (without a path, all) and what finished after it, and have the instance run again.

    Returns the keys of the cleanups to run after that. None means that the instance was only taken away from its
    worker, and that the change is to be made again.
    """
    found = yield from find_to_decide(instance_id)
    if found.about.birth.is_cell:
        raise refuse(found, "it is a cell, which has no history to run again")
    record = yield from read_record(found.keys)
    # This raises if there is no such path, so it comes before the instance is taken away.
    done = forget_history(record) if path is None else rewrite(record, cut_from(record, path))
    if found.lease is not None:
        # Its worker may have written since the history was read. So the instance is taken away, and its history is read
        # again. If this process dies before that, the instance goes on by itself.
        yield from take_away(found, now)
        return None
    yield done.writes
    cleanups = yield from add_cleanups(done.cleanups)
    after = yield from changing(found)
    after.set(Field.RESULT, None)
    after.set(Field.HEAD, replace(after.head, cancelled=False))
    yield from set_deaths(found, after, None)
    if record.undoes_again:
        # A step that was undone and happens again is a new one for the outside: it needs another idempotency key.
        after.set(Field.BIRTH, replace(after.birth, restarts=after.birth.restarts + 1))
    if done.given_back and after.tally.taken:
        after.set(Field.TALLY, replace(after.tally, taken=max(0, after.tally.taken - done.given_back)))
    rows = yield from set_status(found, after, Status.RUNNING, now)
    yield make_due(found.keys, rows.head, now)
    return cleanups
