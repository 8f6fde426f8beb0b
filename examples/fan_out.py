"""Do the same for many things at once, a few at a time, and get the results in order.

python examples/fan_out.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from workflow_sdk import Context, open_driver, run_workflow, workflow

under_way: set[str] = set()
most_at_once = 0


async def fetch(page: str) -> int:
    """Stands for a request; the service allows three at a time."""
    global most_at_once
    under_way.add(page)
    most_at_once = max(most_at_once, len(under_way))
    await asyncio.sleep(0.02)
    under_way.discard(page)
    return len(page)


async def count(ctx: Context, page: str) -> int:
    return await ctx.step(fetch, page)


@workflow
async def crawl(ctx: Context, pages: list[str]) -> dict[str, int]:
    sizes = await ctx.map("pages", count, pages, limit=3)
    return dict(zip(pages, sizes, strict=True))


async def main() -> None:
    pages = [f"/chapter/{number}" for number in range(1, 13)]
    async with aclosing(await open_driver("memory://")) as driver:
        result = await run_workflow(crawl, pages, driver=driver, instance_id="crawl-1")
    assert result.output is not None
    print(f"{result.status}: {len(result.output)} pages, at most {most_at_once} at once")
    print(f"first {next(iter(result.output.items()))}, last {list(result.output.items())[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
