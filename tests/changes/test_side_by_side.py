"""Any two changes, side by side in any order: what comes of them is what comes of one after the other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.changes import scenes
from tests.changes.scenes import CHANGES, SCENES, rows_of, rung, said, seen
from tests.changes.store import Outcome, Store, make_together

pytestmark = pytest.mark.law(1)


def _changes(scene: str, names: tuple[str, str]) -> list[Any]:
    return [CHANGES[name](rows_of(scene), who) for who, name in enumerate(names)]


Result = tuple[object, object, set[bytes]]


def _result(scene: str, store: Store, outcomes: list[Outcome]) -> Result:
    return seen(store.rows), [(what, said(value)) for what, value in outcomes], rung(rows_of(scene), store.rows)


def _one_by_one(scene: str, names: tuple[str, str], first: int) -> Result:
    store, changes = Store(rows_of(scene)), _changes(scene, names)
    outcomes: list[Outcome] = [("", None), ("", None)]
    for number in (first, 1 - first):
        (outcomes[number],) = make_together(store, [changes[number]], [])
    return _result(scene, store, outcomes)


def _check(scene: str, names: tuple[str, str], order: list[int]) -> None:
    store = Store(rows_of(scene))
    *found, told = _result(scene, store, make_together(store, _changes(scene, names), order))
    for first in (0, 1):
        *serial, told_then = _one_by_one(scene, names, first)
        # Others may be told twice, but nobody is forgotten.
        if found == serial and told >= told_then:
            return
    raise AssertionError(f"{names} in the scene {scene!r}, in the order {order}")


@pytest.mark.parametrize("scene", SCENES)
def test_two_that_decide_at_the_same_time(scene: str) -> None:
    """Each reads all that it reads before the other commits."""
    failed: list[str] = []
    for one, other in product(CHANGES, repeat=2):
        try:
            _check(scene, (one, other), [0, 1] * 20)
        except AssertionError:
            failed.append(f"{one} / {other}")
    assert failed == []


@given(
    st.sampled_from(SCENES),
    st.tuples(st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(CHANGES))),
    st.lists(st.integers(0, 1), max_size=40),
)
def test_two_in_any_order(scene: str, names: tuple[str, str], order: list[int]) -> None:
    _check(scene, names, order)


def test_the_scenes_are_what_they_are_called() -> None:
    """Else the changes would have nothing to decide."""
    status = {scene: str(scenes.status_of(scene)) for scene in SCENES}
    assert status == {
        "waits": "waiting",
        "running": "running",
        "taken over": "running",
        "abandoned": "cancelled",
        "over": "cancelled",
        "empty": "None",
        "completed": "completed",
        "failed": "rolled_back",
        "stuck": "stuck",
        "undone": "rolling_back",
    }


def test_each_change_does_something_somewhere() -> None:
    idle = [
        name
        for name, make in CHANGES.items()
        if not any(_writes(Store(rows_of(scene)), make(rows_of(scene), 0)) for scene in SCENES)
    ]
    assert idle == []


def _writes(store: Store, change: Any) -> bool:
    before = dict(store.rows)
    make_together(store, [change], [])
    return store.rows != before
