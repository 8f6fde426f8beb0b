"""The rules of a run, each as it is told in words: tokens, admission, joins, limits, growing, the end."""

from __future__ import annotations

from collections.abc import Sequence

from tests.graphs.model.futures import Place, awaited, done_in, instance_of, least, may_happen, opened
from tests.graphs.model.shape import Shape
from tests.graphs.model.world import End, Event, Firing, Given, Patch, Stack, Submit, Token, World
from workflow_sdk.graphs.model import Arc, Node, Quorum


def told(given: Given, events: Sequence[Event]) -> World:
    """How things stand after these events: all of it is worked out from the beginning."""
    first = _first_steps(given)
    nodes = {node.name: node for node in given.nodes}
    world = World(given, nodes, given.level, Shape(given.nodes, first), first=first)
    for name in world.first:
        _put(world, name, ())
    _settle(world)
    for event in events:
        if isinstance(event, End):
            _end(world, event)
        elif isinstance(event, Patch):
            _patch(world, event.level)
        else:
            _submit(world, event)
        _settle(world)
    return world


def _first_steps(given: Given) -> tuple[str, ...]:
    if given.entry is not None:
        return (given.entry,)
    if any(node.next for node in given.nodes):
        return (given.nodes[0].name,)
    return tuple(node.name for node in given.nodes if not node.needs and node.name != given.final)


# Ends of firings


def _end(world: World, event: End) -> None:
    firing = world.firings[event.number]
    assert firing.status == "running"
    node = world.nodes[firing.step]
    if event.ok and event.unanswered and _needs_an_answer(node):
        event = End(event.number, ok=False)
    firing.status = "done" if event.ok else "failed"
    world.came_to[firing.step] = "completed" if event.ok else "failed"
    if event.ok and event.level is not None:
        _patch(world, event.level)
    arcs = _followed(node, event)
    firing.handled = bool(arcs)
    stack = firing.stack
    if node.is_fork and arcs:
        # One that gives a single token opens an instance as well: otherwise two passes could meet in one join.
        world.forks += 1
        stack = opened(stack, firing.step, world.forks)
    for arc in arcs:
        _put(world, arc.step, stack)
    if not event.ok and not arcs and world.given.status == "fail_fast" and firing.step != world.given.final:
        _stop(world)


def _needs_an_answer(node: Node) -> bool:
    """Whether a guard is asked when a firing is done."""
    asked = [arc for arc in node.next if arc.on != "failed"]
    return any(arc.when is not None for arc in (asked if node.mode == "inclusive" else asked[:1]))


def _followed(node: Node, event: End) -> list[Arc]:
    on = "done" if event.ok else "failed"
    arcs = [
        arc
        for number, arc in enumerate(node.next)
        if arc.on in (on, "any") and (arc.when is None or number in event.follows)
    ]
    return arcs if node.mode == "inclusive" else arcs[:1]


def _put(world: World, step: str, stack: Stack) -> None:
    """A token comes to a step, unless it would serve nothing but joins that have enough."""
    token = Token(step, stack)
    world.tokens.append(token)
    if world.stopped:
        _cancel(world, token)
        return
    for name, node in world.nodes.items():
        if isinstance(node.join, Quorum) and step in _losers(world, name):
            has_fired = world.joins.get((name, instance_of(world, name, stack))) == "fired"
            if has_fired and step not in world.shape.following(name, _bounds(world, name)):
                _cancel(world, token)


def _losers(world: World, join: str) -> set[str]:
    """The steps that are of no use any more when a join by quorum has fired."""
    return world.shape.serving_only(join, _bounds(world, join))


def _bounds(world: World, join: str) -> set[str]:
    return set() if join in world.depth else world.shape.around[join]


def _cancel(world: World, one: Token | Firing) -> None:
    if isinstance(one, Firing) or not _has_fired(world, one.step):
        world.came_to[one.step] = "cancelled"
    one.status = "cancelled"


def _has_fired(world: World, step: str) -> bool:
    """Whether a firing of the step is over: then the last of them says what the step has come to."""
    return any(one.step == step and one.status != "running" for one in world.firings)


