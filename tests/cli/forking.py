"""The process that forks one for each command, as `launcher` asks for it.

Python needs a third of a second of CPU time to import the command line; a forked process needs none of it. Nothing of
an event loop, a thread or a store is ever opened here. This is a program: it can import no other module of the tests.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from typing import NoReturn

CHUNK_BYTES = 65_536


def serve(requests: socket.socket) -> None:
    """Fork for each request, until the tests close the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch the commands
    while True:
        message, fds, _, _ = socket.recv_fds(requests, CHUNK_BYTES, 4)
        if not message:
            sys.exit(0)
        while not message.endswith(b"\n"):
            message += requests.recv(CHUNK_BYTES)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            command = os.fork()
            if command:
                watch(command, fds)
            run(json.loads(message), fds)
        for fd in fds:
            os.close(fd)


def watch(command: int, fds: list[int]) -> NoReturn:
    """Tell the tests the command's process id, and its exit code when it has ended."""
    status, *others = fds
    for fd in others:
        os.close(fd)
    os.write(status, f"{command}\n".encode())
    _, ended = os.waitpid(command, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def run(request: dict[str, object], fds: list[int]) -> NoReturn:
    """Be `python -m workflow_sdk.cli`, in this process."""
    args, environment, constants = request["args"], request["environment"], request["constants"]
    assert isinstance(args, list)
    assert isinstance(environment, dict)
    assert isinstance(constants, dict)
    os.close(fds[0])
    for ours, fd in enumerate(fds[1:]):
        os.dup2(fd, ours)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # until the end
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), "utf-8", line_buffering=os.isatty(1))  # noqa: SIM115
    # Unbuffered, as PYTHONUNBUFFERED makes it, which images of containers often set.
    errors = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(errors, "utf-8", "backslashreplace", write_through=True)
    # As in a process started from a shell, even if the tests run in the background, where interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)
    sys.argv = ["workflow", *args]
    runpy.run_module("workflow_sdk.cli", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    for command in ("doctor", "history", "instances", "worker"):
        import_module(f"workflow_sdk.cli.{command}")
    for module in ("workflow_drivers.sqlite", "anyio._backends._asyncio"):
        import_module(module)
    serve(socket.socket(fileno=int(sys.argv[1])))
