"""`workflow check` and `workflow dump`: the code at hand against what is under way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.line import Line
from workflow_sdk import Driver

OLD = """
from workflow_sdk import Context, workflow

async def charge(order: str) -> str:
    return order

@workflow
async def checkout(ctx: Context, order: str) -> str:
    await ctx.step("charge", charge, order)
    return await ctx.listen("packed")
"""
MORE = """
from workflow_sdk import Runtime

SOME = [checkout]
runtime = Runtime("memory://", workflows=SOME)

def make():
    return runtime

def several():
    return (checkout,)

def number():
    return 3
"""


@pytest.fixture
def app(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two versions of a module, and an instance that the first one has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Modules stay imported: each test has names of its own.
    name = tmp_path.name.replace("-", "_")
    (tmp_path / f"old_{name}.py").write_text(OLD + MORE)
    (tmp_path / f"new_{name}.py").write_text(OLD.replace('"charge"', '"pay"') + MORE)
    old = __import__(f"old_{name}")
    line.run(old.checkout, "order-1", id="order-1")
    return Path(name)


@pytest.mark.parametrize("target", ["checkout", "SOME", "runtime", "make", "several"])
def test_what_goes_on(line: Line, app: Path, target: str) -> None:
    before = line.on_store(rows_of)
    output = line("check", f"old_{app}:{target}").output
    assert output == "1 history replayed, none would not go on\n  checkout: 1\n"
    assert line.on_store(rows_of) == before


def test_what_does_not(line: Line, app: Path) -> None:
    result = line.shell(f"check new_{app}:runtime", before=f"cd {Path.cwd()};")
    assert result.returncode == 1
    assert "1 history replayed, 1 would not go on" in result.stdout
    assert (
        "checkout order-1 (waiting): divergence: the code asks for step 'pay', which is not recorded" in result.stdout
    )
    assert result.stderr == ""


def test_an_empty_name_of_a_store_is_a_mistake(line: Line, app: Path) -> None:
    assert "which store?" in line("check", f"old_{app}:runtime", "--store", "", code=2).stderr


def test_in_json(line: Line, app: Path) -> None:
    found = json.loads(line("check", f"old_{app}:runtime", "--json").output)
    assert found == {"replayed": {"checkout": 1}, "unknown": {}, "problems": []}


def test_a_dump(line: Line, app: Path, tmp_path: Path) -> None:
    assert line("dump", str(tmp_path / "histories")).output == "1 history\n"
    assert line("check", f"old_{app}:runtime", "--dump", str(tmp_path / "histories")).output.startswith("1 history")
    line("check", f"old_{app}:runtime", "--dump", "histories", "--store", "memory://", code=2)
    (tmp_path / "other").write_text("no dump")
    line("check", f"old_{app}:runtime", "--dump", str(tmp_path / "other"), code=1)
    line("check", f"old_{app}:runtime", "--dump", str(tmp_path / "nothing"), code=1)


@pytest.mark.parametrize("target", ["number", "charge", "nothing"])
def test_what_is_no_workflow(line: Line, app: Path, target: str) -> None:
    line("check", f"old_{app}:{target}", code=1 if target == "charge" else 2)


async def rows_of(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")