def _stop(world: World) -> None:
    """The graph fails at once: what is under way is cancelled, and joins that wait are skipped."""
    for token in world.tokens:
        if token.status in ("ready", "pending"):
            _cancel(world, token)
    for firing in world.firings:
        if firing.status == "running":
            _cancel(world, firing)
    for place in waiting(world):
        _skip(world, place)
    world.stopped = True


def _patch(world: World, level: int) -> None:
    """The context changes: what was denied is asked again, after all that is ready."""
    world.level = level
    denied = [one for one in world.tokens if one.status == "pending"]
    world.tokens = [one for one in world.tokens if one.status != "pending"] + denied
    for token in denied:
        token.status = "ready"


# Steps that are added


def refused(world: World, event: Submit) -> bool:
    """Whether something is wrong with a batch."""
    known = {*world.nodes, *(node.name for node in event.nodes)}
    twice = len(known) < len(world.nodes) + len(event.nodes)
    unknown = any(need not in known for node in event.nodes for need in node.needs)
    most = world.given.limits
    many = most.nodes is not None and len(known) > most.nodes
    deep = most.depth is not None and depth_of(world, event) > most.depth
    return twice or unknown or many or deep


def depth_of(world: World, event: Submit) -> int:
    """How many submissions lie between these steps and the declared graph."""
    return 1 if event.by is None else world.depth.get(world.firings[event.by].step, 0) + 1


def _submit(world: World, event: Submit) -> None:
    if refused(world, event) or not event.nodes:
        return
    led_to = {arc.step for node in event.nodes for arc in node.next}
    depth = depth_of(world, event)
    for node in inheriting(world, event):
        world.nodes[node.name] = node
        world.depth[node.name] = depth
    world.shape = Shape(list(world.nodes.values()), world.first)
    for node in event.nodes:
        if not node.needs and node.name not in led_to:
            _put(world, node.name, ())


def inheriting(world: World, event: Submit) -> tuple[Node, ...]:
    """The steps of a batch: what a quarantined step submits is quarantined as well."""
    by = None if event.by is None else world.nodes[world.firings[event.by].step]
    is_quarantined = by is not None and by.trust == "quarantined"
    return tuple(node.but(trust="quarantined") if is_quarantined else node for node in event.nodes)


# Joins and starts


def _settle(world: World) -> None:
    _go_on(world)
    final = world.given.final
    if final is not None and is_over(world) and not blocked(world) and not _firings_of(world, final):
        world.firings.append(Firing(len(world.firings), final, ()))


def _firings_of(world: World, step: str) -> list[Firing]:
    return [one for one in world.firings if one.step == step]


def _go_on(world: World) -> None:
    _fire_what_is_complete(world)
    while True:
        while _start_the_next(world):
            pass
        # While nothing is under way, the joins say what goes on; if they say nothing, what was denied is given up.
        if not _decide_joins(world) and not _give_up_waiting(world):
            return


def waiting(world: World) -> list[Place]:
    """The joins that wait in some fork instance, since one of their needs is done there."""
    found = {
        (name, instance_of(world, name, one.stack))
        for name, node in world.nodes.items()
        for one in world.firings
        if one.status == "done" and one.step in node.needs
    }
    order = list(world.nodes)
    return sorted(found - world.joins.keys(), key=lambda at: (at[1][-1][1] if at[1] else 0, order.index(at[0])))


def _done(world: World, place: Place) -> int:
    return sum(done_in(world, place[0], need, place[1]) for need in world.nodes[place[0]].needs)


def _fire_what_is_complete(world: World) -> None:
    """Joins that wait for nothing more, whatever may still happen."""
    order = list(world.nodes)
    for place in sorted(waiting(world), key=lambda at: order.index(at[0])):
        node = world.nodes[place[0]]
        enough = len(node.needs) if node.join == "alive" else least(world, place[0])
        if _done(world, place) >= enough:
            _fire(world, place)


def _decide_joins(world: World) -> bool:
    decided = False
    # What is skipped on the way is still counted among what may happen, until the next time.
    future = may_happen(world)
    for place in waiting(world):
        if _decide(world, place, awaited(world, place, future)):
            decided = True
            if world.joins[place] == "fired":
                future = may_happen(world)
    return decided


