"""What steps are given: as a value of its own, or by reference to what it is made of and is stored anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from workflow_sdk.errors import PayloadTooLargeError
from workflow_sdk.graphs.marking import Marking
from workflow_sdk.graphs.model import Node
from workflow_sdk.graphs.plan import Plan
from workflow_sdk.graphs.possible import number_of
from workflow_sdk.graphs.rows import Firing, Token
from workflow_sdk.values import Codec

BY_REFERENCE = b""
"""Arguments that are the workload, the outputs of what a step needs, or the summary of the run."""


def digests_of(marking: Marking, firing: Firing) -> tuple[tuple[str, bytes], ...]:
    """Digests of what a join was given by reference, by step: which of their outputs that was, nobody can tell later.

    Empty for any other arguments.
    """
    waiting = None if firing.args else marking.joins.get((firing.step, number_of(firing.stack)))
    return () if waiting is None else tuple((need, digest_of(raw)) for need, raw in waiting.arrived.items())


def digest_of(output: bytes) -> bytes:
    """A digest of what a step has given."""
    return blake2b(output, digest_size=16).digest()


class Arguments:
    """The arguments of the tokens and firings of one run."""

    def __init__(self, plan: Plan, marking: Marking, codec: Codec, workload: bytes) -> None:
        self._plan = plan
        self._marking = marking
        self._codec = codec
        self._workload = workload
        self.summary: Callable[[], Any] = dict
        """What the final step is given."""

    # Making them. None of these is larger than one value may be.

    def of_root(self, name: str) -> bytes:
        """The workload, for a step that begins the run; not as a copy for each of them."""
        return BY_REFERENCE if self._plan.is_given_workload(name) else self._workload

    def of_final(self) -> bytes:
        """The summary; by reference, if it is too large."""
        return self._encoded(self.summary())

    def of_join(self, node: Node, outputs: Mapping[str, bytes]) -> bytes:
        """What the needs of a join have given; by reference, if that is too large."""
        return self._encoded(self._joined(node, outputs))

    def _encoded(self, value: Any) -> bytes:
        try:
            return self._codec.encode(value)
        except PayloadTooLargeError:
            return BY_REFERENCE

    def store(self, name: str) -> None:
        """Have the arguments of a step stored, as what they are made of may change from now on."""
        marking = self._marking
        for number in [number for number, one in marking.tokens.items() if one.step == name and not one.args]:
            token = marking.tokens[number]
            marking.put_token(number, replace(token, args=self.raw(token)))
        for number in [number for number, one in marking.firings.items() if one.step == name and not one.args]:
            firing = marking.firings[number]
            marking.put_firing(number, replace(firing, args=self.raw(firing)))

    # Reading them.

    def of(self, at: Token | Firing) -> Any:
        """The arguments of a token or a firing, as plain data."""
        return self._codec.decode(at.args, plain=True) if at.args else self._referred(at)

    def raw(self, at: Token | Firing) -> bytes:
        """The same as bytes."""
        if at.args:
            return at.args
        is_workload = self._plan.is_given_workload(at.step)
        return self._workload if is_workload else self._codec.encode_large(self._referred(at))

    def _referred(self, at: Token | Firing) -> Any:
        if self._plan.is_given_workload(at.step):
            return self._codec.decode(self._workload, plain=True)
        if at.step == self._plan.final:
            return self.summary()
        node = self._plan.nodes[at.step]
        waiting = self._marking.joins.get((at.step, number_of(at.stack)))
        if waiting is not None and waiting.arrived:
            return self._joined(node, waiting.arrived)
        steps = self._marking.steps
        outputs = {need: steps[need].output for need in node.needs}
        return self._joined(node, {need: raw for need, raw in outputs.items() if raw is not None})

    def _joined(self, node: Node, outputs: Mapping[str, bytes]) -> dict[str, Any]:
        """What these of its needs have given, in the order in which a join names them."""
        return {need: self._codec.decode(outputs[need], plain=True) for need in node.needs if need in outputs}
