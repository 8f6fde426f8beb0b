"""What the URL of an SQLite store may say, and what is said where it can't be read."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from workflow_drivers import sqlite
from workflow_drivers.sqlite import parse
from workflow_sdk.errors import DefinitionError, StorageError


def test_a_url_names_a_file_and_settings() -> None:
    assert parse("sqlite:///app.db").path == Path.cwd() / "app.db"
    assert parse("sqlite:////var/lib/app.db").path == Path("/var/lib/app.db")
    assert parse("sqlite:////with%20space%3F/%C3%A9.db").path == Path("/with space?/é.db")
    assert (parse("sqlite:///app.db").synchronous, parse("sqlite:///app.db").busy_timeout) == ("full", 30.0)
    settings = parse("sqlite:///app.db?synchronous=NORMAL&busy_timeout=2.5")
    assert (settings.synchronous, settings.busy_timeout) == ("normal", 2.5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://app.db", "sqlite:///relative.db"),
        ("sqlite:app.db", "sqlite:///relative.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:////directory/", "names no file"),
        ("sqlite:///nul%00", "names no file"),
        ("sqlite:///app.db?sync=full", "unknown option 'sync'.*busy_timeout, inline, mode, synchronous"),
        ("sqlite:///app.db?synchronous=off", "one of full, normal"),
        ("sqlite:///app.db?mode=ro", "mode is one of rwc, rw, not 'ro'"),
        ("sqlite:///app.db?busy_timeout=soon", "number of seconds"),
        ("sqlite:///app.db?busy_timeout=-1", "number of seconds"),
        ("sqlite:///app.db?busy_timeout=nan", "number of seconds"),
        ("sqlite:///app.db?busy_timeout=1&busy_timeout=2", "twice"),
    ],
)
async def test_a_wrong_url_is_refused(wrong: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        await sqlite.open(wrong)


async def test_a_path_is_unquoted(tmp_path: Path) -> None:
    path = tmp_path / "with space & 100% é?.db"
    driver = await sqlite.open(f"sqlite:///{quote(str(path))}")
    await driver.aclose()
    assert path.exists()


@pytest.mark.parametrize("name", ["app.db", "with space & 100% é?#.db"])
async def test_a_file_that_does_not_exist_is_only_made_if_that_is_asked_for(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{quote(os.fsencode(tmp_path / name))}"
    with pytest.raises(StorageError, match="there is no such file"):
        await sqlite.open(f"{url}?mode=rw")
    assert os.listdir(tmp_path) == []
    for mode in ("", "?mode=rwc", "?mode=rw"):
        driver = await sqlite.open(url + mode)
        await driver.aclose()
    assert os.listdir(tmp_path) == [name]


async def test_an_empty_file_is_left_empty_if_none_is_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.touch()
    with pytest.raises(StorageError, match="empty"):
        await sqlite.open(f"sqlite:///{path}?mode=rw")
    assert path.read_bytes() == b""
    assert os.listdir(tmp_path) == ["app.db"]


async def test_a_file_that_goes_away_while_it_is_opened_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: True)
    with pytest.raises(StorageError, match="unable to open"):
        await sqlite.open(f"sqlite:///{tmp_path}/app.db?mode=rw")
    assert os.listdir(tmp_path) == []


def test_trio_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="asyncio"):
        anyio.run(sqlite.open, f"sqlite:///{tmp_path}/app.db", backend="trio")
