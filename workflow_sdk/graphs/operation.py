"""`ctx.graph`: a graph as one operation of a workflow."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from workflow_sdk.errors import CodecError, DefinitionError, GraphFailedError, RollbackError
from workflow_sdk.graphs.arguments import digest_of
from workflow_sdk.graphs.begun import Begun as BegunFiring
from workflow_sdk.graphs.begun import begun_firings, known_outcomes, remember_parts, submitted_nodes
from workflow_sdk.graphs.controllers import find_added, is_of_failed_controller
from workflow_sdk.graphs.firing import FiringWork
from workflow_sdk.graphs.growing import unpack_batch
from workflow_sdk.graphs.listening import RECEIVED
from workflow_sdk.graphs.model import GraphResult, Node
from workflow_sdk.graphs.moves import Effects
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.outside import Begun
from workflow_sdk.graphs.patches import store_changes
from workflow_sdk.graphs.pinning import Definable, pin, plan_of
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rebuilding import Rebuilding, recorded
from workflow_sdk.graphs.results import summary_of
from workflow_sdk.graphs.rows import Outline
from workflow_sdk.graphs.run import GraphRun
from workflow_sdk.graphs.walking import WalkedContext
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.place import Place, about, pack_error, register, unpack_error
from workflow_sdk.operations.public_state import fold, unfold
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import Entry, FiringData, GraphData
from workflow_sdk.rows.keys import HISTORY, PATCHED, marking_of, parts_of
from workflow_sdk.rows.location import escape, join_path, pack_segment, segments, subtree
from workflow_sdk.rows.status import Kind
from workflow_sdk.values.exceptions import kind_of


class Runnable(Definable, Protocol):
    """A graph, as far as a run of it needs to know it."""

    name: str
    context: dict[str, Any]
    names: Names

    @property
    def input_hint(self) -> object:
        """The type of the workload."""
        ...

    def freeze(self) -> Plan:
        """The plan of a run."""
        ...


PART_BYTES = 500_000
"""How much of a large result goes with one commit: stores want them small."""


class Recorded(NamedTuple):
    """The result of a run as it is stored: its bytes, or what the keys of its parts begin with."""

    raw: bytes | None
    parts: bytes | None


def start_graph(scope: Scope, name: str, graph: Runnable, workload: Any) -> Coroutine[Any, Any, GraphResult]:
    """Register a run of a graph; its coroutine runs it, and gives what it has come to."""
    return _start(scope, name, graph, workload, is_whole=False)


class Whole:
    """A graph whose run is all that its instance does: the output of the instance is what the run has recorded."""

    def __init__(self, graph: Runnable) -> None:
        self._graph = graph

    def start_in(self, scope: Any, name: str, workload: Any) -> Coroutine[Any, Any, Recorded]:
        """Register the run as an operation of a scope."""
        return _start(scope, name, self._graph, workload, is_whole=True)


def _start(scope: Scope, name: str, graph: Runnable, workload: Any, *, is_whole: bool) -> Coroutine[Any, Any, Any]:
    place = register(scope, Kind.GRAPH, name)
    try:
        plan = graph.freeze()
    except DefinitionError as error:
        raise place.mistake(str(error)) from None
    begun = workload if isinstance(workload, Begun) else Begun(workload)
    try:
        raw = scope.engine.codec.encode(begun.workload, graph.input_hint)
    except CodecError as error:
        raise scope.engine.life.mistake(about(f"the workload of {place.what}", error)) from None
    return scope.start(enter(place, _Graph(place, graph, plan, raw, begun, is_whole=is_whole)))


class _Graph:
    """A run of a graph, as an operation."""

    def __init__(
        self, place: Place, graph: Runnable, plan: Plan, workload: bytes, begun: Begun, *, is_whole: bool
    ) -> None:
        self._place = place
        self._graph = graph
        self._plan = plan
        self._workload = workload
        self._begun = begun
        self._is_whole = is_whole
        self._raw: bytes | None = None
        """The result, if it is stored in parts."""

    async def begin(self, engine: Engine) -> Entry:
        place, graph = self._place, self._graph
        entry = place.new_entry()
        digest = await pin(engine, graph)
        run = GraphRun(place, engine, self._plan, self._workload, graph.names)
        effects = self._begin(engine, run, graph.context)
        context = engine.codec.encode(graph.context) if graph.context else b""
        entry.data = GraphData(digest, context)
        await run.recording.write_first()
        place.put(entry)
        run.recording.record(effects)
        return await self._go(engine, entry, run, effects)

    def _begin(self, engine: Engine, run: GraphRun, context: Mapping[str, Any]) -> Effects:
        """Put the first tokens, and take over what another system has done."""
        plan = self._plan
        run.marking.put_outline(Outline(tuple(plan.nodes), plan.limits.nodes, plan.limits.depth, plan.final))
        effects = run.interpreter.begin(run.chooser(), context, self._given(engine))
        for batch in self._begun.submissions:
            more, _ = run.growing.receive(run.chooser(), batch)
            effects.started += more.started
            effects.passed += more.passed
            effects.is_over = more.is_over
        return effects

    async def _know(self, reader: Reader, entry: Entry) -> None:
        """Go on with the definition that the run began with."""
        data = entry.data
        assert isinstance(data, GraphData), "a graph has a definition"
        try:
            self._plan = await plan_of(reader, self._graph, data.definition)
        except DefinitionError as error:
            what = f"{self._place.what} goes on with the definition that it began with"
            raise self._place.mistake(f"{what}, and the code does not have all of it any more: {error}") from None

    async def resume(self, engine: Engine, entry: Entry) -> Entry:
        place = self._place
        await self._know(engine, entry)
        run = GraphRun(place, engine, self._plan, self._workload, self._graph.names)
        rows = await engine.stored.read(marking_of(place.location))
        if rows:
            self._load(engine, run, rows)
        else:
            await self._rebuild(engine, entry, run)
        self._assign_what_is_over(engine, run)
        for firing in run.marking.firings.values():
            await engine.stored.load_under(run.recording.location_of(firing))
        run.recording.write()
        left = Effects([(number, one) for number, one in run.marking.firings.items() if one.waits_for is None])
        run.unwound = next((state.error for state in run.marking.steps.values() if state.unwinds), None)
        left.is_over = run.unwound is not None or not (run.marking.firings or run.marking.tokens)
        return await self._go(engine, entry, run, left)

    def _load(self, engine: Engine, run: GraphRun, rows: list[tuple[bytes, bytes]]) -> None:
        """Take in where the run is, by its rows."""
        added = run.marking.load(rows)
        for number in sorted(added):
            batch = unpack_batch(added[number], run.find, engine, self._plan)
            self._plan.add(batch.nodes, batch.depth)
        run.interpreter.restore()
        fired = run.marking.fired
        given = {name: output for name, output in self._given(engine).items() if name not in fired}
        run.interpreter.moves.given.update(given)

    async def _rebuild(self, engine: Engine, entry: Entry, run: GraphRun) -> None:
        """A rewind has forgotten a part of the history: find out where the run is after what is left of it."""
        place, data = self._place, entry.data
        assert isinstance(data, GraphData), "a graph has its context"
        context: dict[str, Any] = engine.codec.decode(data.context, plain=True) if data.context else {}
        rebuilding = Rebuilding(engine, run.interpreter, run.find, run.growing.receive)
        happened = recorded(await engine.stored.read(HISTORY + place.location), engine.journal.names.texts)
        run.interpreter.is_rebuilt, run.interpreter.live = True, run.chooser
        self._begin(engine, run, context)
        effects = rebuilding.rebuild(happened, run.chooser)
        for at in rebuilding.forgotten:
            engine.journal.history.clear_scope(place.location + at)
        await self._patch_again(engine, run)
        run.recording.record(effects)

    async def _patch_again(self, engine: Engine, run: GraphRun) -> None:
        """What scopes have changed in the context that are over, in firings that go on, is as it was."""
        for number, firing in run.marking.firings.items():
            location = run.recording.location_of(firing)
            for at, raw in await engine.stored.read(PATCHED + location):
                store_changes(run.marking, number, location + at, raw)

    def _assign_what_is_over(self, engine: Engine, run: GraphRun) -> None:
        """What firings that are over have assigned to the public state is assigned again."""
        here = self._place.location
        begin, end = subtree(here)
        under_way = tuple(run.recording.location_of(firing) for firing in run.marking.firings.values())
        changes = engine.journal.history.changes
        unfold(engine, [at for at in changes if begin <= at < end and not at.startswith(under_way)])

    async def _go(self, engine: Engine, entry: Entry, run: GraphRun, effects: Effects) -> Entry:
        place = self._place
        result = await run.go(effects)
        raw = await self._stored(engine, entry, result)
        cleanups = engine.outside.abandon(place.location) if run.unwound is not None else []
        if run.unwound is not None:
            entry.fail(run.unwound, engine.clock.time())
            entry.value = raw
        elif result.status == "failed":
            failed = list(dict.fromkeys(self._failed(run)))
            error = GraphFailedError(_told(place, run), None, failed, _kind(engine, run))
            entry.fail(pack_error(error, engine.codec), engine.clock.time())
            entry.value = raw
        else:
            entry.complete(raw, engine.clock.time())
        if not place.scope.in_race:
            engine.journal.takings.settle(place.location, give_back=False)
        engine.journal.history.clear_marking(place.location)
        fold(place.scope, place.location)
        entry = await place.store(engine, entry)
        if cleanups:
            await engine.outside.clean_up(cleanups)
        return entry

    async def _stored(self, engine: Engine, entry: Entry, result: GraphResult) -> bytes | None:
        """The result, if it fits into the entry; else its parts are stored before the end, each in its own commit."""
        place, data = self._place, entry.data
        assert isinstance(data, GraphData), "a graph has its data"
        raw = engine.codec.encode_large(result, GraphResult)
        # A rewind may have opened a graph again whose result was larger, or smaller.
        entry.data = replace(data, is_in_parts=len(raw) > engine.codec.max_value_bytes)
        if not entry.data.is_in_parts:
            return raw
        journal, prefix = engine.journal, parts_of(place.location)
        journal.history.clear_parts(place.location)
        for number, begin in enumerate(range(0, len(raw), PART_BYTES)):
            journal.unwritten.write(prefix + pack_segment(number), raw[begin : begin + PART_BYTES])
            await engine.parking.flush()
        self._raw = raw
        return None

    def _failed(self, run: GraphRun) -> Iterator[str]:
        """The paths of what has failed and is tried again by `recover`: firings, and the operations in them."""
        for step, state in run.marking.steps.items():
            for number, operations in state.lost:
                yield from operations
                yield join_path(self._place.path, f"{escape(step)}/~{number}")
            if state.status == "failed" and is_of_failed_controller(run.plan.nodes[step], run.marking.steps):
                yield join_path(self._place.path, f"{escape(step)}/~{state.firings - 1}")

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """Read the result if it is not in the entry."""
        if _is_in_parts(entry):
            self._raw = b"".join(raw for _, raw in await reader.stored.read(parts_of(self._place.location)))

    async def walk(self, walker: Walker, entry: Entry) -> None:
        """Call the code of every firing again, as far as its history goes, for what it would have to undo."""
        place = self._place
        await self._know(walker, entry)
        loaded, graph = walker.journal.history.loaded, place.location
        found = loaded.get(graph, {})
        index = place.scope.names.find(RECEIVED)
        received = {} if index is None else loaded.pop(graph + pack_segment(index), {})
        context = WalkedContext(walker, entry, found.values(), received)
        outputs = _Outputs(self._given(walker), found, walker.journal.names.texts)
        find = partial(self._graph.names.find, known=walker.known)
        nodes = {**await submitted_nodes(walker, graph, find), **self._plan.nodes}
        for begun in await begun_firings(walker, graph):
            node = nodes.get(begun.step) or find_added(self._plan, begun.step)
            if node is not None:
                args = begun.args
                if not args and node.name == self._plan.final:
                    args = await self._summary(walker, entry, nodes, outputs.at(begun.began, None, {}))
                elif not args:
                    args = self._args_from(walker, node, begun, outputs)
                await self._walk_firing(walker, node, graph + begun.segment, args, context.at(begun.began))

    async def _walk_firing(
        self, walker: Walker, node: Node, location: bytes, args: bytes, context: Mapping[str, Any]
    ) -> None:
        if node.kind in ("step", "call") and node.options.rollback is not None:
            walker.remember_handler(location, node.options.rollback, Any)
        remember_parts(walker, node, location)
        if node.fn is not None:
            with walker.walk_scope():
                await FiringWork.walk(walker, self._place, node, location, args, context)

    def _args_from(self, walker: Walker, node: Node, begun: BegunFiring, outputs: _Outputs) -> bytes:
        """Arguments that are stored by reference: what the steps that it needs have given until it began."""
        codec = walker.codec
        if self._plan.is_given_workload(node.name):
            return self._workload
        given = dict(begun.given)
        found = outputs.at(begun.began, [need for need in node.needs if not given or need in given], given)
        return codec.encode_large({name: codec.decode(raw, plain=True) for name, raw in found.items()})

    async def _summary(
        self, walker: Walker, entry: Entry, nodes: Mapping[str, Node], outputs: Mapping[str, bytes]
    ) -> bytes:
        """What the final step was given, if it was too large to be stored with it."""
        await self.recall(walker, entry)
        found = await known_outcomes(walker, self._place.location, nodes, entry.value or self._raw)
        done = [name for name, one in found.items() if one.status == "completed"] if found else [*outputs]
        given = {name: walker.codec.decode(outputs[name], plain=True) for name in done if name in outputs}
        return walker.codec.encode_large(
            summary_of(self._plan.final, GraphResult("partial", found, given), walker.facts.instance_id)
        )

    def _given(self, reader: Reader) -> dict[str, bytes]:
        """The outputs of steps that another system has run."""
        return {name: reader.codec.encode(output) for name, output in self._begun.completed.items()}

    def outcome(self, entry: Entry) -> GraphResult | Recorded:
        place = self._place
        recorded = Recorded(entry.value, parts_of(place.location) if _is_in_parts(entry) else None)
        if self._is_whole and entry.error is None:
            return recorded
        raw = recorded.raw or self._raw
        assert raw is not None, "a run of a graph has a result"
        result: GraphResult = place.decode(raw, GraphResult)
        if entry.error is not None:
            raise self._failure(place.failure(entry.error), result, recorded)
        return result

    def _failure(self, error: Exception, result: GraphResult, recorded: Recorded) -> Exception:
        if isinstance(error, RollbackError):
            return error
        told, failed, kind = f"{self._place.what} failed", list[str](), "application"
        if isinstance(error, GraphFailedError):
            told, failed, kind = str(error), error.failed, error.kind
        failure = GraphFailedError(told, result, failed, kind)
        failure.__stored__ = recorded
        return failure


class _Outputs:
    """What the steps of a recorded run have given, and when."""

    def __init__(self, given: Mapping[str, bytes], found: Mapping[bytes, Entry], texts: Mapping[int, str]) -> None:
        self._found: dict[str, list[tuple[int, bytes]]] = {name: [(0, raw)] for name, raw in given.items()}
        ended = [(one.data.ended, at, one.value) for at, one in found.items() if isinstance(one.data, FiringData)]
        for event, at, raw in sorted(ended, key=lambda one: one[0]):
            if raw is not None:
                self._found.setdefault(_step_of(at, texts), []).append((event, raw))

    def at(self, event: int, names: Iterable[str] | None, digests: Mapping[str, bytes]) -> dict[str, bytes]:
        """The latest output of each of these steps, or of all, before what an event has begun.

        `digests`: of what it was, for steps of which that is known.
        """
        found: dict[str, bytes] = {}
        for name in self._found if names is None else names:
            if before := [raw for at, raw in self._found.get(name, ()) if at <= event]:
                same = [raw for raw in before if name in digests and digest_of(raw) == digests[name]]
                found[name] = (same or before)[-1]
        return found


def _is_in_parts(entry: Entry) -> bool:
    return isinstance(entry.data, GraphData) and entry.data.is_in_parts


def _kind(engine: Engine, run: GraphRun) -> str:
    """The kind that the failures of steps have in common."""
    kinds = {
        "expression" if state.error is None else kind_of(unpack_error(state.error, engine.codec))
        for state in run.marking.steps.values()
        if state.counts and state.status == "failed"
    }
    return kinds.pop() if len(kinds) == 1 else "application"


def _step_of(segment: bytes, texts: Mapping[int, str]) -> str:
    """The step whose firing is recorded at a segment."""
    first = next(segments(segment), None)
    return texts.get(first[0], "") if isinstance(first, tuple) else ""


def _told(place: Place, run: GraphRun) -> str:
    """Why a graph has failed, in one line: what no arc has handled, of steps that are completed by now, too."""
    steps, final = run.marking.steps, run.plan.final
    counting = [name for name in run.plan.nodes if name in steps and (steps[name].counts or name == final)]
    causes = [f"{name!r} ({steps[name].reason})" for name in counting if steps[name].reason]
    more = f" and {len(causes) - 3} more" if len(causes) > 3 else ""
    return f"{place.what} failed: step {', '.join(causes[:3])}{more}" if causes else f"{place.what} failed"
