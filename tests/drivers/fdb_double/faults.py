"""Errors and silences of a cluster, by number and by moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "Faults", "Moment"]

Moment = Literal["read_version", "get", "get_range", "watch", "commit", "on_error"]


@dataclass(slots=True)
class Fault:
    """What happens to one call instead of what should."""

    moment: Moment
    code: int
    skip: int = 0
    """How many calls go through before."""
    applied: bool = False
    """Of a commit: it happens all the same, and then the error is told."""
    late: bool = False
    """Of a commit: it is still on its way when the error is told, and comes when `arrive` is called. Of a read version:
    the commit that has begun to ask for it goes on doing so, and comes with the version of that time."""
    silent: bool = False
    """Nothing is told."""


class Faults:
    """What is still to happen, in its order."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.late: list[Callable[[], object]] = []
        """Commits on their way."""
        self.happened: list[Fault] = []
        self.hangs = False
        """No answer to anything that needs the cluster, until it is over."""
        self.held: list[Callable[[], object]] = []

    def add(
        self,
        moment: Moment,
        code: int = 0,
        *,
        times: int = 1,
        skip: int = 0,
        applied: bool = False,
        late: bool = False,
        silent: bool = False,
    ) -> None:
        """From now on, the call after the next `skip` ones, and the `times` from there, have this happen to them."""
        assert not (late and code == 1021), "with 1021, the client has made sure that nothing is on its way any more"
        for number in range(times):
            self._faults.append(Fault(moment, code, 0 if number else skip, applied, late, silent))

    def take(self, moment: Moment) -> Fault | None:
        """What happens to this call."""
        for fault in self._faults:
            if fault.moment == moment:
                if fault.skip:
                    fault.skip -= 1
                    return None
                self._faults.remove(fault)
                self.happened.append(fault)
                return fault
        return None

    @property
    def left(self) -> int:
        """How many have not happened yet."""
        return len(self._faults)
