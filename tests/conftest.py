"""Fixtures of every test, and who runs which test where: `tests/settings.py` says what is chosen, this file does it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests import fdb_store
from tests.hosts import Opening, opening_its_fixtures, run_in
from tests.leftovers import check_nothing_left
from tests.patience import PATIENCE
from tests.settings import HOSTS, PYTEST_ASYNCIO, SETTINGS, TRIO, Host, Setting, pick
from tests.support import World, open_store
from workflow_sdk import Driver

pytest_plugins = ["tests.by_law"]

# What is slow is no failure, however slow.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

Tier: TypeAlias = Literal["quick", "deep", "beyond"]
TIERS: dict[Tier, str] = {
    "quick": "quick: each test in one setting (--deep: everything)",
    "deep": "deep: everything",
    "beyond": "deep, without what the quick tier runs",
}
QUICK_CHAOS, DEEP_CHAOS = "0.2", "0.4"
"""How much the tiers try at random: below 1, the same in every run. `make chaos` tries more, and other things."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The tiers."""
    parser.addoption(
        "--deep",
        action="store_true",
        help="Run everything: tests marked `deep`, every test in several settings, random tests at full length.",
    )
    parser.addoption(
        "--beyond",
        action="store_true",
        help="The same without what the quick tier runs just so: for who has run that one.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Markers, and how much is tried at random, which tests ask for when they are imported."""
    for line in (
        "deep: too long for the quick tier; runs with --deep.",
        "every_host: about the tasks of a worker; with --deep it runs in every host, on every loop.",
        "settings(store=, mode=, host=, loop=): holds only in settings with these parts.",
        "leaves(what): writes or damages rows by itself, which are left when all instances are deleted.",
    ):
        config.addinivalue_line("markers", line)
    os.environ.setdefault("WORKFLOW_SDK_CHAOS", QUICK_CHAOS if _tier(config) == "quick" else DEEP_CHAOS)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is not to be seen from the names of the tests."""
    return [f"tier: {TIERS[_tier(config)]}", fdb_store.described()]


def _tier(config: pytest.Config) -> Tier:
    return "beyond" if config.getoption("--beyond") else "deep" if config.getoption("--deep") else "quick"


def pytest_sessionfinish() -> None:
    """Leave nothing behind where others have data too."""
    fdb_store.clear_all()


# Which tests run, and in which settings.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests about workers are for every host that can run them, also those that ask for no fixture of settings."""
    is_for_every_host = metafunc.definition.get_closest_marker("every_host") is not None
    if is_for_every_host and iscoroutinefunction(metafunc.function) and not {*_NAMES} & {*metafunc.fixturenames}:
        metafunc.fixturenames.append("host")
        metafunc.parametrize("host", [host for host in HOSTS if host != TRIO], ids=str)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class) -> Generator[None, Any, Any]:
    """Choose the settings of a test, and give it to its host.

    It comes last and is the innermost: pytest-asyncio then finds its marker on the tests that are its own.
    """
    found = yield
    if not isinstance(found, list) or not all(isinstance(item, pytest.Function) for item in found):
        return found
    chosen = list(_in_their_settings(found, _tier(collector.config)))
    for item in chosen:
        host = _host(item)
        if iscoroutinefunction(item.obj):
            item.obj = opening_its_fixtures(item.obj)
        if host == PYTEST_ASYNCIO:
            item.add_marker("asyncio")
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of the quick tier what is too long for it, and of the one beyond it what it runs just so."""
    tier = _tier(config)
    if tier == "deep":
        return
    out = {item for item in items if (_is_quick(item) if tier == "beyond" else item.get_closest_marker("deep"))}
    if out:
        config.hook.pytest_deselected(items=[*out])
        items[:] = [item for item in items if item not in out]


def _is_quick(item: pytest.Item) -> bool:
    """Whether the quick tier runs a test as every other does: in no setting, and not at random."""
    is_random = hasattr(getattr(item, "obj", None), "hypothesis")
    return not is_random and item.get_closest_marker("deep") is None and _where(item) is None


def _in_their_settings(items: Iterable[pytest.Function], tier: Tier) -> Iterator[pytest.Function]:
    """The items of one test function, each case only in the settings that are chosen for it."""
    cases: dict[str, dict[Where, pytest.Function]] = {}
    for item in items:
        where = _where(item)
        if where is None:
            yield item
        else:
            cases.setdefault(item.callspec.id.replace(str(where), "", 1), {})[where] = item
    for number, by_place in enumerate(cases.values()):
        item = next(iter(by_place.values()))
        possible = [where for where in by_place if _holds_in(item, where)]
        assert possible, f"{item.nodeid} holds in no setting that there is"
        assert item.parent is not None, "a test is in a module or a class"
        start = crc32(f"{item.parent.name}.{item.originalname}".encode()) + number
        every_host = item.get_closest_marker("every_host") is not None
        chosen = pick(possible, start, deep=tier != "quick", every_host=every_host)
        # The first one is that of the quick tier, where a random test tries less.
        if tier == "beyond" and item.get_closest_marker("deep") is None and not hasattr(item.obj, "hypothesis"):
            chosen = list(chosen)[1:]
        yield from (by_place[where] for where in chosen)


Where: TypeAlias = Setting | Host
_NAMES = ("setting", "place", "host")


def _where(item: pytest.Item) -> Where | None:
    """The setting of a test, or only the host, if it is not tied to one."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for name in _NAMES:
        found = params.get(name)
        if isinstance(found, Setting | Host):
            return found
    return None


