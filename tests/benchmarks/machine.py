"""What figures were measured on: without it they mean nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path

__all__ = ["machine"]


def machine() -> dict[str, object]:
    """The processor, its cores, the kernel, and what runs the Python code."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }


def _cpu_model() -> str:
    """As Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
