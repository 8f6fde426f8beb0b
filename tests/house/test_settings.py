"""The table of settings has every pair of two that goes together, and each test gets what it says."""

from __future__ import annotations

import asyncio
from itertools import combinations, product

import anyio.lowlevel
import pytest
import uvloop

from tests.settings import HOSTS, SETTINGS, Host, Setting, goes_together, pick

STORES = ("memory", "sqlite", "fdb")
MODES = ("yield", "live")


def pairs(setting: Setting) -> set[frozenset[tuple[str, str]]]:
    parts = [("store", setting.store), ("mode", setting.mode), ("host", setting.host.name), ("loop", setting.loop)]
    return {frozenset(pair) for pair in combinations(parts, 2)}


def test_every_pair_that_goes_together_is_run() -> None:
    all_that_go = [
        Setting(store, mode, host)  # type: ignore[arg-type]
        for store, mode, host in product(STORES, MODES, HOSTS)
        if goes_together(store, host)
    ]
    assert set(SETTINGS) <= set(all_that_go)
    wanted = set[frozenset[tuple[str, str]]]().union(*map(pairs, all_that_go))
    missing = wanted - set[frozenset[tuple[str, str]]]().union(*map(pairs, SETTINGS))
    assert not missing


@pytest.mark.parametrize("deep", [False, True])
def test_every_setting_has_its_share_of_the_cases(deep: bool) -> None:
    chosen = [setting for start in range(len(SETTINGS)) for setting in pick(SETTINGS, start, deep=deep)]
    assert set(chosen) == set(SETTINGS)
    assert deep or len(chosen) == len(SETTINGS)


@pytest.mark.parametrize("start", range(len(SETTINGS)))
def test_the_deep_tier_leaves_out_no_store_and_no_host(start: int) -> None:
    chosen = pick(SETTINGS, start, deep=True)
    assert {setting.store for setting in chosen} == set(STORES)
    assert {setting.mode for setting in chosen} == set(MODES)
    assert {setting.host.name for setting in chosen} == {host.name for host in HOSTS}
    assert {setting.host for setting in pick(SETTINGS, start, deep=True, every_host=True)} == set(HOSTS)


async def test_a_host_runs_the_loop_that_it_says(host: Host) -> None:
    if host.loop == "trio":
        assert type(anyio.lowlevel.current_token().native_token).__module__.startswith("trio")
        return
    is_uvloop = isinstance(asyncio.get_running_loop(), uvloop.Loop)
    assert is_uvloop == (host.loop == "uvloop")
    task = asyncio.current_task()
    assert task is not None
    in_a_request = "run_asgi" in repr(task.get_coro())
    assert in_a_request == (host.name == "uvicorn")


async def test_without_a_host_of_its_own_a_test_runs_under_pytest_asyncio(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("asyncio") is not None
    assert type(request.node).__module__.startswith("pytest_asyncio")
