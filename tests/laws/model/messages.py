"""Every message is in one place: in the inbox, with the one who took it, set aside, or kept to be given back."""

from __future__ import annotations

from tests.laws.model.space import Location, Space
from workflow_sdk.journal.inbox import SetAside, TakingRow
from workflow_sdk.rows.entries import ListenData
from workflow_sdk.rows.status import Kind
from workflow_sdk.values import Codec

__all__ = ["BAD", "Messages"]

BAD = Codec().encode("of another type")
"""The payload of the messages that fit no wait: programs listen to numbers."""


class Messages:
    """Where the messages of one instance are, from commit to commit."""

    def __init__(self) -> None:
        self.holders: dict[bytes, Location] = {}
        """Who has taken a message, and may still have to give it back or be seen to have it."""
        self.inbox: set[bytes] = set()
        self.aside: dict[bytes, bytes] = {}
        self.spent: set[bytes] = set()
        """Taken in turns of loops that are pruned by now."""

    def check(self, after: Space) -> None:
        """Compare with what it was before."""
        taken: dict[bytes, Location] = {}
        for location, entry in after.history.items():
            if isinstance(entry.data, ListenData) and entry.data.taken:
                assert entry.is_final, "what has taken messages is finished"
                for message in entry.data.taken:
                    assert message.id not in taken, "a message was taken twice"
                    taken[message.id] = location
        kept: dict[bytes, Location] = {}
        for location, raw in after.part(7).items():
            id = TakingRow.unpack(raw).id
            assert id not in kept, "a message is kept twice to be given back"
            kept[id] = location[:-1]
            assert taken.get(id, location[:-1]) == location[:-1], "a message is kept for somebody else"
            assert any(e.kind is Kind.RACE and not e.is_final for _, e in after.around(location)), (
                "a message is kept to be given back where no race is open"
            )
        for id, location in taken.items():
            if any(e.kind is Kind.RACE and not e.is_final for _, e in after.around(location)):
                assert id in kept, "a message taken in an open race is not kept"
        holders = taken | kept
        assert not after.inbox & holders.keys(), "a message is in the inbox and taken"
        assert not after.aside.keys() & (after.inbox | holders.keys() | self.spent), "what is set aside was taken"
        assert self.aside.items() <= after.aside.items(), "a message that was set aside is not kept as it was"
        assert after.aside.keys() - self.aside.keys() <= self.inbox, "what is set aside was not in the inbox"
        for raw in after.aside.values():
            assert SetAside.unpack(raw).payload == BAD, "a message was set aside that fits"
        assert not self.spent & (after.inbox | holders.keys()), "a message that was used up has come back"
        for id in self.inbox - after.inbox - holders.keys() - after.aside.keys():
            # Taken and pruned in one commit, or lost.
            assert self.may_be_pruned(after), f"message {id.hex()} has left the inbox, and nobody has it"
            self.spent.add(id)
        for id, location in self.holders.items():
            if id in holders:
                assert holders[id] == location, "a message went from one listen to another"
            elif after.has_lost(location):
                if id not in after.inbox:
                    # Its turn may have been forgotten in the same commit.
                    assert any(isinstance(part, tuple) for part in location), (
                        "the loser of a race did not give its message back"
                    )
                    self.spent.add(id)
            elif id in after.inbox:
                raise AssertionError("a message came back from a listen that has not lost")
            else:
                assert after.is_pruned(location), "a message is gone with no reason"
                self.spent.add(id)
        self.holders, self.inbox, self.aside = holders, set(after.inbox), dict(after.aside)

    @staticmethod
    def may_be_pruned(after: Space) -> bool:
        """Whether there is a loop that has pruned a turn."""
        return any(entry.kind is Kind.LOOP and entry.data.first > 0 for entry in after.history.values())  # type: ignore[union-attr]  # loops have such data
