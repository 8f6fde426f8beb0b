"""Ports that are free."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """One that was free just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
