"""The pages tell the truth: their Python runs, and prints what they say it prints.

A ```python block is run, unless its first line is `# not run: <reason>`. The blocks of a page run in order in one
module, so that a later one goes on where an earlier one stopped; `await` is allowed at the top. A block whose first
line is `# <name>.py` is also saved as that file, from which later blocks can import. A ```text block that follows is
what the block printed; `...` in it stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from tests.docs.pages import FENCE, PAGES, ROOT, as_pattern, file_name

NOT_RUN = re.compile(r"# not run: \S+")


@dataclass(frozen=True)
class Snippet:
    """A block of Python, and what the page says of its output."""

    line: int
    source: str
    output: str | None


def snippets(text: str) -> Iterator[Snippet]:
    blocks = list(FENCE.finditer(text))
    for number, block in enumerate(blocks):
        if block["language"] != "python" or NOT_RUN.match(block["body"]):
            continue
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        says = following is not None and following["language"] == "text" and not gap(text, block, following)
        line = text.count("\n", 0, block.start("body"))
        yield Snippet(line, block["body"], following["body"] if says and following is not None else None)


def gap(text: str, block: re.Match[str], following: re.Match[str]) -> str:
    return text[block.end() : following.start()].strip()


def compiled(snippet: Snippet, page: Path) -> CodeType:
    # Lines as in the page, so that a traceback leads there.
    source = "\n" * snippet.line + snippet.source
    # dont_inherit: this file's own __future__ imports are none of the page's.
    code: CodeType = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """Where a page's blocks run: a module that can be imported, in an empty folder that can be imported from."""
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield module
    for saved in tmp_path.glob("*.py"):
        sys.modules.pop(saved.stem, None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_runs(page: Path, module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with asyncio.Runner() as runner:
        for snippet in snippets(page.read_text()):
            if (name := file_name(snippet.source)) is not None:
                Path(name).write_text(snippet.source)
                sys.modules.pop(Path(name).stem, None)
            code = compiled(snippet, page)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, vars(module)))
            else:
                exec(code, vars(module))
            printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
            if snippet.output is not None and not re.fullmatch(as_pattern(snippet.output), printed, re.DOTALL):
                # Different, so that this fails; as texts, so that it shows where.
                assert printed == snippet.output.strip(), f"{page.name}:{snippet.line}"


def test_blocks_are_found() -> None:
    page = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\n# not run: it takes a year\n```\n```sh\nx\n```\n"
    assert list(snippets(page)) == [Snippet(1, "print(1)\n", "1\n")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page: Path) -> None:
    roots = (ROOT, ROOT / "workflow_sdk", ROOT / "drivers")
    named = set(re.findall(r"`([\w/]+/?[\w.]*\.py|[\w/]+/)`", page.read_text()))
    assert [name for name in sorted(named) if not any((root / name).exists() for root in roots)] == []
