"""Move money between accounts that are rows of the store itself: exactly once, although the process dies after it.

python examples/accounts.py
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path

from workflow_sdk import Context, StepError, open_driver, run_workflow, workflow
from workflow_sdk.testing import FaultyDriver, SimulatedCrash

BEFORE = """
CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
INSERT INTO account VALUES ('ada', 10000), ('bob', 0);
"""


def move(db: sqlite3.Connection, source: str, target: str, cents: int) -> int:
    db.execute("UPDATE account SET cents = cents - ? WHERE name = ?", (cents, source))
    db.execute("UPDATE account SET cents = cents + ? WHERE name = ?", (cents, target))
    left: int = db.execute("SELECT cents FROM account WHERE name = ?", (source,)).fetchone()[0]
    return left


@workflow
async def pay(ctx: Context, cents: int) -> str:
    try:
        left = await ctx.transact("move", move, "ada", "bob", cents)
    except StepError as error:  # neither account has changed
        return f"refused: {error.error.message}"
    return f"paid, {left / 100:.2f} are left"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        async with aclosing(await open_driver(f"sqlite:///{path}")) as driver:
            with sqlite3.connect(path) as db:
                db.executescript(BEFORE)
            with suppress(SimulatedCrash):
                await run_workflow(pay, 6000, driver=FaultyDriver(driver, crash_after=2), instance_id="rent")
            print("the process died with the transfer made")
            result = await run_workflow(pay, 6000, driver=driver, instance_id="rent")
            print(f"  rent, once more: {result.output}")
            result = await run_workflow(pay, 6000, driver=driver, instance_id="car")
            print(f"  car: {result.output}")
            accounts = db.execute("SELECT name, cents FROM account ORDER BY name").fetchall()
            print(", ".join(f"{name} has {cents / 100:.2f}" for name, cents in accounts))
            db.close()


if __name__ == "__main__":
    asyncio.run(main())
