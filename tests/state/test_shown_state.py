"""What everybody may see of an instance, and how it is brought back."""

from __future__ import annotations

import pytest

from workflow_sdk import CodecError, DefinitionError
from workflow_sdk.journal.public_state import PublicState
from workflow_sdk.rows.location import pack_segment
from workflow_sdk.rows.wire import pack_record
from workflow_sdk.values import Codec

CODEC = Codec()
ROOT = b""
LOOP, STEP = pack_segment(1), pack_segment(2)
INSIDE = LOOP + pack_segment(3)


def test_what_was_assigned_is_noted_once_and_folded() -> None:
    world = PublicState(CODEC)
    world.state["a"] = 1
    world.note(ROOT)
    world.state["b"] = {"x": [1]}
    world.note(INSIDE)
    world.state["b"]["x"].append(2)
    world.note(LOOP)
    folded = world.fold(LOOP)
    assert folded is not None
    raw, _ = folded
    assert world.fold(LOOP) is None, "nothing has changed since"
    again = PublicState(CODEC)
    again.apply({LOOP: raw})
    assert dict(again.state) == {"b": {"x": [1, 2]}}, "what the root has assigned is assigned again by its code"
    assert again.fold(LOOP) is None, "it is in the store already"


def test_what_losers_have_changed_never_was() -> None:
    world = PublicState(CODEC)
    winner, loser, other = (LOOP + pack_segment(number) for number in (5, 6, 7))
    world.replace({"a": 0, "b": 0, "c": 0})
    world.note(ROOT)
    for scope, name, value in [
        *((loser, "a", 1), (loser, "b", 1), (winner, "b", 2), (other, "a", 3), (other + STEP, "b", 4)),
        *((winner, "c", 5), (loser, "new", 6)),
    ]:
        world.state[name] = value
        world.note(scope)
    world.undo([loser, other], winner)
    assert dict(world.state) == {"a": 0, "b": 2, "c": 5}
    folded = world.fold(LOOP)
    assert folded is not None
    again = PublicState(CODEC)
    again.apply({LOOP: folded[0]})
    assert dict(again.state) == {"b": 2, "c": 5}


def test_what_is_deleted_stays_deleted() -> None:
    world = PublicState(CODEC)
    world.replace({"a": 1, "b": 2})
    world.note(ROOT)
    del world.state["a"]
    world.refer("r")
    world.note(INSIDE)
    folded = world.fold(LOOP)
    assert folded is not None
    raw, _ = folded
    again = PublicState(CODEC)
    again.replace({"a": 1, "b": 2})
    again.apply({LOOP: raw})
    assert dict(again.state) == {"b": 2}
    assert again.reference == "r"


def test_the_last_change_counts_wherever_it_was_made() -> None:
    world = PublicState(CODEC)
    for number, scope in enumerate([INSIDE, LOOP + STEP, INSIDE, LOOP + STEP]):
        world.state["n"] = number
        world.note(scope)
    folded = world.fold(LOOP)
    assert folded is not None
    raw, _ = folded
    again = PublicState(CODEC)
    again.apply({LOOP: raw})
    assert again.state["n"] == 3


def test_everything_survives_a_new_beginning() -> None:
    world = PublicState(CODEC)
    world.replace({"a": (1, 2)})
    world.refer("r")
    world.advance(1, 2.5, "half")
    again = PublicState(CODEC)
    again.apply({ROOT: world.whole()})
    assert (dict(again.state), again.reference, again.progress) == ({"a": (1, 2)}, "r", (1, 2.5, "half"))
    assert again.shown() == world.shown()


def test_what_can_not_be_shown() -> None:
    world = PublicState(CODEC)
    with pytest.raises(CodecError, match=r"state\['a'\]"):
        world.state["a"] = object()
    with pytest.raises(DefinitionError, match="texts"):
        world.state[1] = 2  # type: ignore[index]
    with pytest.raises(DefinitionError, match="dict"):
        world.replace([1])
    with pytest.raises(DefinitionError, match="reference"):
        world.refer(7)
    with pytest.raises(DefinitionError, match="numbers"):
        world.advance("half", None, None)
    for done, total in ((10**30, None), (1, -(2**63))):
        with pytest.raises(DefinitionError, match="whole numbers up to"):
            world.advance(done, total, None)
    with pytest.raises(DefinitionError, match="note"):
        world.advance(1, None, 7)
    assert world.shown() == (None, None)


@pytest.mark.parametrize(
    "rows",
    [[["progress", CODEC.encode(1), 1]], [["reference", CODEC.encode(1), 1]], [["x", b"", 1]], [["state a"]], [1]],
    ids=str,
)
def test_damaged_changes(rows: list[object]) -> None:
    with pytest.raises(CodecError):
        PublicState(CODEC).apply({ROOT: pack_record([rows])})


def test_what_branches_have_changed_is_taken_over_in_the_order_in_which_they_did() -> None:
    one, other = LOOP + pack_segment(3), LOOP + pack_segment(4)
    world = PublicState(CODEC)
    rows: dict[bytes, bytes] = {}
    for number, branch in enumerate([other, one]):
        world.assign("n", number)
        folded = world.fold(branch)
        assert folded is not None
        rows[branch] = folded[0]
    again = PublicState(CODEC)
    again.apply(dict(sorted(rows.items())))
    assert again.state["n"] == 1, "not that of the last branch, but the last one"
    assert again.fold(one) is None
    assert again.fold(LOOP) is not None, "as one, they have a row of their own"
