"""What the pages say of the sources, where a program can tell whether it is so."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from tests.docs.pages import ROOT
from workflow_sdk.rows import keys

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def test_the_readme_names_every_extra() -> None:
    (about,) = [paragraph for paragraph in README.split("\n\n") if "are extras" in paragraph]
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in about


def test_every_extra_adds_something() -> None:
    for extra, packages in PROJECT["optional-dependencies"].items():
        assert not set(packages) <= set(PROJECT["dependencies"]), extra


def test_extras_that_are_named_anywhere_are_there() -> None:
    files = [README, *(path.read_text() for folder in ("docs", "workflow_sdk", "drivers") for path in texts_in(folder))]
    named = {extra for text in files for extra in re.findall(r"workflow-sdk\[(\w+)\]|extra `(\w+)`", text)}
    assert {one or other for one, other in named} <= PROJECT["optional-dependencies"].keys()


def texts_in(folder: str) -> list[Any]:
    return [path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]


def test_the_design_names_every_driver() -> None:
    (tour,) = [
        line for line in (ROOT / "docs" / "design.md").read_text().splitlines() if "`drivers/workflow_drivers`" in line
    ]
    names = {"memory": "memory", "sqlite": "SQLite", "fdb": "FoundationDB"}
    for scheme in PROJECT["entry-points"]["workflow_sdk.drivers"]:
        assert str(names.get(scheme, scheme)) in tour


def test_every_key_that_is_kept_is_on_the_page() -> None:
    page = (ROOT / "docs" / "storage.md").read_text()
    told = keys.__doc__ or ""
    for listed, shown in zip(
        told.split("In the space of an instance:"), page.split("In an instance's own range:"), strict=True
    ):
        numbers = {int(number) for number in re.findall(r"^    \((\d+)", listed, re.MULTILINE)}
        assert len(numbers) > 10
        cells = re.findall(r"^\| (`\(.*?) \|", shown, re.MULTILINE)
        assert numbers == {int(number) for cell in cells for number in re.findall(r"`\((\d+)", cell)}


def test_links_between_pages_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]+)?)\)", path.read_text()):
            if "://" in target or not target:
                continue
            file, _, anchor = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            assert found.exists(), f"{path.name}: {target}"
            if anchor and found.suffix == ".md":
                assert anchor in anchors(found.read_text()), f"{path.name}: {target}"


def anchors(page: str) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tests_that_are_named_are_there() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"`(tests/[\w./]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
