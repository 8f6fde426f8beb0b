"""The report of the benchmarks says what the lines say: every figure in its row, and ratios the right way round."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.benchmarks.declaring import declared
from tests.benchmarks.drawing import SIZES
from tests.benchmarks.graphs import GRAPHS, layers
from tests.benchmarks.machine import machine
from tests.benchmarks.many import MEASUREMENTS
from tests.benchmarks.plots import bars, curves
from tests.benchmarks.report import WORDS, figures_of, headline, markdown, merged, ratio, read, replaced, table
from tests.benchmarks.scenarios import SCENARIOS

OURS = {"scenario": "sequential", "subject": "workflow_sdk", "store": "SQLite full", "wall_us_per_operation": 200.0}
OURS_IN_MEMORY = {**OURS, "store": "memory", "wall_us_per_operation": 50.0}
THEIRS = {
    "scenario": "sequential",
    "subject": "Peer",
    "version": "1.2",
    "store": "server",
    "operations": 1000,
    "runs": 3,
    "wall_us_per_operation": 1234.5,
    "cpu_us_per_operation": 0.25,
}
GROWTH = {"scenario": "growth", "subject": "Peer", "store": "server", "us_per_step": {"1000": 20.0, "100": 10.0}}


def lines(*each: Mapping[str, object]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in each)


def test_a_row_has_the_figures_of_its_line() -> None:
    head, rule, ours, theirs = table([OURS, THEIRS])
    assert head == ("|  | store | wall, µs each | CPU, µs each | wall, µs each: times ours on SQLite full |")
    assert rule == "|---|---|--:|--:|--:|"
    assert ours == "| workflow_sdk | SQLite full | 200 |  |  |"
    assert theirs == "| Peer 1.2 | server | 1,234 | 0.25 | 6.17 |"


def test_without_ours_there_is_nothing_to_compare_with() -> None:
    head, _, theirs = table([THEIRS])
    assert "times ours" not in head
    assert theirs == "| Peer 1.2 | server | 1,234 | 0.25 |"


def test_a_rate_is_compared_the_other_way_round() -> None:
    ours, theirs = {**OURS, "steps_per_s": 4000}, {**THEIRS, "steps_per_s": 1000}
    assert headline([ours, theirs], ours) == "steps_per_s"
    assert ratio(theirs, ours, "steps_per_s") == 4
    assert ratio(theirs, ours, "wall_us_per_operation") == pytest.approx(6.17, abs=0.01)


def test_a_peer_may_be_compared_with_another_store_of_ours() -> None:
    beside = {**THEIRS, "beside": "memory"}
    head, _, _, _, first, second = table([OURS_IN_MEMORY, OURS, beside, THEIRS])
    assert head.endswith("| wall, µs each: times ours on ... |")
    assert first.endswith("| memory: 24.7 |")
    assert second.endswith("| SQLite full: 6.17 |")


def test_what_one_side_lacks_has_no_ratio() -> None:
    assert headline([OURS, {**THEIRS, "wall_us_per_operation": None}], OURS) is None
    assert ratio(THEIRS, OURS, "p50_ms") is None


def test_figures_of_a_mapping_are_told_one_by_one() -> None:
    assert figures_of(GROWTH) == {"us_per_step at 1000": 20.0, "us_per_step at 100": 10.0}


def test_lines_are_sorted_by_what_they_are() -> None:
    skipped = {"scenario": None, "subject": "Other", "store": "server", "skipped": "no other here"}
    measured = read(lines({"machine": {"cores": 2}, "date": "2026-01-02"}, THEIRS, OURS, skipped))
    assert measured.machine == {"cores": 2}
    assert measured.scenarios() == ["sequential"]
    assert [line["subject"] for line in measured.of("sequential")] == ["workflow_sdk", "Peer"]
    text = markdown(measured)
    assert text.startswith("Measured on 2026-01-02: cores 2.\n\n### sequential\n\n1,000 steps")
    assert text.endswith("Not measured:\n\n- Other, server: no other here\n")


def test_what_was_measured_anew_replaces_what_was_measured_before() -> None:
    on = {"machine": {"cores": 2}}
    missing = {"scenario": "growth", "subject": "Other", "skipped": "too long"}
    before = read(lines({**on, "date": "2026-01-02"}, OURS, THEIRS, GROWTH, missing))
    anew = {**OURS, "wall_us_per_operation": 100.0}
    both = merged([before, read(lines({**on, "date": "2026-01-03"}, anew))])
    assert [dict(line) for line in both.lines] == [GROWTH, anew]
    assert list(both.skipped) == [missing]
    assert both.date == "2026-01-02 and 2026-01-03"
    assert merged([before]) == before


def test_figures_of_two_machines_are_not_put_on_one_page() -> None:
    runs = [read(lines({"machine": {"cores": cores}}, OURS)) for cores in (2, 4)]
    with pytest.raises(ValueError, match="machines"):
        merged(runs)


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = "before\n<!-- figures -->old<!-- /figures -->\nafter\n"
    assert replaced(page, "new\n") == "before\n<!-- figures -->\n\nnew\n\n<!-- /figures -->\nafter\n"
    assert replaced(replaced(page, "new"), "new") == replaced(page, "new")
    with pytest.raises(ValueError, match="figures"):
        replaced("no markers", "new")


def test_plots_take_what_costs_a_step() -> None:
    concurrent = {"scenario": "concurrent", "subject": "workflow_sdk", "store": "SQLite full", "steps_per_s": 5000}
    measured = read(lines(THEIRS, OURS, OURS_IN_MEMORY, concurrent, GROWTH))
    assert bars(measured) == [
        ("workflow_sdk, memory", {"sequential": 50.0}),
        ("workflow_sdk, SQLite full", {"sequential": 200.0, "concurrent": 200.0}),
        ("Peer, server", {"sequential": 1234.5}),
    ]
    assert curves(measured) == [("Peer, server", [(100, 10.0), (1000, 20.0)])]


def test_readers_are_told_what_was_measured() -> None:
    ours = {scenario.name for scenario in (*SCENARIOS, *GRAPHS)} | {measurement.name for measurement in MEASUREMENTS}
    drawn = {f"draw_graph_{size}" for size in SIZES}
    assert {*ours, *drawn, "graph_validate_1000"} == WORDS.keys()


def test_a_graph_that_is_measured_is_sound() -> None:
    assert declared().validate() == []
    assert layers(20).validate() == []
    assert [each for each in declared().nodes if each not in {"begin", "end"}] == [
        f"step-{each}" for each in range(1000)
    ]


def test_the_machine_can_be_written_down() -> None:
    assert {"cpu", "cores", "kernel", "python"} <= json.loads(json.dumps(machine())).keys()