def _decide(world: World, place: Place, future: list[str]) -> bool:
    if world.nodes[place[0]].join == "alive" and not future:
        _fire(world, place)
        return True
    if _done(world, place) + len(future) < least(world, place[0]):
        _skip(world, place)
        return True
    return False


def _skip(world: World, place: Place) -> None:
    world.joins[place] = "skipped"
    if not _has_fired(world, place[0]):
        world.came_to[place[0]] = "skipped"


def _fire(world: World, place: Place) -> None:
    name, instance = place
    _put(world, name, instance)
    world.joins[place] = "fired"
    if not isinstance(world.nodes[name].join, Quorum):
        return
    serving = _losers(world, name)
    for token in world.tokens:
        if token.step in serving and token.status in ("ready", "pending") and token.stack[: len(instance)] == instance:
            _cancel(world, token)
    for firing in world.firings:
        if firing.step in serving and firing.status == "running" and firing.stack[: len(instance)] == instance:
            _cancel(world, firing)


def _give_up_waiting(world: World) -> bool:
    """If nothing but denied tokens is left, and the graph does not wait for them, they are given up."""
    if not is_over(world) or world.given.when_blocked == "wait" or not blocked(world):
        return False
    for token in world.tokens:
        if token.status == "pending":
            token.status = "blocked"
            world.came_to[token.step] = "denied"
    return True


def _start_the_next(world: World) -> bool:
    """Start the token whose turn it is; if there is no room for it, all that come after it wait as well."""
    ready = [token for token in world.tokens if token.status == "ready"]
    return bool(ready) and _start(world, ready[0])


def _start(world: World, token: Token) -> bool:
    """Take a token, or see that it may not start. False if it has to wait for a slot."""
    node = world.nodes[token.step]
    if _is_denied(world, node):
        token.status = "denied"
        world.came_to[token.step] = "denied"
        return True
    running = world.given.limits.running
    if running is not None and sum(one.status == "running" for one in world.firings) >= running:
        return False
    if node.admit and world.level < node.details["level"]:
        token.status = "discarded" if node.on_deny == "discard" else "pending"
        if node.on_deny == "discard" and not _has_fired(world, node.name):
            world.came_to[node.name] = "denied"
        return True
    token.status = "taken"
    world.firings.append(Firing(len(world.firings), token.step, token.stack))
    return True


def _is_denied(world: World, node: Node) -> bool:
    most = world.given.limits
    return (
        (node.trust == "quarantined" and node.access == "write")
        or (most.nodes is not None and list(world.nodes).index(node.name) >= most.nodes)
        or (most.starts is not None and len(world.firings) >= most.starts)
        or most.running == 0
    )


# The end


def is_over(world: World) -> bool:
    """Whether nothing can happen any more, but for what a patch could still admit."""
    return not any(one.status == "running" for one in world.firings) and not any(
        one.status == "ready" for one in world.tokens
    )


def blocked(world: World) -> list[str]:
    """Steps with a token that waits to be admitted."""
    return sorted({one.step for one in world.tokens if one.status == "pending"})


def given_up(world: World) -> set[str]:
    """Steps with a token that was given up."""
    return {one.step for one in world.tokens if one.status == "blocked"}


def status_of(world: World) -> str | None:
    """What the run has come to; None while it is under way, or waits to be admitted."""
    if not is_over(world) or blocked(world):
        return None
    final = [one.status for one in world.firings if one.step == world.given.final]
    if "failed" in final and world.given.final_failure == "fail":
        return "failed"
    wrong = any(
        one.status == "failed" and not one.handled and one.step != world.given.final for one in world.firings
    ) or any(one.status == "denied" for one in world.tokens)
    if wrong and world.given.status == "lenient":
        return "partial" if "completed" in outcomes(world).values() else "failed"
    return "failed" if wrong else "partial" if given_up(world) or "failed" in final else "succeeded"


def outcomes(world: World) -> dict[str, str]:
    """What became of every step."""
    return {
        name: world.came_to.get(name, "skipped" if node.needs else "never_reached")
        for name, node in world.nodes.items()
    }
