"""Messages that have come and not been taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflow_sdk.journal.inbox import Inbox, InboxMessage


def message(number: int, name: str = "a") -> InboxMessage:
    return InboxMessage(number.to_bytes(2, "big"), name, b"p", 1.5)


arrivals = st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), unique_by=lambda pair: pair[0])


@given(arrivals, st.lists(st.sampled_from("abcd"), unique=True, min_size=1), st.integers(1, 10))
def test_the_oldest_are_found_in_order(pairs: list[tuple[int, str]], names: list[str], count: int) -> None:
    inbox = Inbox()
    for number, name in pairs:
        assert inbox.add(message(number, name))
    expected = sorted((message(*pair) for pair in pairs if pair[1] in names), key=lambda found: found.id)
    assert inbox.find(names, count) == expected[:count]
    assert len(inbox) == len(pairs), "finding does not take"
    assert set(inbox.names()) == {name for _, name in pairs}


@given(arrivals, st.data())
def test_what_is_taken_is_gone(pairs: list[tuple[int, str]], data: st.DataObject) -> None:
    inbox = Inbox()
    left = [message(*pair) for pair in pairs]
    for each in left:
        inbox.add(each)
    while left:
        taken = data.draw(st.sampled_from(left))
        inbox.take(taken)
        left.remove(taken)
        assert inbox.find("abc", 99) == sorted(left)
    assert (len(inbox), inbox.names()) == (0, [])


def test_a_message_is_there_once() -> None:
    inbox = Inbox()
    assert inbox.add(message(1))
    assert not inbox.add(message(1))
    assert len(inbox) == 1


def test_what_was_taken_can_be_given_back_to_its_place() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.add(message(number))
    inbox.take(message(0))
    inbox.take(message(1))
    assert inbox.add(message(0))
    assert inbox.find("a", 9) == [message(0), message(2)]


@given(st.binary(), st.text(st.characters(exclude_categories=["Cs"])), st.floats(0, 4e9), st.none() | st.binary())
def test_a_message_comes_back(payload: bytes, name: str, sent_at: float, reply_to: bytes | None) -> None:
    sent = InboxMessage(b"id", name, payload, sent_at, reply_to)
    assert InboxMessage.unpack(b"id", sent.pack()) == sent
