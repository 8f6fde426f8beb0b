"""`ctx.graph`: a graph as one operation of a workflow."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Protocol

from workflow_sdk.errors import CodecError, DefinitionError, GraphFailedError, RollbackError
from workflow_sdk.graphs.controllers import find_added, is_of_failed_controller
from workflow_sdk.graphs.firing import FiringWork
from workflow_sdk.graphs.growing import unpack_batch
from workflow_sdk.graphs.marking import Outline
from workflow_sdk.graphs.model import GraphResult
from workflow_sdk.graphs.moves import Effects
from workflow_sdk.graphs.names import Names
from workflow_sdk.graphs.outside import Begun
from workflow_sdk.graphs.pinning import Definable, pin, plan_of
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.rebuilding import Rebuilding, recorded
from workflow_sdk.graphs.run import GraphRun
from workflow_sdk.instance.unwinding import failed_operations_of
from workflow_sdk.operations.engine import Engine, Reader, Walker
from workflow_sdk.operations.place import Place, about, pack_error, register, unpack_error
from workflow_sdk.operations.public_state import fold, unfold
from workflow_sdk.operations.scope import Scope
from workflow_sdk.operations.template import enter
from workflow_sdk.rows.entries import Entry, FiringData, GraphData
from workflow_sdk.rows.keys import HISTORY, marking_of
from workflow_sdk.rows.location import escape, join_path, segments, subtree
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


def start_graph(scope: Scope, name: str, graph: Runnable, workload: Any) -> Coroutine[Any, Any, GraphResult]:
    """Register a run of a graph; its coroutine runs it, and gives what it has come to."""
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
    return scope.start(enter(place, _Graph(place, graph, plan, raw, begun)))


class _Graph:
    """A run of a graph, as an operation."""

    def __init__(self, place: Place, graph: Runnable, plan: Plan, workload: bytes, begun: Begun) -> None:
        self._place = place
        self._graph = graph
        self._plan = plan
        self._workload = workload
        self._begun = begun

    async def begin(self, engine: Engine) -> Entry:
        place, graph = self._place, self._graph
        entry = place.new_entry()
        digest = await pin(engine, graph)
        run = GraphRun(place, engine, self._plan, self._workload, graph.names)
        effects = self._begin(engine, run, graph.context)
        context = engine.codec.encode(graph.context) if graph.context else b""
        entry.data = GraphData(digest, context)
        place.put(entry)
        run.record(effects)
        return await self._go(engine, entry, run, effects)

    def _begin(self, engine: Engine, run: GraphRun, context: Mapping[str, Any]) -> Effects:
        """Put the first tokens, and take over what another system has done."""
        plan = self._plan
        run.marking.put_outline(Outline(tuple(plan.nodes), plan.limits.nodes, plan.limits.depth))
        given = {name: engine.codec.encode(output) for name, output in self._begun.completed.items()}
        effects = run.interpreter.begin(run.chooser(), context, given)
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
            added = run.marking.load(rows)
            for number in sorted(added):
                batch = unpack_batch(added[number], run.find, engine, self._plan)
                self._plan.add(batch.nodes, batch.depth)
            run.interpreter.restore()
            given = self._begun.completed.items()
            run.interpreter.moves.given.update(
                {name: engine.codec.encode(output) for name, output in given if name not in run.marking.fired}
            )
        else:
            await self._rebuild(engine, entry, run)
        self._assign_what_is_over(engine, run)
        for firing in run.marking.firings.values():
            await engine.stored.load_under(run.location_of(firing))
        run.write()
        left = Effects([(number, one) for number, one in run.marking.firings.items() if one.waits_for is None])
        run.unwound = next((state.error for state in run.marking.steps.values() if state.unwinds), None)
        left.is_over = run.unwound is not None or not (run.marking.firings or run.marking.tokens)
        return await self._go(engine, entry, run, left)

    async def _rebuild(self, engine: Engine, entry: Entry, run: GraphRun) -> None:
        """A rewind has forgotten a part of the history: find out where the run is after what is left of it."""
        place, data = self._place, entry.data
        assert isinstance(data, GraphData), "a graph has its context"
        context: dict[str, Any] = engine.codec.decode(data.context, plain=True) if data.context else {}
        rebuilding = Rebuilding(engine, run.interpreter, run.find)
        happened = recorded(await engine.stored.read(HISTORY + place.location), engine.journal.names.texts)
        run.interpreter.is_rebuilt, run.interpreter.live = True, run.chooser
        self._begin(engine, run, context)
        effects = rebuilding.rebuild(happened, run.chooser)
        for at in rebuilding.forgotten:
            engine.journal.history.clear_scope(place.location + at)
        run.record(effects)

    def _assign_what_is_over(self, engine: Engine, run: GraphRun) -> None:
        """What firings that are over have assigned to the public state is assigned again."""
        here = self._place.location
        begin, end = subtree(here)
        under_way = tuple(run.location_of(firing) for firing in run.marking.firings.values())
        changes = engine.journal.history.changes
        unfold(engine, [at for at in changes if begin <= at < end and not at.startswith(under_way)])

    async def _go(self, engine: Engine, entry: Entry, run: GraphRun, effects: Effects) -> Entry:
        place = self._place
        result = await run.go(effects)
        raw = place.encode(result, GraphResult)
        cleanups = engine.outside.abandon(place.location) if run.unwound is not None else []
        if run.unwound is not None:
            entry.fail(run.unwound, engine.clock.time())
            entry.value = raw
        elif result.status == "failed":
            failed = list(dict.fromkeys(self._failed(engine, run)))
            error = GraphFailedError(_told(place, result), None, failed, _kind(engine, run))
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

    def _failed(self, engine: Engine, run: GraphRun) -> Iterator[str]:
        """The paths of what has failed and is tried again by `recover`: firings, and the operations in them."""
        for step, state in run.marking.steps.items():
            own = state.counts or step == self._plan.final
            if state.status == "failed" and (own or is_of_failed_controller(run.plan.nodes[step], run.marking.steps)):
                if state.error is not None:
                    yield from failed_operations_of(unpack_error(state.error, engine.codec))
                yield join_path(self._place.path, f"{escape(step)}/~{state.firings - 1}")

    async def recall(self, reader: Reader, entry: Entry) -> None:
        """All of it is in the entry."""

    async def walk(self, walker: Walker, entry: Entry) -> None:
        """Call the code of every firing again, as far as its history goes, for what it would have to undo."""
        place = self._place
        await self._know(walker, entry)
        names = walker.journal.names.texts
        found = walker.journal.history.loaded.pop(place.location, {})
        for segment, one in sorted(found.items(), key=lambda item: item[1].ordinal):
            data = one.data
            step = _step_of(segment, names) if isinstance(data, FiringData) else ""
            node = self._plan.nodes.get(step) or find_added(self._plan, step)
            if node is None or node.fn is None or not isinstance(data, FiringData):
                continue
            if node.options.rollback is not None:
                walker.remember_handler(place.location + segment, node.options.rollback, Any)
            with walker.walk_scope():
                await FiringWork.walk(walker, place, node, place.location + segment, data.args)

    def outcome(self, entry: Entry) -> GraphResult:
        place = self._place
        assert entry.value is not None, "a run of a graph has a result"
        result: GraphResult = place.decode(entry.value, GraphResult)
        if entry.error is not None:
            recorded_error = place.failure(entry.error)
            if isinstance(recorded_error, RollbackError):
                raise recorded_error
            if isinstance(recorded_error, GraphFailedError):
                raise GraphFailedError(_told(place, result), result, recorded_error.failed, recorded_error.kind)
            raise GraphFailedError(_told(place, result), result)
        return result


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


def _told(place: Place, result: GraphResult) -> str:
    """Why a graph has failed, in one line."""
    causes = [f"{name!r} ({one.reason})" for name, one in result.outcomes.items() if one.status in ("failed", "denied")]
    more = f" and {len(causes) - 3} more" if len(causes) > 3 else ""
    return f"{place.what} failed: step {', '.join(causes[:3])}{more}" if causes else f"{place.what} failed"
