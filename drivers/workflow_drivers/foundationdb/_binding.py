"""What is used of the `foundationdb` package, with types. No other module of the driver imports it.

The package defines most of its names, and loads the C library, only when an API version is chosen, which can be done
once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol, cast

from workflow_drivers.foundationdb._url import API_VERSION_MIN, IDEMPOTENCY_API_VERSION_MIN, Settings
from workflow_sdk.errors import DefinitionError, StorageError


class Future(Protocol):
    """A result to come. Its callbacks run in the network thread, or at once if it is ready."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], object], /) -> None: ...
    def cancel(self) -> None: ...
    def wait(self) -> Any:
        """Return the result, or raise the error. Only for futures that are ready: others block the thread."""
        ...


class Value(Future, Protocol):
    """The future value of a key."""

    @property
    def value(self) -> bytes | None: ...


class KeyValue(Protocol):
    """A row."""

    key: bytes
    value: bytes


class Options(Protocol):
    """What can be set for one transaction."""

    def set_automatic_idempotency(self) -> None: ...


class Reads(Protocol):
    """A transaction, or its snapshot, whose reads do not conflict with writes of others."""

    def get(self, key: bytes, /) -> Value: ...
    def get_range(
        self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Iterable[KeyValue]: ...
    def _get_range(
        self, begin: Any, end: Any, limit: int, streaming_mode: int, iteration: int, reverse: bool, /
    ) -> Future: ...


class Transaction(Reads, Protocol):
    """Reads and writes that take effect together."""

    @property
    def snapshot(self) -> Reads: ...
    @property
    def options(self) -> Options: ...
    def get_read_version(self) -> Future: ...
    def set(self, key: bytes, value: bytes, /) -> None: ...
    def clear(self, key: bytes, /) -> None: ...
    def clear_range(self, begin: bytes, end: bytes, /) -> None: ...
    def set_versionstamped_key(self, key: bytes, value: bytes, /) -> None: ...
    def add_read_conflict_key(self, key: bytes, /) -> None: ...
    def watch(self, key: bytes, /) -> Future: ...
    def add_read_conflict_range(self, begin: bytes, end: bytes, /) -> None: ...
    def add_write_conflict_key(self, key: bytes, /) -> None: ...
    def add_write_conflict_range(self, begin: bytes, end: bytes, /) -> None: ...
    def commit(self) -> Future: ...
    def on_error(self, error: Any, /) -> Future: ...
    def cancel(self) -> None: ...


class Database(Protocol):
    """A connection to a cluster. The binding has one for each cluster file, which all threads share."""

    def create_transaction(self) -> Transaction: ...


class _KeySelectors(Protocol):
    def first_greater_or_equal(self, key: bytes, /) -> Any: ...
    def first_greater_than(self, key: bytes, /) -> Any: ...


class Binding(Protocol):
    """The module `fdb` after an API version was chosen."""

    @property
    def FDBError(self) -> type[Exception]: ...
    @property
    def KeySelector(self) -> _KeySelectors: ...
    @property
    def StreamingMode(self) -> Any: ...
    def open(self, cluster_file: str | None = None, event_model: str | None = None) -> Database: ...


def code_of(error: BaseException) -> int:
    """The number of an error of the binding's."""
    return int(cast("Any", error).code)


def get_range(
    binding: Binding, reads: Reads, begin: bytes, end: bytes, limit: int, reverse: bool, after: bytes | None, page: int
) -> Future:
    """One page of the rows from `begin` up to `end`; a limit of 0 is none. Pages after the first come after `after`.

    The iterator of the public `get_range` blocks its thread between pages. So this makes the call that the iterator
    makes, whose result is `(rows, count, more)`.
    """
    selectors = binding.KeySelector
    first, last = selectors.first_greater_or_equal(begin), selectors.first_greater_or_equal(end)
    if after is not None:
        # As the iterator does it. The end of a range is not in it, so in reverse the last row ends the next page.
        if reverse:
            last = selectors.first_greater_or_equal(after)
        else:
            first = selectors.first_greater_than(after)
    mode = binding.StreamingMode.want_all
    return reads._get_range(first, last, limit, mode, page, reverse)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # see above


def rows_of(future: Future) -> tuple[Sequence[KeyValue], bool]:
    """The rows of a page that is ready, and whether there are more."""
    rows, _, more = future.wait()
    return rows, bool(more)


_loading = Lock()

INSTALL = (
    "fdb:// needs FoundationDB's client library, libfdb_c, which pip does not install: take the package "
    "`foundationdb-clients` of your cluster's version from https://github.com/apple/foundationdb/releases, and the "
    "Python package of the same version: pip install 'foundationdb==<that version>'"
)


def _accept_older_library(module: Any) -> None:
    """Let the package work with a C library that is older than the package, as the cluster may need one.

    The package tells the library its own version, which an older library refuses, and looks for all functions of that
    version. What it does with transactions has been the same for many versions.
    """
    import fdb.impl

    impl = cast("Any", fdb.impl)
    library = impl._capi  # noqa: SLF001  # the binding has no public way to ask for the library's version
    known = int(library.fdb_get_max_api_version())
    if known >= getattr(module, "LATEST_API_VERSION", 0):  # packages before 7.3 do not say theirs
        return
    module.LATEST_API_VERSION = known
    for name in impl.init_c_api.__code__.co_names:
        if name.startswith("fdb_") and not hasattr(library, name):
            setattr(library, name, _missing(name))


def _missing(name: str) -> Callable[..., Any]:
    def missing(*args: object) -> Any:
        raise NotImplementedError(f"the FoundationDB client library is too old for {name}")

    return missing


def as_chosen(settings: Settings) -> Settings:
    """The settings, with the API version that this process has chosen before, if the URL names none."""
    import fdb

    module = cast("Any", fdb)
    with _loading:
        if settings.names_api_version or not module.is_api_version_selected():
            return settings
        chosen = int(module.get_api_version())
    # A version that is too old is refused by `load`.
    needed = IDEMPOTENCY_API_VERSION_MIN if settings.automatic_idempotency else API_VERSION_MIN
    return replace(settings, api_version=chosen) if chosen >= needed else settings


def load(settings: Settings) -> Binding:
    """The binding at the API version of the settings. Raises StorageError, which says what to install."""
    import fdb

    module = cast("Any", fdb)
    with _loading:
        if module.is_api_version_selected() and module.get_api_version() != settings.api_version:
            raise DefinitionError(
                f"api_version={settings.api_version} can't be had: this process has chosen {module.get_api_version()} "
                "for FoundationDB before, and it can be chosen only once"
            )
        try:
            if not module.is_api_version_selected():
                _accept_older_library(module)
            module.api_version(settings.api_version)
        except RuntimeError as error:
            # The library does not know this API version, or the package does not.
            raise StorageError(
                f"the API version {settings.api_version} can't be used: {error} Give the one of the cluster, or an "
                "older one, as `api_version`; the client library is to be of the cluster's version"
            ) from error
        except Exception as error:
            raise StorageError(f"{INSTALL} ({error})") from error
    return cast("Binding", module)
