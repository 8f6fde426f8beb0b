"""Random graphs, and what may happen in a run of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.graphs.model.world import Given
from workflow_sdk.graphs import arc, node, quorum
from workflow_sdk.graphs.model import Arc, Limits, Node

NAMES = "abcdefgh"
FINAL = "final"

Draw = Any


def guard(number: int) -> str:
    """True if the number stands in the output, or beside the failure."""
    return f"'<{number}>' in (output if error == None else get(error.attributes.follows, ''))"


@st.composite
def graphs(draw: Draw, *, is_acyclic: bool = False, most: int = 8) -> Given:
    """A graph of a few steps, with everything that a graph can have."""
    names = NAMES[: draw(st.integers(2, most))]
    needs = _needs(draw, names)
    limits = draw(LIMITS)
    is_ordered = limits.running is not None or limits.starts is not None
    has_arcs = draw(st.sampled_from([True, True, True, False]))
    steps = [
        _step(draw, number, names, needs, has_arcs=has_arcs, is_acyclic=is_acyclic, is_ordered=is_ordered)
        for number in range(len(names))
    ]
    has_final = draw(st.integers(0, 3)) == 0
    return Given(
        (*steps, node(FINAL)) if has_final else tuple(steps),
        limits=limits,
        status=draw(st.sampled_from(["strict", "lenient", "fail_fast"])),
        when_blocked=draw(st.sampled_from(["wait", "complete"])),
        final=FINAL if has_final else None,
        final_failure=draw(st.sampled_from(["fail", "partial"])),
        level=draw(st.integers(0, 2)),
    )


LIMITS = st.one_of(
    st.just(Limits()),
    st.just(Limits()),
    st.builds(Limits, running=st.integers(1, 3)),
    st.builds(Limits, starts=st.integers(0, 12)),
    st.builds(Limits, nodes=st.integers(2, 9), running=st.sampled_from([None, None, 2, 0])),
)


def _needs(draw: Draw, names: str) -> dict[str, list[str]]:
    """Which steps are joins, and what they need: something before them."""
    found: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        if number and draw(st.integers(0, 2)) == 0:
            found[name] = draw(st.lists(st.sampled_from(names[:number]), min_size=1, max_size=3, unique=True))
    return found


def _step(
    draw: Draw,
    number: int,
    names: str,
    needs: dict[str, list[str]],
    *,
    has_arcs: bool,
    is_acyclic: bool,
    is_ordered: bool,
) -> Node:
    targets = [
        name for at, name in enumerate(names) if has_arcs and name not in needs and (at > number or not is_acyclic)
    ]
    arcs: list[Arc] = []
    for place, target in enumerate(draw(st.lists(st.sampled_from(targets), max_size=3)) if targets else []):
        # What leads back is guarded, so that a run can be brought to its end.
        is_guarded = names.index(target) <= number or draw(st.booleans())
        on = draw(st.sampled_from(["done", "done", "done", "failed", "any"]))
        arcs.append(arc(target, when=guard(place) if is_guarded else None, on=on))
    return made(draw, names[number], arcs, needs.get(names[number], []), is_ordered=is_ordered)


def made(draw: Draw, name: str, arcs: Sequence[Arc], needs: Sequence[str], *, is_ordered: bool) -> Node:
    """A step with these arcs and needs; everything else is drawn."""
    options: dict[str, Any] = {"next": arcs, "mode": draw(st.sampled_from(["exclusive", "inclusive", "inclusive"]))}
    if needs:
        # Where the order of starts matters, in which moment a join is seen to have no more coming would matter, too.
        kinds: list[Any] = ["all", "all", quorum(draw(st.integers(1, len(needs))))] + ["alive"] * 2 * (not is_ordered)
        options |= {"needs": needs, "join": draw(st.sampled_from(kinds))}
    if draw(st.integers(0, 5)) == 0:
        level = draw(st.integers(1, 3))
        options |= {"admit": f"ctx.level >= {level}", "details": {"level": level}}
        options["on_deny"] = draw(st.sampled_from(["wait", "wait", "discard"]))
    if draw(st.integers(0, 9)) == 0:
        options |= {"trust": "quarantined", "access": draw(st.sampled_from(["read", "write"]))}
    return node(name, None, **options)


@st.composite
def batches(draw: Draw, known: Sequence[Node], place: int, *, is_ordered: bool) -> tuple[Node, ...]:
    """One or two steps to be added, which need what there is, or nothing."""
    names = [f"s{place + more}" for more in range(draw(st.integers(1, 2)))]
    old = [one.name for one in known if one.name != FINAL]
    found: list[Node] = []
    for number, name in enumerate(names):
        # Either the first leads to the second, or the second may need the first.
        is_led_to = number == 0 and len(names) > 1 and draw(st.integers(0, 3)) == 0
        arcs = [arc(names[1], when=guard(0))] if is_led_to else []
        needs = draw(st.lists(st.sampled_from([*old, *names[:number]]), max_size=2, unique=True))
        if number and found[0].next:
            needs = []
        found.append(made(draw, name, arcs, needs, is_ordered=is_ordered))
    return tuple(found)
