"""What the URL of a store in FoundationDB may say, and what is said where it or the library can't be read."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from workflow_drivers import foundationdb
from workflow_drivers.foundationdb._binding import Settings, load, parse
from workflow_drivers.foundationdb._keys import space_of
from workflow_sdk.driver import open_driver
from workflow_sdk.errors import DefinitionError, StorageError


def test_a_url_names_a_cluster_and_settings() -> None:
    assert parse("fdb://") == Settings(None, "workflow_sdk", 730, 10.0, automatic_idempotency=False)
    assert parse("fdb:///etc/foundationdb/fdb.cluster").cluster_file == "/etc/foundationdb/fdb.cluster"
    assert parse("fdb:///with%20space%3F/%C3%A9.cluster").cluster_file == "/with space?/é.cluster"
    options = "prefix=shop&api_version=740&timeout=2.5&automatic_idempotency=yes"
    assert parse(f"fdb:///c?{options}") == Settings("/c", "shop", 740, 2.5, automatic_idempotency=True)
    assert parse("fdb://?prefix=a%20b").prefix == "a b"
    assert str(parse("fdb:///c?prefix=shop")) == "fdb:///c?prefix=shop"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("fdb://host/fdb.cluster", "fdb:///absolute"),
        ("fdb:/etc/fdb.cluster", "fdb:///absolute"),
        ("fdb:///directory/", "names no cluster file"),
        ("fdb:///nul%00", "names no cluster file"),
        ("fdb://?cluster=x", "unknown option 'cluster'.*api_version, automatic_idempotency, prefix, timeout"),
        ("fdb://?prefix=", "1 to 100 bytes"),
        ("fdb://?prefix=" + "x" * 101, "1 to 100 bytes"),
        ("fdb://?prefix=%ED%B2%80&prefix=b", "twice"),
        ("fdb://?api_version=new", "number from 710"),
        ("fdb://?api_version=700", "number from 710"),
        ("fdb://?api_version=-730", "number from 710"),
        ("fdb://?timeout=soon", "number of seconds"),
        ("fdb://?timeout=0", "number of seconds"),
        ("fdb://?timeout=nan", "number of seconds"),
        ("fdb://?timeout=1&timeout=2", "twice"),
        ("fdb://?automatic_idempotency=maybe", "yes or no"),
        ("fdb://?automatic_idempotency=yes&api_version=710", "api_version=730"),
    ],
)
async def test_a_wrong_url_is_refused(wrong: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        await foundationdb.open(wrong)


def test_prefixes_do_not_leak() -> None:
    spaces = [space_of(prefix) for prefix in ("a", "a\x00b", "ab", "a\x00", "é")]
    for space in spaces:
        for other in spaces:
            inside = space.begin <= other.rows < space.end
            assert inside == (space is other)
            assert (space.begin <= other.chunks_of(b"i" * 16)[1] < space.end) == (space is other)


class _Library:
    """libfdb_c as ctypes shows it: the functions of its version, and no others."""

    def __init__(self, newest: int, *functions: str) -> None:
        self.newest = newest
        for name in functions:
            setattr(self, name, partial(str, name))

    def fdb_get_max_api_version(self) -> int:
        return self.newest


class _Impl(ModuleType):
    """Where the package declares the functions of the library that it was written for."""

    def __init__(self, library: _Library) -> None:
        super().__init__("fdb.impl")
        self._capi: Any = library

    def init_c_api(self) -> None:
        self._capi.fdb_run.argtypes = []
        self._capi.fdb_newest_of_all.argtypes = []


class _Fdb(ModuleType):
    """The package before an API version is chosen, in a process that has chosen another, or without the library."""

    LATEST_API_VERSION = 740

    def __init__(self, error: Exception | None = None, chosen: int | None = None) -> None:
        super().__init__("fdb")
        self.error, self.chosen = error, chosen

    def is_api_version_selected(self) -> bool:
        return self.chosen is not None

    def get_api_version(self) -> int | None:
        return self.chosen

    def api_version(self, version: int) -> None:
        if self.error is not None:
            raise self.error
        self.chosen = version


def _install(monkeypatch: pytest.MonkeyPatch, module: _Fdb, library: _Library | None = None) -> None:
    monkeypatch.setitem(sys.modules, "fdb", module)
    monkeypatch.setitem(sys.modules, "fdb.impl", _Impl(library or _Library(module.LATEST_API_VERSION)))
    monkeypatch.setattr(module, "impl", sys.modules["fdb.impl"], raising=False)


def test_the_api_version_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _Fdb()
    _install(monkeypatch, module)
    first: Any = load(Settings(api_version=730))[0]
    assert first is module
    load(Settings(api_version=730))
    assert module.chosen == 730
    with pytest.raises(DefinitionError, match=r"api_version=740.*has chosen 730.*only once"):
        load(parse("fdb://?api_version=740"))


def test_a_version_that_is_chosen_already_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the application, that uses FoundationDB itself."""
    module = _Fdb()
    _install(monkeypatch, module)
    assert load(parse("fdb://"))[1].api_version == 730
    module.chosen = 710
    assert load(parse("fdb://"))[1].api_version == 710
    for url in ("fdb://?api_version=730", "fdb://?automatic_idempotency=yes"):
        with pytest.raises(DefinitionError, match="has chosen 710"):
            load(parse(url))
    module.chosen = 630
    with pytest.raises(DefinitionError, match=r"api_version=730.*has chosen 630"):
        load(parse("fdb://"))


