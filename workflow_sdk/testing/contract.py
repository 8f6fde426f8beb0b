"""What every driver promises, as checks that any driver can be put to. No pytest needed.

    async def make() -> Driver:                     # a fresh, empty store
        return await open_driver("memory://")

    async def test_my_driver():
        await check_driver(make)

Each of `CHECKS` is an async function that takes `make`, opens one store and closes it. It raises AssertionError, saying
which promise was broken. A store may refuse what is too large for it, by a StorageLimitError that names the limit.
They run on asyncio and on trio.
"""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from workflow_sdk.driver import (
    APPENDED_BYTES_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Append,
    Batch,
    Clear,
    ClearRange,
    Driver,
    Set,
)
from workflow_sdk.errors import ConflictError, StorageError
from workflow_sdk.testing._promises import (
    CHECKS,
    STILLNESS_SECONDS,
    Check,
    Make,
    Reopen,
    all_rows,
    appends,
    batch_of,
    checkpoints,
    expect,
    expect_error,
    fits,
    holds_promise,
    in_time,
    sets,
)

__all__ = ["CHECKS", "Check", "Make", "Reopen", "check_driver", "check_durability"]


async def check_driver(make: Make, *, reopen: Reopen | None = None) -> None:
    """Put a driver to every check, one fresh store each; with `reopen`, to `check_durability` too."""
    for check in CHECKS:
        await check(make)
    if reopen is not None:
        await check_durability(make, reopen)


async def check_durability(make: Make, reopen: Reopen) -> None:
    """What was committed is there when the store is opened again, and appends go on after the ones before."""
    driver = await make()
    try:
        for number in range(3):
            await driver.commit(sets({b"k%d" % number: b"v"}))
            await driver.commit(appends(b"q", b"m%d" % number))
        first = await all_rows(driver)
        driver = await reopen(driver)
        expect(await all_rows(driver) == first, "an opened store has what was committed before")
        await driver.commit(batch_of(Clear(first[-1][0])))
        driver = await reopen(driver)
        await driver.commit(appends(b"q", b"new"))
        last = (await all_rows(driver))[-1]
        expect(last[1] == b"new" and last[0] > first[-1][0], "an append sorts after all before the store was reopened")
    finally:
        await driver.aclose()


@holds_promise
async def check_reads_what_was_committed(driver: Driver) -> None:
    expect(await driver.get(b"k") is None, "an absent key is None")
    for value in (b"one", b"two", b"", b"\x00\xff" * 50):
        await driver.commit(sets({b"k": value}))
        expect(await driver.get(b"k") == value, f"get returns what was set: {value!r}")
        expect(await driver.scan(b"k", b"l") == [(b"k", value)], f"scan returns what was set: {value!r}")
    await driver.commit(batch_of(Clear(b"k"), Clear(b"never")))
    expect(await driver.get(b"k") is None, "a cleared key is absent")
    await driver.commit(Batch())
    expect(await all_rows(driver) == [], "an empty batch changes nothing")


