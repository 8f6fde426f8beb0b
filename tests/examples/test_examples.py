"""Every example runs as its reader would run it, and shows what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.patience import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"

# Lines that have to be there, in this order.
SHOWS = {
    "order_machine": [
        "o-1: shipped, after 1 tries to charge",
        "o-2: shipped, after 2 tries to charge",
        "o-3: not paid, after 3 tries to charge",
        "o-4: refunded, after 1 tries to charge",
        "ledger: {'not paid': 1, 'refunded': 1, 'shipped': 2}",
    ],
    "choreography": [
        "order 3: accepted accepted",
        "o-1: sent as parcel 1",
        "o-2: sent as parcel 2",
        "o-3: no teapot left",
    ],
    "reminders": [
        "  15 January: reminder 1 of invoice 1",
        "  16 January: reminder 2 of invoice 1",
        "  18 January: reminder 3 of invoice 1",
        "invoice 1: handed to a lawyer, after 3 reminders",
        "invoice 2: paid, after 0 reminders",
    ],
    "order": [
        "first start",
        "  charging 49.90",
        "  reserving one teapot",
        "  shipping order 1001",
        "  completed: Receipt(order='1001', charge='charge-1001', parcel='parcel-1001')",
        "second start, with the same store",
        "  completed: Receipt(order='1001', charge='charge-1001', parcel='parcel-1001')",
    ],
    "approval": [
        "claim-1",
        "  waiting for ['decision']",
        "claim-2",
        "  waiting for ['decision']",
        "a decision on claim-1 comes in",
        "  completed: approved: within the budget",
        "three days pass without one on claim-2",
        "  email: nobody has decided on claim-2",
        "  completed: escalated",
    ],
    "saga": [
        "by-train",
        "  completed: ['booking of the flight', 'booking of the hotel']",
        "by-car",
        "  booked the flight",
        "  booked the hotel",
        "  cancelled the booking of the hotel",
        "  cancelled the booking of the flight",
    ],
    "accounts": [
        "the process died with the transfer made",
        "  rent, once more: paid, 40.00 are left",
        "  car: refused: CHECK constraint failed: cents >= 0",
        "ada has 40.00, bob has 60.00",
    ],
    "poller": [
        "completed: https://example.org/invoices.csv after 12 questions in 7 hours",
    ],
    "fan_out": [
        "completed: 12 pages, at most 3 at once",
        "first ('/chapter/1', 10), last ('/chapter/12', 11)",
    ],
    "hedged_request": [
        "first run",
        "  asking primary",
        "  asking backup",
        "  primary was cancelled",
        "  completed: backup won: the answer of backup",
        "second run, from the record",
        "  completed: backup won: the answer of backup",
    ],
    "changing_code": [
        "  old-user: we have sent you a fax",
        "  old-user is sleeping",
        "  old-user: how was it?",
        "  old-user is completed",
        "  new-user: come on a tour",
        "  new-user is sleeping",
    ],
    "service": [
        "start: 202 {'id': '1001'}",
        "start again: 202 {'id': '1001'}",
        "start with another input: 409",
        "look at an unknown one: 404",
        "look: {'status': 'waiting', 'waits': ['paid'], 'output': None}",
        "the service is deployed anew, with the same store",
        "look: {'status': 'waiting', 'waits': ['paid'], 'output': None}",
        "pay: 200 {'delivery': 'accepted'}",
        "result: {'output': 'teapot, paid with card-42'}",
    ],
    "two_workers": [
        "24 pictures, by 2 processes",
        "a process is killed, with an album in its memory",
        "the album: page 1 by the one that was killed: True",
        "  the others by the one that is left: True",
        "the one that is left is told to end: exit code 0",
    ],
    "approval_deadline": [
        "to be decided: claim-1, claim-2, claim-3",
        "claim-1: Ada is told: transfer of 120 EUR",
        "  approved by Ada",
        "claim-2: escalated: nobody has decided",
        "  Bob comes too late: closed",
        "claim-3: cancelled",
    ],
    "nightly_report": [
        "two nights; in the second one, the clocks are put forward",
        "  28 March, 02:00 UTC: sales of the night, 49.90, by nightly/2026-03-28T02:00:00Z",
        "  29 March, 01:00 UTC: sales of the night, 49.90, by nightly/2026-03-29T01:00:00Z",
        "nobody is there for two nights and a morning",
        "  31 March, 07:00 UTC: sales of the night, 49.90, by nightly/2026-03-31T01:00:00Z",
        "  01 April, 01:00 UTC: sales of the night, 49.90, by nightly/2026-04-01T01:00:00Z",
        "listed: ['nightly']",
    ],
    "agent": [
        "  thinks, with 0 notes",
        "after a while: waiting",
        "the process ends; a new one goes on with what the agent knows",
        "  rolls shop-2 back",
        "done: shop-2 is gone, shop-1 is back",
    ],
    "order_saga": [
        "order-1, to France",
        "  payment: 49.90 charged for order-1",
        "  shipping: order-1 is on its way",
        "  delivered",
        "order-2, to Atlantis",
        "  stock: one kettle is set aside",
        "  payment: 59.90 charged for order-2",
        "  payment: the charge of order-2 is refunded",
        "  stock: kettle for order-2 is put back",
    ],
    "approval_escalation": [
        "  'approve' of claim-1, for a clerk: a train ticket, 80 EUR",
        "  approved by a clerk",
        "  created, assigned, completed by a clerk",
        "  'approve, late' of claim-2, for a manager: a new chair, 900 EUR",
        "  the clerk comes too late: StaleError",
        "  and is no manager: NotAuthorizedError",
        "  refused by a manager (a stool will do)",
        "  what everybody sees of it: {'escalated': True}",
    ],
    "thousand_children": [
        "  1000 of 1000 sent",
        "990 delivered, 10 bounced",
        "spring/emails from 700/7/email: completed",
    ],
    "conversation": [
        "> what did we talk about?",
        "tea, rain, trains",
        "the process ends; a new one goes on with what the agent remembers",
        "tea, rain, trains, chess",
        "6 turns, of which the history has 3 at most: True",
        "> bye",
        "bye",
        "6 turns",
    ],
    "triage": [
        "ticket 7",
        "  classify: bug",
        "  fix: ticket 7",
        "  merge, when both are done: {'test': 'green', 'notify': 'told'}",
        "  succeeded: 5 completed, 1 never_reached",
        "    reply: never_reached (no token came to it)",
        "ticket 8",
        "  reply",
        "    merge: skipped (it needs 'test', which was not taken, 'notify', which was not taken)",
    ],
    "release_dag": [
        "succeeded: 1000 steps, at most 20 at once",
        "publish 100: after 4 others",
    ],
    "agent_plan": [
        "ask: completed, led to 3 more",
        "was the database busy?: completed, not looked into: the graph would have more than 9 steps (nodes=9)",
        "what does release 41 change?: completed, not looked into: steps are submitted 2 deep at most (depth=2)",
        "drop all tables: denied, quarantine: a quarantined step may not write",
        "partial",
    ],
    "tournament": [
        "  Steamy or Whistler?",
        "  Earl or The Spout?",
        "ideas: Steamy, Whistler, Earl, The Spout, Drip",
        "the winner: The Spout",
        "the advert: The Spout. Tea is ready.",
        "succeeded, in 19 firings",
    ],
    "claims": [
        "  decide claim-2, 4990.00: approve",
        "  decide claim-3, 99000.00: refuse",
        "claim-1 is paid: receipt for claim-1",
        "claim-2 is paid: receipt for claim-2",
        "claim-3 is refused",
    ],
    "playbook": [
        "invoices/book waits for its admission",
        "the books are opened",
        "succeeded: 3 booked, inbox is empty",
        "2 downloads; ['R-1 is booked', 'R-2 is booked', 'R-3 is booked']",
    ],
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The exception is the one in pyproject.toml: of a `six` that FoundationDB before 7.4 brings along.
    warnings = ["-W", "error", "-W", "ignore:_SixMetaPathImporter:ImportWarning"]
    command = [sys.executable, *warnings, str(EXAMPLES / f"{name}.py"), *arguments]
    # An example takes no time to try. As wide as a page, whatever terminal the tests run in.
    environment = clean_environment(COLUMNS="120", PYTHONIOENCODING="utf-8")
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5 * PATIENCE, env=environment)


def nothing_happens_twice_in_the_main_example(printed: str) -> None:
    assert printed.count("charging") == 1


def what_is_called_off_is_undone_once(printed: str) -> None:
    assert [printed.count(what) for what in ("refunded", "put back", "on its way")] == [1, 1, 1]
    assert "called off: StepCriticalError: " in printed


def nothing_happens_twice_in_the_service(printed: str) -> None:
    assert printed.count("is reserved") == 1
    again = printed.split("pay again: ")[1].splitlines()[0]
    assert again in ("200 {'delivery': 'duplicate'}", "409 {'detail': 'the order is done'}")


def a_careless_release_runs_nothing(printed: str) -> None:
    careless = printed.split("a careless release")[1].split("release 2")[0]
    assert "old-user is stuck" in careless
    assert "tour" in careless.partition("stuck")[2], "the error names what the code asked for"
    assert "fax" in careless, "the error names what was recorded"
    assert "come on a tour" not in careless


# What else holds of what an example prints.
CLAIMS = {
    "order": nothing_happens_twice_in_the_main_example,
    "order_saga": what_is_called_off_is_undone_once,
    "service": nothing_happens_twice_in_the_service,
    "changing_code": a_careless_release_runs_nothing,
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWS, "demo", "many_cells"}


@pytest.mark.parametrize("name", SHOWS)
def test_the_example_shows_what_it_promises(name: str) -> None:
    result = run(name)
    assert result.returncode == 0, result.stderr
    lines = iter(result.stdout.splitlines())
    missing = [line for line in SHOWS[name] if line not in lines]  # `in` moves on: the order counts
    assert missing == [], result.stdout
    if name in CLAIMS:
        CLAIMS[name](result.stdout)


def test_many_cells_sleep_in_a_file() -> None:
    """As many as a test has time for; by itself it has a hundred thousand."""
    result = run("many_cells", "3000")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "3,000 meters have a reading, and at most 1,000 of them are in memory",
        "in a new process, one of them wakes: {'m-2999': 9500}",
    ]


def test_the_demo_holds_its_claims() -> None:
    result = run("demo", "--no-pauses")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SIGKILL in the middle of: charge the card" in result.stdout
    assert "✗" not in result.stdout
    assert result.stdout.count("✓") == 7


def test_the_demo_can_fail() -> None:
    """A claim that does not hold is an exit code: here nobody is killed."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import demo; demo.KILLED = 'nothing'\n"
        "sys.argv = ['demo.py', '--no-pauses']; sys.exit(demo.main())"
    )
    command = [sys.executable, "-c", program, str(EXAMPLES)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=5 * PATIENCE, env=clean_environment()
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "✗" in result.stdout