async def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Exception("Unable to locate the FoundationDB API shared library!")
    _install(monkeypatch, _Fdb(missing))
    with pytest.raises(StorageError, match=r"foundationdb-clients.*pip install.*Unable to locate"):
        await open_driver("fdb://")


async def test_a_library_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old = RuntimeError("API version 740 is not supported by the installed FoundationDB C library.")
    _install(monkeypatch, _Fdb(old))
    with pytest.raises(StorageError, match=r"API version 740 can't be used.*of the cluster's version"):
        await open_driver("fdb://?api_version=740")


def test_a_package_newer_than_the_library_speaks_as_the_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    module, library = _Fdb(), _Library(730, "fdb_run")
    _install(monkeypatch, module, library)
    load(Settings(api_version=730))
    assert module.LATEST_API_VERSION == 730
    declared: Any = library
    assert declared.fdb_run() == "fdb_run"
    with pytest.raises(NotImplementedError, match="too old for fdb_newest_of_all"):
        declared.fdb_newest_of_all()


async def test_a_package_that_does_not_tell_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before 7.3 have it only where they choose."""
    module = _Fdb()
    _install(monkeypatch, module, _Library(710, "fdb_run"))
    monkeypatch.delattr(_Fdb, "LATEST_API_VERSION")
    load(Settings(api_version=710))
    assert module.chosen == 710


def test_the_package_is_what_the_binding_is_taken_for() -> None:
    """Of the real package, as far as it can be seen without its library."""
    found = importlib.util.find_spec("fdb.impl")
    assert found is not None
    assert found.origin is not None
    with open(found.origin) as file:
        source = file.read()
    for signature in (
        "def _get_range(self, begin, end, limit, streaming_mode, iteration, reverse):",
        "def on_ready(self, callback):",
        "def open(cluster_file=None, event_model=None):",
        "def add_read_conflict_key(self, key):",
        "def first_greater_or_equal(cls, key):",
        "def watch(self, key):",
        "self.__snapshot = self.snapshot = TransactionRead(tpointer, db, True)",
    ):
        assert signature in source
    options = importlib.util.find_spec("fdb.fdboptions")
    assert options is not None
    import fdb.fdboptions

    known: Any = fdb.fdboptions
    assert known.MutationType["set_versionstamped_key"][0] == 14
    assert known.TransactionOption["automatic_idempotency"][0] == 505
    assert known.StreamingMode["want_all"][0] == -2
