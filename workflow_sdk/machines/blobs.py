"""What snapshots consist of, in the store: bytes by their hashes, the roots that lead to them, and their collection.

Who stores a snapshot writes its parts first, and then, in one commit, that they are all there. Who collects deletes
parts that no root leads to. Both count the generation on, and go on only while it is the one that they began with; so
nobody deletes what somebody else has just found to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from workflow_sdk.changes.apply import apply
from workflow_sdk.changes.change import Get, Steps, Writing, change, write
from workflow_sdk.driver import Clear, Driver, Set
from workflow_sdk.errors import CodecError, DefinitionError
from workflow_sdk.machines.index import hash_of, pages_of, read_index
from workflow_sdk.machines.rows import (
    BLOBS,
    GENERATION,
    NEWEST,
    ROOTS,
    BlobRow,
    GenerationRow,
    RootRow,
    SnapshotRow,
    blob_key,
    newest_key,
    root_key,
)
from workflow_sdk.rows.location import subtree, unpack
from workflow_sdk.rows.wire import shown
from workflow_sdk.values import Codec

ROWS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1 << 20
"""How much is written in one commit, and how many rows are deleted in one."""
_PAGE: Final = 64


# Parts.


async def fetch(driver: Driver, codec: Codec, hashes: Iterable[str]) -> dict[str, bytes]:
    """The bytes that have these hashes; CodecError, if some are missing or damaged."""
    found: dict[str, bytes] = {}
    for hashed in hashes:
        try:
            place = blob_key(hashed)
        except (ValueError, TypeError):
            raise CodecError(f"{shown(hashed)} is no hash") from None
        raw = await driver.get(place)
        if raw is None:
            raise CodecError(f"the bytes of {hashed} are not there: the snapshot was not pinned, and is deleted")
        data = codec.unseal(BlobRow.unpack(raw).data)
        if hash_of(data) != hashed:
            raise CodecError(f"the bytes of {hashed} have another hash: they are damaged")
        found[hashed] = data
    return found


async def fetch_index(driver: Driver, codec: Codec, root: str) -> dict[str, bytes]:
    """The index that has this root: the pages, and what the root is the hash of."""
    top = await fetch(driver, codec, [root])
    return top | await fetch(driver, codec, pages_of(top[root]))


async def fetch_all(driver: Driver, codec: Codec, root: str) -> dict[str, bytes]:
    """Everything that a snapshot consists of."""
    index = await fetch_index(driver, codec, root)
    return index | await fetch(driver, codec, states_of(root, index))


def states_of(root: str, index: Mapping[str, bytes]) -> set[str]:
    """The hashes of the states in an index."""
    return {entry.state_hash.hex() for entry in read_index(root, index.__getitem__)}


async def put(driver: Driver, codec: Codec, blobs: Mapping[str, bytes]) -> None:
    """Store bytes by their hashes, some at a time."""
    writes: list[Set] = []
    size = 0
    for hashed, data in blobs.items():
        writes.append(Set(blob_key(hashed), BlobRow(codec.seal(data)).pack()))
        size += len(data)
        if len(writes) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            await apply(driver, write(writes))
            writes, size = [], 0
    if writes:
        await apply(driver, write(writes))


# Roots.


async def generation(driver: Driver) -> int:
    """How often roots and parts were changed."""
    return _number(await driver.get(GENERATION))


def _number(raw: bytes | None) -> int:
    return 0 if raw is None else GenerationRow.unpack(raw).number


def _count_on(expected: int | None) -> Steps[bool]:
    """Count the generation on; False, if it is not the expected one."""
    number = _number((yield Get(GENERATION)))
    if expected not in (None, number):
        return False
    yield Set(GENERATION, GenerationRow(number + 1).pack())
    return True


@change
def store_newest(machine: str, row: SnapshotRow, expected: int) -> Steps[bool]:
    """Make a snapshot the newest one, whose parts were stored in this generation; False, if it is over."""
    if not (yield from _count_on(expected)):
        return False
    place = root_key(row.root)
    if (yield Get(place)) is None:
        yield Set(place, RootRow().pack())
    yield Set(newest_key(machine), row.pack())
    return True


@change
def set_pin(root: str, *, pinned: bool) -> Steps[None]:
    """Pin a root, or not any more. DefinitionError, if there is no such snapshot, and so nothing to be pinned."""
    try:
        place = root_key(root)
    except (ValueError, TypeError):
        raise DefinitionError(f"root is that of a snapshot, not {shown(root)}") from None
    raw = yield Get(place)
    if raw is None and pinned:
        raise DefinitionError(f"there is no snapshot with the root {shown(root)}")
    if raw is None or RootRow.unpack(raw).pinned == pinned:
        return
    yield from _count_on(None)
    yield Set(place, RootRow(pinned).pack())


@change
def _delete(keys: list[bytes], expected: int) -> Steps[bool]:
    if not (yield from _count_on(expected)):
        return False
    writes: list[Writing] = [Clear(key) for key in keys]
    yield writes
    return True


# Collection.


async def collect(driver: Driver, codec: Codec) -> int:
    """Delete what neither a pinned root nor the newest snapshot of a machine leads to; return how many rows it was."""
    deleted = 0
    while True:
        number = await generation(driver)
        # The roots come first: nobody can pin one from then on of which parts are gone.
        kept, over = await _roots(driver)
        try:
            needed = await _needed(driver, codec, kept)
        except CodecError:
            if await generation(driver) == number:
                raise
            continue  # somebody else collects, too
        over += await _unneeded(driver, needed)
        for start in range(0, len(over), ROWS_AT_ONCE):
            keys = over[start : start + ROWS_AT_ONCE]
            if not await apply(driver, _delete(keys, number)):
                break  # somebody has stored or pinned something: look again
            deleted += len(keys)
            number += 1
        else:
            return deleted


async def _roots(driver: Driver) -> tuple[set[str], list[bytes]]:
    """The roots that are kept, and the rows of those that are not."""
    kept: set[str] = set()
    over: list[bytes] = []

    def see_newest(key: bytes, raw: bytes) -> None:
        kept.add(SnapshotRow.unpack(raw).root)

    def see_root(key: bytes, raw: bytes) -> None:
        root = _hash_in(key, ROOTS)
        if RootRow.unpack(raw).pinned or root in kept:
            kept.add(root)
        else:
            over.append(key)

    await _see_all(driver, NEWEST, see_newest)
    await _see_all(driver, ROOTS, see_root)
    return kept, over


async def _needed(driver: Driver, codec: Codec, roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for root in sorted(roots):
        index = await fetch_index(driver, codec, root)
        found |= index.keys() | states_of(root, index)
    return found


async def _unneeded(driver: Driver, needed: set[str]) -> list[bytes]:
    found: list[bytes] = []

    def see(key: bytes, raw: bytes) -> None:
        if _hash_in(key, BLOBS) not in needed:
            found.append(key)

    await _see_all(driver, BLOBS, see)
    return found


async def _see_all(driver: Driver, prefix: bytes, see: Callable[[bytes, bytes], None]) -> None:
    begin, end = subtree(prefix)
    while rows := await driver.scan(begin, end, limit=_PAGE):
        for key, raw in rows:
            see(key, raw)
        begin = rows[-1][0] + b"\x00"


def _hash_in(key: bytes, prefix: bytes) -> str:
    (hashed,) = unpack(key[len(prefix) :])
    if not isinstance(hashed, bytes):
        raise CodecError(f"a key in the store is not of this library's making: {key!r:.100}")
    return hashed.hex()
