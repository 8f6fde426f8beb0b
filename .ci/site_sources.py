"""What the site is built from: the pages, and the examples as pages of their own, in build/docs."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(target: Path) -> None:
    """Write them anew."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for page in target.glob("*.md"):
        page.write_text(with_links(page.read_text()))
    examples = target / "examples"
    examples.mkdir()
    rows: list[str] = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text()
        says = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].replace("\n", " ")
        shown = f"# {path.name}\n\n```python\n{source}```\n"
        if (beside := path.with_suffix(".yaml")).exists():
            shown += f"\n## {beside.name}\n\n```yaml\n{beside.read_text()}```\n"
        (examples / f"{path.stem}.md").write_text(shown)
        rows.append(f"- [{path.name}]({path.stem}.md): {says}")
    listed = "# Examples\n\nSmall programs to copy. The tests run them.\n\n" + "\n".join(rows) + "\n"
    (examples / "index.md").write_text(listed)


def with_links(markdown: str) -> str:
    """Links to the files of examples lead to their pages."""
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
    return re.sub(r"\]\(\.\./examples/?\)", "](examples/index.md)", markdown)


if __name__ == "__main__":
    main(ROOT / "build" / "docs")