def _holds_in(item: pytest.Function, where: Where) -> bool:
    """Whether the marks of a test allow a setting."""
    host = where.host if isinstance(where, Setting) else where
    parts: dict[str, str] = {"host": host.name, "loop": host.loop}
    if isinstance(where, Setting):
        parts |= {"store": where.store, "mode": where.mode}
    return all(
        parts[name] in ((wanted,) if isinstance(wanted, str) else wanted)
        for mark in item.iter_markers("settings")
        for name, wanted in mark.kwargs.items()
    )


def _host(item: pytest.Item) -> Host | None:
    """Who runs an async test; nobody has to run one that is not."""
    function = item.obj if isinstance(item, pytest.Function) else None
    if not iscoroutinefunction(getattr(getattr(function, "hypothesis", None), "inner_test", function)):
        return None
    where = _where(item) or PYTEST_ASYNCIO
    return where.host if isinstance(where, Setting) else where


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests whose host is no plugin."""
    host = _host(pyfuncitem)
    if host is None or host in (PYTEST_ASYNCIO, TRIO):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters}
    run_in(host, partial(pyfuncitem.obj, **arguments))
    return True


@pytest.fixture(autouse=True)
def anyio_backend(request: pytest.FixtureRequest) -> str | None:
    """By this, anyio's plugin knows which tests are its own."""
    return "trio" if _host(request.node) == TRIO else None


# What tests are given.


@pytest.fixture(autouse=True, scope="session")
def _no_second_look() -> Iterator[None]:
    """Whoever waits in FoundationDB is woken by the watch, and not because it is looked at again after a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflow_drivers.foundationdb._watch.LOOK_SECONDS", 3600.0)
        yield


@pytest.fixture(params=SETTINGS, ids=str)
def setting(request: pytest.FixtureRequest) -> Setting:
    """A store, a mode of running, and who runs the event loop."""
    found = request.param
    assert isinstance(found, Setting)
    return found


@pytest.fixture(params=HOSTS, ids=str)
def host(request: pytest.FixtureRequest) -> Host:
    """Only who runs the event loop: for what has to do with no store."""
    found = request.param
    assert isinstance(found, Host)
    return found


@pytest.fixture
def world(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Opening[World]:
    """A store and a clock, and someone who runs instances on them to their end."""
    # Times are looked at to the second, and a plain function may be kept waiting for its thread.
    monkeypatch.setattr("workflow_sdk.testing.clock.SHORT_SECONDS", PATIENCE)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[World]:
        driver = await open_store(setting.store, tmp_path)
        try:
            yield World(setting, driver, tmp_path)
            await _check_nothing_left(driver, request)
        finally:
            await driver.aclose()

    return Opening(opened)


@pytest.fixture(params=SETTINGS, ids=str)
def place(request: pytest.FixtureRequest) -> Setting:
    """A kind of store, and who runs the event loop. A runtime has no mode."""
    found = request.param
    assert isinstance(found, Setting)
    return found


@pytest.fixture
def driver(place: Setting, tmp_path: Path, request: pytest.FixtureRequest) -> Opening[Driver]:
    """An open store."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Driver]:
        found = await open_store(place.store, tmp_path)
        try:
            yield found
            await _check_nothing_left(found, request)
        finally:
            await found.aclose()

    return Opening(opened)


async def _check_nothing_left(driver: Driver, request: pytest.FixtureRequest) -> None:
    """After a test that has passed, unless it says what it leaves behind."""
    if request.node.get_closest_marker("leaves") is None:
        await check_nothing_left(driver)
