"""What it takes to reach a store."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_sdk.core.codec import Codec
from workflow_sdk.driver import Driver
from workflow_sdk.execution.clock import Clock

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    """An open store, and how its values are read."""

    driver: Driver
    codec: Codec
    clock: Clock
