"""The command line on a store in a file."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import click.testing

from tests.cli.launcher import FOLDER, Running, the_launcher
from tests.environment import clean_environment
from tests.patience import PATIENCE
from workflow_sdk import Driver, RunResult, Workflow, open_driver, run_workflow
from workflow_sdk.cli.__main__ import cli


@dataclass
class Line:
    """The command line, on one store."""

    store: str
    folder: Path

    def __call__(self, *args: str, input: str | None = None, code: int = 0) -> click.testing.Result:
        """Run it in this process."""
        result = click.testing.CliRunner(env={"WORKFLOW_STORE": self.store}).invoke(cli, args, input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        if code:
            assert result.stderr.count("\n") == 1, "an error is one line"
            assert result.stderr.startswith("workflow: ")
        return result

    def process(self, *args: str, unread: str = "", constants: Mapping[str, object] | None = None) -> Running:
        """Run it in a process of its own, where `shop` can be imported.

        Nobody reads its stream `unread`. Constants of modules have other values there.
        """
        environment = {"WORKFLOW_STORE": self.store, "SHOP_STORE": self.store}
        return the_launcher().start(args, environment, unread=unread, constants=constants)

    def shell(self, words: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
        """Run it as a shell does, which can redirect what it reads and writes."""
        return subprocess.run(
            f"{before} {shlex.quote(sys.executable)} -m workflow_sdk.cli {words}",
            shell=True,
            check=False,
            cwd=FOLDER,
            env=clean_environment(WORKFLOW_STORE=self.store, PYTHONUTF8="1"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def run(self, workflow: Workflow[Any, Any], input: Any = None, *, id: str) -> RunResult[Any]:
        """Run an instance as far as it goes by itself."""

        async def use(driver: Driver) -> RunResult[Any]:
            return await run_workflow(workflow, input, driver=driver, instance_id=id)

        result: RunResult[Any] = self.on_store(use)
        return result

    def on_store(self, use: Callable[[Driver], Awaitable[Any]]) -> Any:
        """Do something with the open store."""

        async def opened() -> Any:
            driver = await open_driver(self.store)
            try:
                return await use(driver)
            finally:
                await driver.aclose()

        return anyio.run(opened)
