"""How long a test waits for what is to happen."""

from __future__ import annotations

__all__ = ["PATIENCE"]

PATIENCE = 60.0
"""Seconds, after which it is taken to happen never. Only a test that fails waits for this long."""
