"""The pytest plugin, as it works in an author's project, whichever plugin runs the project's async tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

TRIALS = """
from workflow_sdk import Context, workflow

sent = []

async def email(what):
    sent.append(what)
    return what

@workflow
async def trial(ctx: Context, name: str) -> list[str]:
    first = await ctx.step("welcome", email, f"welcome {name}")
    await ctx.sleep("trial", 90 * 86_400)
    return [first, await ctx.step("bill", email, f"bill {name}")]

@workflow
async def approval(ctx: Context) -> str:
    return await ctx.listen("decision", timeout=3600, default="nobody decided")

@workflow
async def newsletter(ctx: Context) -> list[str]:
    return [await ctx.step(email, name) for name in {"Ada", "Bea"}]
"""

HEADER = """
import pytest
from trials import approval, newsletter, sent, trial
"""

SURVIVING = """
DAYS = 86_400
repeated = []  # the fixtures of a test are not: this is the module's

async def test_time_passes_at_once(workflow_runtime, virtual_clock):
    began = virtual_clock.time()
    async with workflow_runtime(trial) as runtime:
        assert await runtime.run(trial, "Ada") == ["welcome Ada", "bill Ada"]
    assert 90 * DAYS <= virtual_clock.time() - began < 91 * DAYS

async def test_several_workflows_and_options(workflow_runtime):
    async with workflow_runtime(trial, approval, concurrency=5) as runtime:
        handle = await runtime.start(approval, id="a")
        await handle.send("decision", "yes")
        assert await handle.result() == "yes"
        assert await runtime.run(approval) == "nobody decided"

@fixture
async def runtime(workflow_runtime):
    async with workflow_runtime(trial) as opened:
        yield opened
        assert opened.access  # it is still open

async def test_a_runtime_opened_in_a_fixture(runtime):
    assert await runtime.run(trial, "Ada") == ["welcome Ada", "bill Ada"]
    assert [info.workflow for info in (await runtime.list()).items] == ["trial"]

async def test_two_runtimes(workflow_runtime):
    async with workflow_runtime(trial) as one, workflow_runtime(trial) as other:
        assert await one.run(trial, "Ada") == ["welcome Ada", "bill Ada"]
        assert await other.run(trial, "Bea") == ["welcome Bea", "bill Bea"]

@pytest.fixture
def folder(tmp_path):
    assert list(tmp_path.iterdir()) == []  # a new one for each time that the test is repeated
    return tmp_path

async def test_a_store_in_a_file(workflow_runtime, folder, request):
    store = f"sqlite:///{folder}/a.db?synchronous=normal"
    if "trio" in request.node.name:  # where SQLite is not to be had
        (folder / "a.db").touch()
        store = "memory://"
    async with workflow_runtime(trial, store=store) as runtime:
        await runtime.run(trial, "Ada", id="only one")

@pytest.fixture(scope="module")
def once():
    repeated.append("set up")
    yield
    assert repeated == ["set up"]

class TestInAClass:
    seen = None

    async def test_its_own_error(self, workflow_runtime, once):
        assert self.seen is None
        self.seen = "here"
        with pytest.raises(KeyError, match="mine"):
            async with workflow_runtime(trial) as runtime:
                await runtime.run(trial, "Ada")
                raise KeyError("mine")
        assert repeated == ["set up"]

    async def test_beside_it(self, once):
        assert repeated == ["set up"]
"""
SURVIVING_COUNT = 7

FAILING = """
async def test_each_email_is_sent_once(workflow_runtime):
    sent.clear()
    async with workflow_runtime(trial) as runtime:
        await runtime.run(trial, "Ada")
    assert sent == ["welcome Ada", "bill Ada"]

async def test_a_set_has_another_order_after_a_restart(workflow_runtime):
    async with workflow_runtime(newsletter) as runtime:
        assert sorted(await runtime.run(newsletter)) == ["Ada", "Bea"]

async def test_wrong_without_a_crash(workflow_runtime):
    print("here it runs")
    async with workflow_runtime(trial) as runtime:
        assert await runtime.run(trial, "Ada") == []
"""


@dataclass(frozen=True)
class Runner:
    """A plugin that runs async tests, and what a project has to say to use it."""

    name: str
    ini: str
    header: str
    arguments: tuple[str, ...] = ()
    event_loops: int = 1
    """On how many event loops each async test is run."""

    def __str__(self) -> str:
        return self.name


ASYNCIO_INI = "asyncio_default_fixture_loop_scope = function"
RUNNERS = [
    Runner(
        "asyncio-strict",
        f"{ASYNCIO_INI}\nasyncio_mode = strict",
        "from pytest import mark\nfrom pytest_asyncio import fixture\npytestmark = mark.asyncio\n",
    ),
    Runner("asyncio-auto", f"{ASYNCIO_INI}\nasyncio_mode = auto", "from pytest import fixture\n"),
    Runner(
        "anyio",
        "",
        "from pytest import fixture, mark\npytestmark = mark.anyio\n",
        arguments=("-p", "no:asyncio"),
        event_loops=2,
    ),
]

# What the environment of this repository has, and an author's project need not have.
FOREIGN = ("-p", "no:xdist", "-p", "no:pytest_cov", "-p", "no:hypothesispytest")


@pytest.fixture(params=RUNNERS, ids=str)
def runner(request: pytest.FixtureRequest) -> Runner:
    """A plugin that runs async tests."""
    found = request.param
    assert isinstance(found, Runner)
    return found


@pytest.fixture
def project(pytester: pytest.Pytester, runner: Runner) -> pytest.Pytester:
    """An author's project: tests that survive every crash, and tests that don't."""
    pytester.makeini(f"[pytest]\npythonpath = .\n{runner.ini}\n")
    pytester.makepyfile(
        trials=TRIALS,
        test_surviving=runner.header + HEADER + SURVIVING,
        test_failing=runner.header + HEADER + FAILING,
        test_plain="def test_without_a_runtime():\n    assert True\n",
    )
    return pytester


def run(project: pytest.Pytester, runner: Runner, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-W", "error", *FOREIGN, *runner.arguments, *arguments)


def test_its_fixtures_work_as_they_are(project: pytest.Pytester, runner: Runner) -> None:
    result = run(project, runner)
    result.assert_outcomes(passed=(SURVIVING_COUNT + 2) * runner.event_loops + 1, failed=runner.event_loops)
    assert result.stdout.lines.count("here it runs") == runner.event_loops


def test_with_the_option_tests_are_repeated_with_a_crash_at_each_commit(
    project: pytest.Pytester, runner: Runner
) -> None:
    result = run(project, runner, "--crash-everywhere", "-rA")
    result.assert_outcomes(passed=SURVIVING_COUNT * runner.event_loops + 1, failed=3 * runner.event_loops)
    with_a_runtime = SURVIVING_COUNT - 1
    survived = [line for line in result.stdout.lines if line.startswith("passed also when killed at each of ")]
    assert len(survived) == with_a_runtime * runner.event_loops
    assert "passed also when killed at each of 0 commits" not in survived

    # What does not survive a crash is told, with the commit.
    result.stdout.re_match_lines([r"the runtime is killed before commit \d+"])
    result.stdout.fnmatch_lines(["*assert *welcome Ada*welcome Ada*"])
    result.stdout.fnmatch_lines(["*WorkflowStuckError: *step 'email' is recorded with other arguments*"])
    # What fails without a crash is not repeated.
    assert result.stdout.lines.count("here it runs") == runner.event_loops
