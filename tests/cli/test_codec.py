"""`--codec`: values that pass through something before they are stored."""

from __future__ import annotations

import os

import pytest

from tests.cli.line import Line
from tests.cli.shop import fails
from workflow_sdk import Driver


@pytest.fixture(autouse=True)
def in_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.path.dirname(__file__))


@pytest.mark.parametrize("name", ["shop:reverse", "shop:Reversed", "shop:make_codec", "shop:codecs"])
def test_values_pass_through_it(line: Line, name: str) -> None:
    line("start", "checkout", '"a cup"', "--id", "order-1", "--codec", name)
    assert '"input": "a cup"' in line("--codec", name, "show", "order-1", "--json").output
    assert line("list", "--codec", name).output.startswith("order-1\t")
    assert line("send", "order-1", "packed", '"tea"', "--codec", name).output == "queued\n"
    assert line("restart-from", "order-1", "--codec", name).output == "running\n"
    assert line("cancel", "order-1", "--codec", name).output == "cancelled\n"
    assert "was cancelled" in line("watch", "order-1", "--codec", name, code=1).stderr
    assert "it was cancelled" in line("result", "order-1", "--codec", name, code=1).stderr
    assert line("doctor", "--codec", name).output.endswith("instances  1 cancelled\n")
    assert line("prune", "--older-than", "0", "--codec", name).output == "1\n"


def test_it_may_be_in_the_environment(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOW_CODEC", "shop:reverse")
    line("start", "checkout", '"a cup"', "--id", "order-1")
    monkeypatch.setenv("WORKFLOW_CODEC", "")
    assert "codec=" in line("show", "order-1", code=1).stderr
    output = line("doctor").output
    assert "instances  can't be read: " in output


@pytest.mark.parametrize("args", [("cancel",), ("recover",), ("restart-from",), ("send", "packed"), ("watch",)])
def test_nothing_is_done_without_it(line: Line, args: tuple[str, ...]) -> None:
    line("start", "checkout", '"a cup"', "--id", "order-1", "--codec", "shop:reverse")
    before = line.on_store(rows)
    assert "--codec names it" in line(args[0], "order-1", *args[1:], code=1).stderr
    assert line.on_store(rows) == before


async def rows(driver: Driver) -> list[tuple[bytes, bytes]]:
    return await driver.scan(b"", b"\xff")


def test_values_that_it_can_not_read(line: Line) -> None:
    line.run(fails, id="f1")
    assert "not encoded" in line("show", "f1", "--codec", "shop:reverse", code=1).stderr
    assert '"no tea' in line("show", "f1", "--codec", "shop:codecs", "--json").output


@pytest.mark.parametrize(
    ("name", "says", "code"),
    [
        ("shop", "write module:codec, such as app:codec", 2),
        ("none:codec", "there is no module 'none'", 2),
        ("shop:none", "the module 'shop' has no 'none'", 2),
        ("shop:STORE", "shop:STORE is 'str': no codec", 2),
        ("shop:no_runtime", "shop:no_runtime is 'int': no codec", 2),
        ("shop:no_codecs", "shop:no_codecs is 'list': no codec", 2),
        ("shop:no_codec", "shop:no_codec has made no codec: RuntimeError: no key (", 1),
    ],
)
def test_what_is_no_codec(line: Line, name: str, says: str, code: int) -> None:
    assert says in line("list", "--codec", name, code=code).stderr
