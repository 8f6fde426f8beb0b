"""One glossary: words that are out stand nowhere, and every entry says where the concept lives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

OUT = re.compile(
    r"(?<![a-z])(?:attic|bells?|culprits?|errands?|nudge[sd]?|slips?|bearers?|poke[sd]?)(?![a-z])"
    r"|\bfates?\b|put_away|put away|puts? \w+ away|what the world (?:may )?see|stands? in line|\bmailbox"
    r"|(?<!e)\bMail\b",
    re.IGNORECASE,
)
"""The words of the glossary's last table, wherever they stand: also as a part of a name."""

IN_THE_ENGINE = re.compile(r"(?<![a-z])(?:letters?|world|standing|mail)(?![a-z])", re.IGNORECASE)
"""These have another meaning in tests and examples: the world of a test, the letter of an alphabet, an email."""


def texts() -> Iterator[tuple[Path, str]]:
    for folder in ("workflow_sdk", "drivers", "tests", "examples", "docs", "changelog.d"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".toml") and path not in (GLOSSARY, Path(__file__)):
                yield path.relative_to(ROOT), path.read_text()
    for name in ("README.md", "CONTRIBUTING.md", "LAWS.md", "SECURITY.md", "CHANGELOG.md"):
        yield Path(name), (ROOT / name).read_text()


def test_words_that_are_out_stand_nowhere() -> None:
    found: list[str] = []
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            word = OUT.search(line)
            if word is None and path.parts[0] == "workflow_sdk" and "testing" not in path.parts:
                word = IN_THE_ENGINE.search(line)
            if word is not None:
                found.append(f"{path}:{number}: {word[0]!r}: {line.strip():.100}")
    assert found == [], "docs/glossary.md says what to say instead"


@pytest.mark.parametrize("word", ["attic", "bell", "culprits", "errand", "fate", "letter", "nudge", "put away", "slip"])
def test_the_glossary_says_what_is_said_instead(word: str) -> None:
    _, _, table = GLOSSARY.read_text().partition("Words that are out")
    assert f"| {word} |" in table


def test_the_glossary_is_in_order_and_points_at_files_that_exist() -> None:
    page, _, _ = GLOSSARY.read_text().partition("## Words that are out")
    words = re.findall(r"^\| \*\*(.+?)\*\*", page, re.MULTILINE)
    assert len(words) > 80
    assert [word.lower() for word in words] == sorted(word.lower() for word in words)
    files = re.findall(r"`([\w/]+\.py)`", page)
    assert [file for file in files if not (ROOT / "workflow_sdk" / file).is_file()] == []
