"""The servers that some peers need, each as a local process with its default settings, and stopped at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.peers.ports import free_port

__all__ = ["MissingError", "Server", "postgres", "restate", "temporal", "temporal_unlimited"]

START_SECONDS = 60.0
STOP_SECONDS = 10.0
POSTGRES_USERS = ("postgres", "nobody")


class MissingError(Exception):
    """A program that isn't installed here."""


@dataclass(frozen=True)
class Server:
    """One that runs."""

    pid: int | None
    url: str
    admin_url: str = ""
    version: str = ""


def _program(name: str, *places: Path) -> str:
    """Where a program is: in one of the places, or on the path."""
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise MissingError(f"no {name} here")
    return found


def _version(program: str | Path) -> str:
    """What the program calls itself."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return told.stdout.strip().partition("\n")[0]


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """End a server and what it has started."""
    tree: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in tree:
        with suppress(psutil.NoSuchProcess):
            left.kill()


@contextmanager
def _running(
    command: Sequence[str],
    port: int,
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    how: signal.Signals = signal.SIGTERM,
) -> Generator[int]:
    """A server, once it listens on its port. A session of its own keeps Ctrl-C for us, who then stop it in order."""
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=user,
            start_new_session=True,
        )
    try:
        _await_port(process, port, log)
        yield process.pid
    finally:
        _stop(process, how)


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace").strip()[-500:]
    raise MissingError(f"{Path(process.args[0]).name} did not start: {tail}")  # type: ignore[index, arg-type]


def _postgres_programs() -> Path:
    """The newest installation: distributions keep it off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else Path(_program("initdb")).parent


def _postgres_user() -> str | None:
    """Who runs it: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in POSTGRES_USERS if name in names), None)
    if user is None:
        raise MissingError("PostgreSQL won't run as root, and there is no other user")
    return user


@contextmanager
def postgres(directory: Path) -> Generator[Server]:
    """PostgreSQL as `initdb` sets it up: every commit is flushed. The URL has a place for the database's name."""
    programs, user, port = _postgres_programs(), _postgres_user(), free_port()
    if user is not None:
        shutil.chown(directory, user)
    data = directory / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust"],
        check=True,
        capture_output=True,
        cwd=directory,
        user=user,
    )
    command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(directory)]
    with _running(command, port, directory, user=user, how=signal.SIGINT) as pid:
        yield Server(pid, f"postgresql://postgres@localhost:{port}/{{name}}", version=_version(programs / "postgres"))


@contextmanager
def restate(directory: Path) -> Generator[Server]:
    """A single Restate server with its default settings, but for ports of its own."""
    ingress, admin, fabric = free_port(), free_port(), free_port()
    program = _program("restate-server", Path(sys.prefix) / "node" / "node_modules" / ".bin")
    command = [program, "--node-name=benchmarks", f"--base-dir={directory}", "--listen-mode=tcp"]
    environment = {
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    with _running(command, ingress, directory, environment=environment) as pid:
        yield Server(pid, f"http://127.0.0.1:{ingress}", f"http://127.0.0.1:{admin}", _version(program))


@contextmanager
def temporal(directory: Path, *options: str) -> Generator[Server]:
    """Temporal's development server, on a file."""
    port = free_port()
    program = _program("temporal", Path(sys.prefix) / "bin")
    command = [program, "server", "start-dev", "--headless", f"--port={port}", "--ip=127.0.0.1", *options]
    with _running([*command, f"--db-filename={directory / 'temporal.db'}"], port, directory) as pid:
        yield Server(pid, f"127.0.0.1:{port}", version=_version(program))


# A shard of the server's history looks for tasks to hand out twenty times a second, after a burst; the development
# server has one shard. So one workflow gets no further than twenty steps a second, however fast the rest is.
@contextmanager
def temporal_unlimited(directory: Path) -> Generator[Server]:
    """The same without that limit, which few know of."""
    with temporal(directory, "--dynamic-config-value", "history.transferProcessorMaxPollRPS=100000") as server:
        yield server
