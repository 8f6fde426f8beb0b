"""The place of one operation in its scope: what was recorded there, and how its outcome gets there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import anyio
import cbor2

from workflow_sdk.definitions import is_function
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.journal.names import name_problem
from workflow_sdk.operations.engine import Engine, Reader
from workflow_sdk.operations.scope import Scope
from workflow_sdk.rows.entries import BranchesData, Entry
from workflow_sdk.rows.keys import OUTSIDE
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.outside import Hanging
from workflow_sdk.rows.status import Kind
from workflow_sdk.values import Codec, digest
from workflow_sdk.values.basics import unpack_cbor
from workflow_sdk.values.failures import pack_failure, unpack_failure


def pack_error(error: Exception, codec: Codec) -> bytes:
    """Pack an exception, as it is recorded."""
    return cbor2.dumps(pack_failure(error, codec), canonical=True)


def unpack_error(raw: bytes, codec: Codec) -> Exception:
    """Unpack a recorded failure: an exception of the same class, with the same attributes."""
    return unpack_failure(unpack_cbor(raw), codec)


def about(what: str, error: CodecError) -> CodecError:
    """The same error, saying which value it is about."""
    return type(error)(f"{what}: {error}")


BREATH = 64
"""After how many operations of a scope, none of which had to wait, other tasks get a turn."""

COMMIT_BYTES_SOFT_MAX = 1_000_000
"""With more bytes of values than this, they do not wait for a later commit: stores limit the size of a commit."""


def register(scope: Scope, kind: Kind, name: str, *, derived: bool = False) -> Place:
    """Give an operation its place, when it is called. Mistakes of the author are raised here."""
    place = Place(scope, kind, scope.admit(kind, name, derived=derived))
    if derived and place.name != name:
        place.repeats = name
    scope.busy = place
    return place


class Place:
    """One operation of a scope: its name, its location, and what was recorded there."""

    __slots__ = ("arguments", "branches", "entry", "kind", "location", "name", "ordinal", "repeats", "scope")

    def __init__(self, scope: Scope, kind: Kind, name: str) -> None:
        self.scope: Scope = scope
        self.kind: Kind = kind
        self.name: str = name
        self.ordinal: int = scope.count
        scope.count += 1
        self.entry: Entry | None = None
        self.arguments: Sequence[object] = ()
        """The arguments to compare if the derived name stands for several calls: a replay has to give the same."""
        self.branches: BranchesData | None = None
        """The branches that the code asks for: they have to be the same in a replay."""
        self.repeats: str | None = None
        """The derived name, if it was taken already and this operation got a numbered one instead."""
        self.location: bytes = b""
        index = scope.names.find(name)
        if index is not None:
            segment = pack_segment(index)
            self.location = scope.prefix + segment
            if scope.unvisited:
                self.entry = scope.recorded.get(segment)

    @property
    def path(self) -> str:
        """The path of the operation."""
        return self.scope.path_of(self.name)

    @property
    def engine(self) -> Reader:
        """The engine that runs the operation."""
        return self.scope.engine

    @property
    def what(self) -> str:
        """The operation, as errors name it."""
        return f"{self.kind.value} {self.path!r}"

    @property
    def acts(self) -> bool:
        """Whether the operation may do something: the run goes on, and its branch has not lost a race."""
        return not self.scope.engine.life.halted and not self.scope.race.lost

    # Giving the place back.

    def close(self, entry: Entry) -> None:
        """Free the scope for the next operation: this one has its outcome."""
        scope = self.scope
        scope.busy = scope.pending = None
        if entry.finished_at is not None and entry.finished_at > scope.now:
            scope.now = entry.finished_at

    def release(self) -> None:
        """Free the scope although this operation has no outcome: it was cancelled, or called by mistake."""
        scope = self.scope
        if scope.busy is self:
            scope.busy = scope.pending = None
            if isinstance(sys.exc_info()[1], anyio.get_cancelled_exc_class()):
                scope.interrupted = self.what

    def mistake(self, message: str) -> BaseException:
        """Free the scope, and return the error to raise, since the author made a mistake in calling the operation."""
        self.release()
        return self.scope.engine.life.mistake(DefinitionError(message))

    def check_function(self, fn: object) -> None:
        """Check that an operation was given a function to call."""
        if not is_function(fn):
            raise self.mistake(f"{self.what} is given a function to call, not {type(fn).__name__}")

    # The record.

    def new_entry(self) -> Entry:
        """Make the entry of an operation that begins now, and give its name an index."""
        scope = self.scope
        engine = scope.engine
        if not self.location:
            problem = name_problem(self.name)
            if problem is not None:
                raise engine.life.mistake(DefinitionError(f"{self.kind.value} {self.name!r}: {problem}"))
            self.location = scope.prefix + pack_segment(scope.names.intern(self.name))
        entry = Entry(self.kind, self.ordinal, engine.clock.time())
        if self.arguments:
            entry.digest = engine.codec.encode(digest(self.arguments))
        return entry

    def put(self, entry: Entry) -> None:
        """Have the entry written by the next flush."""
        self.scope.engine.journal.history.put(self.location, entry)

    def encode(self, value: object, hint: object = None) -> bytes:
        """Encode the value of the operation. A value that can't be stored is a mistake of the author."""
        engine = self.scope.engine
        try:
            return engine.codec.encode(value, hint)
        except CodecError as error:
            raise engine.life.mistake(type(error)(f"the value of {self.what}: {error}")) from None

    async def fail(self, engine: Engine, entry: Entry, error: Exception) -> Entry:
        """Record that the operation has failed."""
        entry.fail(pack_error(error, engine.codec), engine.clock.time())
        return await self.store(engine, entry)

    async def store(self, engine: Engine, entry: Entry) -> Entry:
        """Return the entry once it is stored."""
        self.put(entry)
        await engine.parking.flush()
        return entry

    def decode(self, raw: bytes, hint: object, *, checked: bool = False, plain: bool = False) -> Any:
        """A recorded value. One that the code's types can't read any more is divergence, not a failure to be caught."""
        engine = self.scope.engine
        try:
            return engine.codec.decode_checked(raw, hint) if checked else engine.codec.decode(raw, hint, plain=plain)
        except CodecError as error:
            what = f"what {self.what} has recorded can't be read as the type that the code gives it now"
            raise engine.life.misread(error, what) from None

    def failure(self, raw: bytes) -> Exception:
        """A recorded failure, to be raised again. One that can't be read is none of the author's, either."""
        engine = self.scope.engine
        try:
            return unpack_error(raw, engine.codec)
        except CodecError as error:
            what = f"the failure that {self.what} has recorded can't be read"
            raise engine.life.misread(error, what) from None


