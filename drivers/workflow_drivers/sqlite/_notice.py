"""Notice of writes by other processes, where the system gives it: on Linux, through inotify.

It only makes the poll come sooner. A commit is not finished when the file is written, so what has changed is still
found by polling; and where there is no notice, or one is lost, polling alone finds it, a little later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

IN_MODIFY = 0x2
IN_ONESHOT = 0x80000000
BUFFER_BYTES = 4096


class WriteNotice:
    """Notice of the next write to a file. It comes once, and is asked for again: a busy file costs nothing between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, tell: Callable[[], None]) -> None:
        self._loop = loop
        self._path = os.fsencode(path)
        self._tell = tell
        self._add: Callable[[], int] | None = None
        """Asks the system for one notice; a negative number if it gives none. Made when it is first needed."""
        self._file: int | None = None
        self._is_asked = False
        self._is_there = sys.platform == "linux"

    def ask(self) -> None:
        """Have `tell` called at the next write."""
        if self._is_asked or not self._is_there:
            return
        if self._add is None:
            self._open()
        if self._add is not None:
            # There may be no such file now, or the system may watch too many already.
            self._is_asked = self._add() >= 0

    def _open(self) -> None:
        # Only now: it takes a while to import, and many processes never wait for another one.
        import ctypes

        try:
            system = ctypes.CDLL(None, use_errno=True)
            file: int = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if file < 0:
                raise OSError(ctypes.get_errno(), "inotify_init1")
        except (OSError, AttributeError):
            self._is_there = False
            return
        try:
            self._loop.add_reader(file, self._come)
        except NotImplementedError:  # an event loop that watches no files
            os.close(file)
            self._is_there = False
            return
        self._file = file
        self._add = lambda: system.inotify_add_watch(file, self._path, ctypes.c_uint32(IN_MODIFY | IN_ONESHOT))

    def _come(self) -> None:
        assert self._file is not None, "it is read"
        with suppress(BlockingIOError):
            os.read(self._file, BUFFER_BYTES)
        self._is_asked = False
        self._tell()

    def close(self) -> None:
        """Give no notice any more."""
        self._is_there = False
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None
            self._add = None
