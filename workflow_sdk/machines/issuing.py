"""What the machines of a runtime do for workflows: recording the effects that these ask for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from workflow_sdk.changes.change import Steps
from workflow_sdk.errors import DefinitionError
from workflow_sdk.machines import canonical
from workflow_sdk.machines.cell import Pending
from workflow_sdk.machines.effects import Request
from workflow_sdk.machines.emitting import under
from workflow_sdk.machines.recording import Begun, asked_for, begun_of
from workflow_sdk.machines.surroundings import Surroundings
from workflow_sdk.operations.types import Facts
from workflow_sdk.rows.keys import InstanceKeys


@dataclass(frozen=True, slots=True)
class Issue:
    """An effect of a workflow that is about to be recorded."""

    begun: Begun
    around: Surroundings

    @property
    def id(self) -> str:
        """Of its intent."""
        return self.begun.id

    @contextmanager
    def placed(self) -> Generator[Issue]:
        """Keep a place for it while it is recorded, if there is room; it is queued if not."""
        with self.around.room.placing() as place:
            worker = place(self.id, self.begun.row.effect)
            row = self.begun.row if worker is None else replace(self.begun.row, worker=worker, claim=1)
            yield Issue(Begun(self.id, row), self.around)

    def steps(self, token: bytes) -> Steps[str]:
        """Record it for the wait with this token, as long as the manifest is the active one."""
        yield from under(self.around.active)
        yield asked_for([Begun(self.id, replace(self.begun.row, token=token))])
        return self.id

    def begin(self) -> None:
        """Begin it here, or tell those who may."""
        if self.begun.row.worker is not None:
            self.around.begin(self.id, self.begun.row)
        else:
            self.around.queued(self.begun.row.effect)


class Issuer:
    """Records the effects that workflows ask for."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def issue(self, request: Request, facts: Facts, id_of: Callable[[bytes], str]) -> Issue:
        """An effect, to be recorded; `id_of` makes its id of its parameters. DefinitionError, if it is not declared."""
        around, effect = self._around, request.effect
        if around.manifest.effects.get(effect.name) is not effect:
            raise DefinitionError(
                f"the manifest has no such effect {effect.name!r}: it takes those that workflows ask for as "
                "`Manifest(effects=[...])`"
            )
        params = effect.params.encode(request.params)
        id = id_of(params)
        begun = begun_of(
            Pending(id, effect.name, params, request.issuer, 0, around.clock.time()),
            facts.workflow_name,
            InstanceKeys(facts.instance_id),
            around.codec.seal(canonical.bare(facts.instance_id)),
            around.codec.seal(params),
            None,
        )
        # That a workflow asks is told by its token, which the commit gives.
        return Issue(Begun(id, replace(begun.row, token=b"")), around)
