"""Print the oldest version that pyproject.toml allows of each package that the library needs, as a list for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for dependency in project["dependencies"]:
    found = re.match(r"([\w.-]+)>=([\w.]+)", dependency)
    assert found, f"{dependency!r} has a lower bound"
    print("{}=={}".format(*found.groups()))
