"""A process that serves: the first signal shuts it down gracefully, the second at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.patience import PATIENCE

pytestmark = [pytest.mark.law(17)]

ROOT = Path(__file__).parents[2]

SERVING = """
import sys, time
import anyio
from workflow_sdk import Context, Runtime, workflow

def hangs():
    print("hangs", flush=True)
    time.sleep(1_000_000)

async def waits():
    print("waits", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print("cancelled", flush=True)

@workflow
async def plain(ctx: Context) -> None:
    await ctx.step(hangs)

@workflow
async def job(ctx: Context) -> None:
    await ctx.step(waits)

async def main():
    async with Runtime("memory://", workflows=[plain, job], grace=1_000_000) as runtime:
        await runtime.start(plain)
        await runtime.start(job)
        code = await runtime.serve()
        print("served", flush=True)
    print("ended", code, flush=True)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_second_signal_ends_the_grace_period(first: signal.Signals, backend: str) -> None:
    """Functions that hang in their threads, and coroutines that wait, are cancelled or left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVING, backend],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"hangs\n", "waits\n"}
        os.kill(process.pid, first)
        assert process.stdout.readline() == "served\n"
        assert process.poll() is None, "there is much of the grace period left"
        os.kill(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (output, process.returncode) == ("cancelled\nended 0\n", 0), errors
        assert "a second signal has come" in errors
    finally:
        process.kill()
        process.wait()
