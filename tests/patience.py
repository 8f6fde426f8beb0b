"""How long a test waits for what is to happen."""

from __future__ import annotations

import os

__all__ = ["PATIENCE"]

PATIENCE = float(os.environ.get("WORKFLOW_SDK_PATIENCE", "60"))
"""Seconds, after which it is taken to happen never. Only a test that fails waits for this long."""
