"""A release of 250 packages in 1,000 steps, at most 20 of them at once: each begins as soon as what it needs is done.

There are no layers that wait for each other. The steps and what they need are made by a loop; a graph is only data.

python examples/release_dag.py
"""

from __future__ import annotations

import asyncio
import time

from workflow_sdk import Runtime
from workflow_sdk.graphs import Graph, Limits

PACKAGES = 250

under_way = 0
most_at_once = 0


async def run_tool(outputs: dict[str, str] | None) -> str:
    """Stands for a compiler, tests or a registry. It is given the outputs of what it needs, if it needs anything."""
    global under_way, most_at_once
    under_way += 1
    most_at_once = max(most_at_once, under_way)
    await asyncio.sleep(0.001)
    under_way -= 1
    return f"after {len(outputs or {})} others"


def dependencies(package: int) -> list[int]:
    """The packages that a package is built from: 0 from none, 1 from 0, 100 from 33 and 49, and so on."""
    return sorted({(package - 1) // 2, (package - 1) // 3}) if package else []


release = Graph("release", limits=Limits(running=20))
for package in range(PACKAGES):
    built = [f"build {other}" for other in dependencies(package)]
    published = [f"publish {other}" for other in dependencies(package)]
    release.step(f"build {package}", run_tool, needs=built)
    release.step(f"test {package}", run_tool, needs=[f"build {package}"], retries=2)
    release.step(f"sign {package}", run_tool, needs=[f"build {package}"])
    release.step(f"publish {package}", run_tool, needs=[f"test {package}", f"sign {package}", *published])


async def main() -> None:
    async with Runtime("memory://", workflows=[release]) as runtime:
        begun = time.perf_counter()
        result = await runtime.run(release)
        took = time.perf_counter() - begun
    print(f"{result.status}: {len(result.outcomes)} steps, at most {most_at_once} at once")
    print(f"publish 100: {result.outputs['publish 100']}")
    print(f"it took {took:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