@holds_promise
async def check_scans_in_byte_order(driver: Driver) -> None:
    tails = (b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff")
    keys = [b"a" + tail for tail in tails] + [b"b", b"\xc3\xa9"]
    await driver.commit(sets({key: key * 2 for key in reversed(keys)}))
    rows = [(key, key * 2) for key in keys]
    expect(await all_rows(driver) == rows, "rows come in byte order")
    expect(await driver.scan(b"", b"\xff", reverse=True) == rows[::-1], "and in its reverse")
    expect(await driver.scan(b"a\x00", b"b") == rows[1:9], "the begin is in the range, the end is not")
    expect(await driver.scan(b"a\x00", b"b", reverse=True) == rows[8:0:-1], "in reverse too")
    for limit in (0, 1, 3, 100):
        expect(await driver.scan(b"a\x00", b"b", limit=limit) == rows[1:9][:limit], f"limit={limit}")
        back = await driver.scan(b"a\x00", b"b", limit=limit, reverse=True)
        expect(back == rows[8:0:-1][:limit], f"limit={limit} from the end")
    for begin, end in ((b"b", b"b"), (b"b", b"a"), (b"c", b"d")):
        expect(await driver.scan(begin, end) == [], f"no rows from {begin!r} to {end!r}")


@holds_promise
async def check_prefixes_do_not_leak(driver: Driver) -> None:
    # As tuples, ("a",) and ("a\x00b",): the first, packed, is a prefix of the second; its subtree is from 00 to ff.
    inner, other, longer = b"\x02a\x00", b"\x02a\x00\xffb\x00", b"\x02ab\x00"
    everything = {space + b"\x15\x01": space for space in (inner, other, longer)}
    await driver.commit(sets(everything))
    for space in (inner, other, longer):
        rows = await driver.scan(space + b"\x00", space + b"\xff")
        expect(rows == [(space + b"\x15\x01", space)], f"the range of {space!r} has only its own rows")
        await driver.commit(appends(space, b"new"))
        expect(len(await driver.scan(space + b"\x00", space + b"\xff")) == 2, f"an append to {space!r} goes there")
    await driver.commit(batch_of(ClearRange(inner + b"\x00", inner + b"\xff")))
    left = [key for key, _ in await all_rows(driver)]
    expect(len(left) == 4, "clearing a subtree leaves its neighbours")
    expect(all(key.startswith((other, longer)) for key in left), "clearing a subtree clears it")


@holds_promise
async def check_a_commit_is_seen_whole(driver: Driver) -> None:
    keys = [b"k%02d" % number for number in range(20)]
    done = anyio.Event()

    async def write() -> None:
        for number in range(40):
            await driver.commit(sets(dict.fromkeys(keys, b"%d" % number)))
            await checkpoint()
        done.set()

    await driver.commit(sets(dict.fromkeys(keys, b"first")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        while not done.is_set():
            rows = await driver.scan(b"k", b"l")
            expect(len(rows) == 20 and len({value for _, value in rows}) == 1, "a scan sees one state")
            await checkpoint()
    expect(await driver.get(keys[0]) == b"39", "a read that follows a commit sees it")


@holds_promise
async def check_nothing_is_written_if_a_check_fails(driver: Driver) -> None:
    await driver.commit(sets({b"here": b"1", b"empty": b""}))
    before = await all_rows(driver)
    wrong = ((b"here", None), (b"here", b"2"), (b"here", b""), (b"absent", b"1"), (b"absent", b""), (b"empty", None))
    for key, expected in wrong:
        batch = batch_of(Set(b"here", b"9"), Set(b"new", b"9"), Append(b"q", b"9"), ClearRange(b"", b"\xff"))
        batch.checks += [(b"here", b"1"), (key, expected)]
        await expect_error(ConflictError, driver.commit(batch), f"check({key!r}, {expected!r}) does not hold")
        expect(await all_rows(driver) == before, "a batch with a conflict writes nothing")
    holding = {b"absent": None, b"here": b"1", b"empty": b""}
    await driver.commit(batch_of(Set(b"absent", b"9"), Set(b"here", b"3"), checks=holding))
    expect(await driver.get(b"here") == b"3", "checks that hold let the batch through; they see what was before it")
    only = driver.commit(batch_of(checks={b"here": b"1"}))
    await expect_error(ConflictError, only, "a batch of checks alone is checked")


@holds_promise
async def check_racing_commits(driver: Driver) -> None:
    outcomes: list[str] = []

    async def claim(owner: bytes) -> None:
        try:
            await driver.commit(batch_of(Set(b"lease", owner), checks={b"lease": None}))
            outcomes.append("won")
        except ConflictError:
            outcomes.append("lost")

    async def count() -> None:
        for _ in range(5):
            while True:
                seen = await driver.get(b"count")
                try:
                    more = Set(b"count", b"%d" % (int(seen or b"0") + 1))
                    await driver.commit(batch_of(more, checks={b"count": seen}))
                    break
                except ConflictError:
                    await checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(claim, b"%d" % number)
            tasks.start_soon(count)
    expect(sorted(outcomes) == ["lost"] * 7 + ["won"], f"of racing commits exactly one wins, not {outcomes}")
    expect(await driver.get(b"count") == b"40", "check and write are one step: no increment is lost")


@holds_promise
async def check_writes_in_their_order(driver: Driver) -> None:
    await driver.commit(sets({b"a1": b"old", b"a2": b"old", b"b": b"old"}))
    batch = batch_of(Set(b"a1", b"lost"), Set(b"a3", b"lost"), ClearRange(b"a", b"b"), Set(b"a2", b"kept"))
    batch.writes += [Clear(b"b"), Set(b"b", b"first"), Set(b"b", b"last"), Set(b"c", b"lost"), Clear(b"c")]
    batch.writes += [Append(b"q", b"lost"), ClearRange(b"q", b"r"), Append(b"q", b"kept")]
    batch.writes.append(ClearRange(b"z", b"b"))  # the wrong way round: no keys
    await driver.commit(batch)
    rows = await all_rows(driver)
    expect(rows[:2] == [(b"a2", b"kept"), (b"b", b"last")], "the writes of a batch take effect in their order")
    expect([value for _, value in rows[2:]] == [b"kept"], "appends too have their place in that order")


@holds_promise
async def check_appends_keep_their_order(driver: Driver) -> None:
    sent: list[bytes] = []
    highest = b""
    for turn in range(6):
        values = [b"%d.%d" % (turn, number) for number in range(3)]
        await driver.commit(batch_of(*(Append(b"q", value) for value in values), Append(b"other", b"x")))
        sent += values
        rows = await driver.scan(b"q", b"r")
        expect([value for _, value in rows] == sent, "appended rows come in the order of their commits")
        expect(rows[0][0] > highest, "an append sorts after keys that have been cleared, too")
        for key, _ in rows:
            added = key.removeprefix(b"q")
            expect(0 < len(added) <= APPENDED_BYTES_MAX, "an appended key is its prefix and 1 to 64 bytes more")
            expect(added < b"\xff", "an appended key sorts before the prefix followed by 0xFF, as all below it do")
        if turn % 2:
            highest, sent = rows[-1][0], []
            await driver.commit(batch_of(ClearRange(b"q", b"r")))
    expect(len(await driver.scan(b"other", b"othes")) == 6, "appends to another prefix stay there")


@holds_promise
async def check_concurrent_appends(driver: Driver) -> None:
    async def send(sender: int) -> None:
        for number in range(5):
            await driver.commit(appends(b"q", b"%02d.%d.0" % (sender, number), b"%02d.%d.1" % (sender, number)))

    async with anyio.create_task_group() as tasks:
        for sender in range(10):
            tasks.start_soon(send, sender)
    values = [value for _, value in await driver.scan(b"q", b"r")]
    expect(len(set(values)) == len(values) == 100, "no append overwrites another")
    for sender in range(10):
        own = [value for value in values if value.startswith(b"%02d" % sender)]
        expect(own == sorted(own), "what is appended later sorts later")


@holds_promise
async def check_changed_returns_at_once(driver: Driver) -> None:
    await driver.commit(sets({b"k": b"1"}))
    for key, since in ((b"k", None), (b"k", b"0"), (b"k", b""), (b"absent", b"1"), (b"absent", b"")):
        async with in_time(f"changed({key!r}, {since!r}) returns at once, since the value is another one"):
            await driver.changed(key, since)


@holds_promise
async def check_changed_waits_for_another_value(driver: Driver) -> None:
    woken: list[bytes | None] = []

    async def wait(since: bytes | None, enough: anyio.Event) -> None:
        await driver.changed(b"k", since)
        woken.append(since)
        if len(woken) == 5:
            enough.set()

    seen: bytes | None = None
    for write in (Set(b"k", b"1"), Set(b"k", b"2"), Clear(b"k"), Set(b"k", b""), ClearRange(b"a", b"z")):
        woken.clear()
        enough = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait, seen, enough)
            await anyio.sleep(STILLNESS_SECONDS)
            same = [] if seen is None else [Set(b"k", seen)]
            await driver.commit(batch_of(*same, Set(b"kk", b"another key"), Clear(b"k\x00")))
            await anyio.sleep(STILLNESS_SECONDS)
            expect(not woken, "changed goes on waiting while the value is the same")
            await driver.commit(batch_of(write))
            async with in_time(f"all who wait for another value than {seen!r} see the change"):
                await enough.wait()
        seen = await driver.get(b"k")


@holds_promise
async def check_no_change_is_missed(driver: Driver) -> None:
    async def follow() -> None:
        seen: bytes | None = None
        while seen != b"99":
            await driver.changed(b"k", seen)
            seen = await driver.get(b"k")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        for number in range(100):
            await driver.commit(sets({b"k": b"%d" % number}))
            if number % 3 == 0:
                await checkpoint()


@holds_promise
async def check_cancelled_waits(driver: Driver) -> None:
    for count in range(8):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.changed, b"k", None)
            await checkpoints(count)
            tasks.cancel_scope.cancel()
    with anyio.move_on_after(STILLNESS_SECONDS):
        await driver.changed(b"k", None)
    await driver.commit(sets({b"k": b"1"}))
    await driver.changed(b"k", None)
    expect(await driver.get(b"k") == b"1", "a cancelled wait leaves the driver usable")


@holds_promise
async def check_values_of_all_sizes(driver: Driver) -> None:
    for size in (0, 1, 99_999, 100_000, 100_001, 1_000_000, VALUE_BYTES_MAX):
        value = (b"%09d" % size * (size // 9 + 1))[:size]
        if await fits(driver, sets({b"v": value, b"w": b"%d" % size})):
            expect(await driver.get(b"v") == value, f"a value of {size:,} bytes is read as it was written")
            rows = await driver.scan(b"v", b"x")
            expect(rows == [(b"v", value), (b"w", b"%d" % size)], f"scan returns a value of {size:,} bytes in one row")
            expect(await driver.scan(b"v", b"x", limit=1) == rows[:1], "and counts it as one")
            await driver.commit(batch_of(Set(b"v", b"small"), checks={b"v": value}))
    expect(await driver.get(b"v") == b"small", "a large value can be checked, and replaced")
    expect(len(await all_rows(driver)) == 2, "nothing is left of large values")


@holds_promise
async def check_large_batches(driver: Driver) -> None:
    rows = {b"k%05d" % number: b"%d" % number for number in range(10_000)}
    if not await fits(driver, sets(rows)):
        return
    expect(await driver.scan(b"k", b"l") == sorted(rows.items()), "a batch of 10,000 keys is written")
    await driver.commit(batch_of(ClearRange(b"k00001", b"k09999")))
    expect(len(await driver.scan(b"k", b"l")) == 2, "and a range of them cleared")


@holds_promise
async def check_what_is_too_large(driver: Driver) -> None:
    key, long_key = b"k" * KEY_BYTES_MAX, b"k" * (KEY_BYTES_MAX + 1)
    for batch in (sets({b"a": b"1", key: b"1"}), sets({b"a": b"1", long_key: b"1"}), appends(key, b"1")):
        await fits(driver, batch)
    await fits(driver, sets({b"a": b"1", b"b": bytes(VALUE_BYTES_MAX + 1)}))
    await driver.commit(sets({b"a": b"fine"}))
    expect(await driver.get(b"a") == b"fine", "a refused batch leaves the driver usable")


@holds_promise
async def check_cancelled_commits(driver: Driver) -> None:
    for count in range(40):
        pair = {b"a": b"%d" % count, b"b": b"%d" % count}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.commit, sets(pair))
            tasks.start_soon(driver.commit, sets({b"sibling": b"%d" % count}))
            tasks.start_soon(driver.scan, b"", b"\xff")
            tasks.start_soon(driver.get, b"a")
            if count < 20:
                await checkpoints(count)
            else:
                await anyio.sleep((count - 20) / 10_000)
            tasks.cancel_scope.cancel()
        first = await driver.scan(b"a", b"c")
        expect(len({value for _, value in first}) <= 1 and len(first) in (0, 2), "a cancelled commit is all or nothing")
        await checkpoints(3)
        expect(await driver.scan(b"a", b"c") == first, "when it returns, a cancelled commit has happened or never will")
        await driver.commit(sets({b"a": b"after", b"b": b"after"}))
        rows = await driver.scan(b"a", b"c")
        expect(
            rows == [(b"a", b"after"), (b"b", b"after")], "what is committed after a cancelled commit comes after it"
        )


@holds_promise
async def check_closing(driver: Driver) -> None:
    await driver.commit(sets({b"k": b"1"}))
    await driver.aclose()
    await driver.aclose()
    closed = "a closed driver refuses every call"
    await expect_error(StorageError, driver.get(b"k"), closed)
    await expect_error(StorageError, all_rows(driver), closed)
    await expect_error(StorageError, driver.commit(sets({b"k": b"2"})), closed)
    await expect_error(StorageError, driver.changed(b"k", b"1"), closed)
