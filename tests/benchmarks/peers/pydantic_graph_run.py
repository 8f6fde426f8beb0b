"""What is measured of pydantic-graph: `python -m tests.benchmarks.peers.pydantic_graph_run SCENARIO SETTING`.

Since its version 2 it has no persistence: what a run has done is in memory alone.
"""

from __future__ import annotations

from functools import partial

from tests.benchmarks.peers.measuring import Figures, Setting, costs, repeated
from tests.benchmarks.peers.processes import main
from tests.benchmarks.peers.pydantic_graph_app import COUNT, SCENARIOS

__all__: list[str] = []


async def _of(scenario: str, setting: Setting) -> Figures:
    build, expected = SCENARIOS[scenario]
    graph = build()

    async def run(_: int) -> None:
        found = await graph.run()
        assert found == expected, found

    return costs(COUNT, await repeated(setting, run))


if __name__ == "__main__":
    main({scenario: partial(_of, scenario) for scenario in SCENARIOS}, {})
