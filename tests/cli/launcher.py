"""The command line in processes that start at once: each is forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TextIO

from tests.environment import clean_environment

__all__ = ["Launcher", "Running", "close_the_launcher", "the_launcher"]

FOLDER = Path(__file__).parent


class Running:
    """A command under way, with what tests use of `subprocess.Popen`."""

    def __init__(self, status: socket.socket, streams: dict[str, TextIO]) -> None:
        self._status = status.makefile()
        status.close()
        self.pid = int(self._status.readline())
        self._streams = streams
        self.returncode: int | None = None
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        self.returncode = int(self._status.readline())
        self._status.close()

    @property
    def stdout(self) -> TextIO:
        """What it prints."""
        return self._streams["stdout"]

    @property
    def stderr(self) -> TextIO:
        """What it prints as errors."""
        return self._streams["stderr"]

    def wait(self, timeout: float) -> int:
        """Return its exit code, once it has ended; minus the signal, if one has ended it."""
        self._waiter.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("workflow", timeout)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Read what it still prints, until it has ended; return that."""
        found = {"stdout": "", "stderr": ""}

        def read(name: str, stream: TextIO) -> None:
            found[name] = stream.read()

        readers = [
            threading.Thread(target=read, args=stream, daemon=True)
            for stream in self._streams.items()
            if not stream[1].closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired("workflow", timeout)
        self.wait(timeout)
        for stream in self._streams.values():
            stream.close()
        return found["stdout"], found["stderr"]

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Launcher:
    """Starts commands."""

    def __init__(self) -> None:
        self._environment = clean_environment(PYTHONUTF8="1")
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(FOLDER / "forking.py"), str(theirs.fileno())],
                cwd=FOLDER,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """End the process that forks."""
        self._requests.close()
        self._process.wait()

    def start(
        self,
        args: Sequence[str],
        environment: Mapping[str, str],
        *,
        terminal: int | None = None,
        unread: str = "",
        constants: Mapping[str, object] | None = None,
    ) -> Running:
        """Run a command, with pipes; or with a terminal as its input and output, and a pipe for errors only.

        Nobody reads the pipe that is called `unread`: it is broken before the command begins. Constants are set in the
        new process alone, each by the name of its module and its own.
        """
        ours, status = socket.socketpair()
        errors, errors_end = os.pipe()
        output: int | None = None
        if terminal is None:
            stdin = os.open(os.devnull, os.O_RDONLY)
            output, stdout = os.pipe()
        else:
            stdin, stdout = os.dup(terminal), os.dup(terminal)
        opened: dict[str, TextIO] = {"stderr": open(errors, encoding="utf-8")}  # noqa: SIM115  # Running closes it
        if output is not None:
            opened["stdout"] = open(output, encoding="utf-8")  # noqa: SIM115
        if unread:
            opened.pop(unread).close()
        asked = {
            "args": list(args),
            "environment": self._environment | dict(environment),
            "constants": dict(constants or {}),
        }
        request = f"{json.dumps(asked)}\n".encode()
        try:
            fds = [status.fileno(), stdin, stdout, errors_end]
            sent = socket.send_fds(self._requests, [request], fds)
            self._requests.sendall(request[sent:])
        finally:
            status.close()
            for fd in (stdin, stdout, errors_end):
                os.close(fd)
        return Running(ours, opened)


@cache
def the_launcher() -> Launcher:
    """The one of this process, started when it is first asked for."""
    return Launcher()


def close_the_launcher() -> None:
    """End it, if it was ever started."""
    if the_launcher.cache_info().currsize:
        the_launcher().close()
        the_launcher.cache_clear()
