"""The pytest plugin, as an author's tests see it."""

from __future__ import annotations

import pytest

APP = """
from workflow_sdk import Context, workflow

sent = []

async def mail(what):
    sent.append(what)
    return what

@workflow
async def trial(ctx: Context, name: str) -> list[str]:
    first = await ctx.step("welcome", mail, f"welcome {name}")
    await ctx.sleep("trial", 90 * 86_400)
    return [first, await ctx.step("bill", mail, f"bill {name}")]

@workflow
async def approval(ctx: Context) -> str:
    return await ctx.listen("decision", timeout=3600, default="nobody decided")
"""

TESTS = """
import pytest
from app import approval, sent, trial

pytestmark = pytest.mark.anyio

async def test_ninety_days(workflow_runtime, virtual_clock):
    began = virtual_clock.time()
    async with workflow_runtime(trial) as runtime:
        assert await runtime.run(trial, "Ada") == ["welcome Ada", "bill Ada"]
    assert 90 * 86_400 <= virtual_clock.time() - began < 91 * 86_400

async def test_messages(workflow_runtime):
    async with workflow_runtime(trial, approval, concurrency=5) as runtime:
        handle = await runtime.start(approval, id="a")
        await handle.send("decision", "yes")
        assert await handle.result() == "yes"
        assert await runtime.run(approval) == "nobody decided"

def test_without_a_runtime():
    assert True
"""


@pytest.fixture
def author(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of an author's."""
    pytester.makepyfile(app=APP)
    pytester.makeini("[pytest]\npythonpath = .\nasyncio_mode = strict\nanyio_mode = strict")
    pytester.makeconftest("import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    return pytester


def test_its_fixtures_are_there(author: pytest.Pytester) -> None:
    author.makepyfile(test_app=TESTS)
    author.runpytest_subprocess().assert_outcomes(passed=3)


def test_every_commit_of_the_runtime_is_survived(author: pytest.Pytester) -> None:
    author.makepyfile(test_app=TESTS)
    result = author.runpytest_subprocess("--crash-everywhere", "-rA")
    result.assert_outcomes(passed=3)
    result.stdout.re_match_lines([r"passed also when killed at each of \d+ commits"])


def test_what_does_not_survive_it_is_told(author: pytest.Pytester) -> None:
    author.makepyfile(
        test_app="""
        import pytest
        from app import sent, trial

        @pytest.mark.anyio
        async def test_each_mail_is_sent_once(workflow_runtime):
            sent.clear()
            async with workflow_runtime(trial) as runtime:
                await runtime.run(trial, "Ada")
            assert sent == ["welcome Ada", "bill Ada"]
        """
    )
    author.runpytest_subprocess().assert_outcomes(passed=1)
    result = author.runpytest_subprocess("--crash-everywhere")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"the runtime is killed before commit \d+"])
    result.stdout.fnmatch_lines(["*assert *welcome Ada*welcome Ada*"])


def test_fixtures_begin_anew_each_time(author: pytest.Pytester) -> None:
    author.makepyfile(
        test_app="""
        import pytest
        from app import trial

        @pytest.fixture
        def place(tmp_path):
            assert list(tmp_path.iterdir()) == []
            return tmp_path

        @pytest.mark.anyio
        async def test_in_a_file(workflow_runtime, place):
            async with workflow_runtime(trial, store=f"sqlite:///{place}/a.db?synchronous=normal") as runtime:
                await runtime.run(trial, "Ada", id="only one")
        """
    )
    author.runpytest_subprocess("--crash-everywhere").assert_outcomes(passed=1)


def test_a_failing_test_is_not_repeated(author: pytest.Pytester) -> None:
    author.makepyfile(
        test_app="""
        import pytest
        from app import trial

        @pytest.mark.anyio
        async def test_wrong(workflow_runtime):
            print("here it runs")
            async with workflow_runtime(trial) as runtime:
                assert await runtime.run(trial, "Ada") == []
        """
    )
    result = author.runpytest_subprocess("--crash-everywhere")
    result.assert_outcomes(failed=1)
    assert result.stdout.lines.count("here it runs") == 1


def test_what_a_test_raises_is_what_it_raises(author: pytest.Pytester) -> None:
    author.makepyfile(
        test_app="""
        import pytest
        from app import trial

        shared = []

        @pytest.fixture(scope="module")
        def once():
            shared.append("set up")
            yield
            assert shared == ["set up"]

        class TestIt:
            seen = None

            @pytest.mark.anyio
            async def test_it(self, workflow_runtime, once):
                assert self.seen is None
                self.seen = "here"
                with pytest.raises(KeyError):
                    async with workflow_runtime(trial) as runtime:
                        await runtime.run(trial, "Ada")
                        raise KeyError("mine")
                assert shared == ["set up"]
        """
    )
    author.runpytest_subprocess("--crash-everywhere").assert_outcomes(passed=1)
