"""How much is tried by tests that try at random."""

from __future__ import annotations

import os

__all__ = ["effort"]


def effort(n: int) -> int:
    """So many examples; more of them with WORKFLOW_SDK_CHAOS."""
    return max(1, int(n * float(os.environ.get("WORKFLOW_SDK_CHAOS", "1"))))
