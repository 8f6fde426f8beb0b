"""Which joins by quorum a step serves and nothing else: once one of them has fired, the step is of no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workflow_sdk.graphs.dominators import NOWHERE, Shape


class Serving:
    """The quorums that the steps of one graph serve."""

    def __init__(
        self,
        after: Mapping[str, Sequence[str]],
        needs: Mapping[str, Sequence[str]],
        sources: Mapping[str, Sequence[str]],
        quorums: Sequence[str],
    ) -> None:
        self._after = after
        self._before = {name: [*needs[name], *sources.get(name, ())] for name in after}
        ends = [name for name, others in after.items() if not others]
        ending = _reaching(ends, self._before)
        # All that never ends counts as an end, too: what leads there leads elsewhere.
        endless = [name for name in after if name not in ending]
        self._tree = Shape([*ends, *endless], self._before).dominators if quorums else {}
        # Arcs to a join serve no quorum. Where there are some, or no end, the way back is gone step by step.
        each = [join for join in quorums if join not in ending or sources.get(join)]
        self._quorums = frozenset(quorums) - frozenset(each)
        self._served: dict[str, set[str]] = {}
        for join in each:
            for name in self._only_for(join, needs[join]):
                self._served.setdefault(name, set()).add(join)

    def of(self, name: str) -> frozenset[str]:
        """The joins by quorum in which all ways of a step end."""
        found = set(self._served.get(name, ()))
        at = self._tree.get(name, NOWHERE)
        while at != NOWHERE:
            if at in self._quorums:
                found.add(at)
            at = self._tree[at]
        return frozenset(found)

    def _only_for(self, join: str, needs: Sequence[str]) -> set[str]:
        """The steps all of whose ways end in a join."""
        only = _reaching(needs, self._before, without=join)
        todo = [name for name in only if any(after != join and after not in only for after in self._after[name])]
        while todo:
            # A step that leads anywhere else serves something else, and so does what leads to it.
            name = todo.pop()
            if name in only:
                only.remove(name)
                todo += self._before[name]
        return only


def _reaching(ends: Sequence[str], before: Mapping[str, Sequence[str]], without: str = NOWHERE) -> set[str]:
    """The steps from which one of `ends` can be reached, without going through another step."""
    found: set[str] = set()
    todo = list(ends)
    while todo:
        name = todo.pop()
        if name not in found and name != without:
            found.add(name)
            todo += before[name]
    return found