async def make_room(engine: Engine) -> None:
    """Flush before one more value is put, if the next commit would become too large with it."""
    while engine.journal.unwritten.weight > COMMIT_BYTES_SOFT_MAX:
        await engine.parking.flush()


class Recorded:
    """The record of an effect. Each try of the commit makes it anew, and that of the last try counts."""

    __slots__ = ("_begun", "_engine", "_hanging", "_place", "_record", "entry", "is_done", "location", "outcome")

    def __init__(
        self,
        place: Place,
        engine: Engine,
        entry: Entry,
        record: Callable[[Entry, str], None],
        hanging: Hanging | None = None,
    ) -> None:
        self._place = place
        self._engine = engine
        self._begun = entry
        self._record = record
        self._hanging = hanging
        """The child or task that the operation waits for. Its id is the outcome of the effect."""
        self.entry: Entry = entry
        self.location: bytes = place.location
        self.is_done: bool = False
        self.outcome: str = ""

    def rows(self, version: int, outcome: str) -> list[tuple[bytes, bytes]]:
        """The rows that record an outcome of the effect, in a commit that gives the instance this version."""
        journal = self._engine.journal
        self.outcome = outcome
        self.entry = copy(self._begun)
        self._record(self.entry, outcome)
        if self._hanging is None:
            return [journal.history.row_of(self.location, self.entry)]
        self.entry.since = version
        self._hanging = Hanging(self._hanging.kind, outcome, self._hanging.ends, version)
        record = journal.history.row_of(self.location, self.entry)
        return [record, (journal.keys.space + OUTSIDE + self.location, self._hanging.pack())]

    def stored(self) -> None:
        """Note that the effect and its record are stored."""
        self.is_done = True
        if self._hanging is not None:
            self._engine.journal.hang(self.location, self._hanging, is_stored=True)

    def is_wanted(self) -> bool:
        """Whether the branch that asked for it goes on."""
        return self._place.acts
