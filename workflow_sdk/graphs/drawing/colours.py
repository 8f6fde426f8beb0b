"""The colours of pictures, by day and by night; the style that tells them to browsers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


class Colours(NamedTuple):
    """Of a box: inside, its edge, and its status as text."""

    fill: str
    stroke: str
    text: str


PLAIN: Final = "plain"

_LIGHT: Final[Mapping[str, Colours]] = {
    PLAIN: Colours("#f6f8fa", "#6e7781", "#24292f"),
    "completed": Colours("#dafbe1", "#1a7f37", "#116329"),
    "failed": Colours("#ffebe9", "#cf222e", "#a40e26"),
    "running": Colours("#ddf4ff", "#0969da", "#0550ae"),
    "waiting": Colours("#fff8c5", "#9a6700", "#7d4e00"),
    "blocked": Colours("#ffe7d1", "#bc4c00", "#8a3600"),
    "denied": Colours("#ffeff7", "#bf3989", "#99286e"),
    "skipped": Colours("#eaeef2", "#6e7781", "#57606a"),
    "cancelled": Colours("#eaeef2", "#6e7781", "#57606a"),
    "pending": Colours("#fbefff", "#8250df", "#6639ba"),
    "never_reached": Colours("#ffffff", "#8c959f", "#57606a"),
}
_DARK: Final[Mapping[str, Colours]] = {
    PLAIN: Colours("#161b22", "#8b949e", "#e6edf3"),
    "completed": Colours("#0f2d1a", "#3fb950", "#56d364"),
    "failed": Colours("#3a1214", "#f85149", "#ff7b72"),
    "running": Colours("#0c2d57", "#58a6ff", "#79c0ff"),
    "waiting": Colours("#342a0b", "#d29922", "#e3b341"),
    "blocked": Colours("#3b2008", "#f0883e", "#ffa657"),
    "denied": Colours("#361527", "#f778ba", "#ff9bce"),
    "skipped": Colours("#21262d", "#8b949e", "#b1bac4"),
    "cancelled": Colours("#21262d", "#8b949e", "#b1bac4"),
    "pending": Colours("#271a45", "#a371f7", "#bc8cff"),
    "never_reached": Colours("#0d1117", "#6e7681", "#b1bac4"),
}

LINES: Final[Mapping[str, tuple[str, str]]] = {
    "arc": ("#57606a", "#8b949e"),
    "failure": ("#cf222e", "#f85149"),
    "any": ("#8250df", "#a371f7"),
    "need": ("#0969da", "#58a6ff"),
}
"""The colour of each kind of line, by day and by night."""
GROUND, TEXT, QUIET = ("#ffffff", "#0d1117"), ("#24292f", "#e6edf3"), ("#57606a", "#9da7b1")
"""Behind everything; names; small texts."""


def colours_of(status: str) -> tuple[str, Colours]:
    """The name of a status as the style has it, and its colours by day. One that is not known is shown as plain."""
    name = status if status in _LIGHT else PLAIN
    return name, _LIGHT[name]


def _variables(night: bool) -> str:
    rows = [("ground", GROUND[night]), ("text", TEXT[night]), ("quiet", QUIET[night])]
    rows += [(kind, colours[night]) for kind, colours in LINES.items()]
    for name, (fill, stroke, text) in (_DARK if night else _LIGHT).items():
        word = name.replace("_", "-")
        rows += [(f"{word}-fill", fill), (f"{word}-stroke", stroke), (f"{word}-text", text)]
    return ";".join([f"--wg-{name}:{value}" for name, value in rows])


def _rules() -> str:
    rules = [
        ".wg .ground{fill:var(--wg-ground)}",
        ".wg .name{fill:var(--wg-text)}",
        ".wg .small{fill:var(--wg-quiet)}",
        ".wg .label{fill:var(--wg-text);stroke:var(--wg-ground)}",
    ]
    rules += [
        f".wg .{kind} .way{{stroke:var(--wg-{kind})}}.wg .{kind} .head{{fill:var(--wg-{kind})}}" for kind in LINES
    ]
    for name in _LIGHT:
        word = name.replace("_", "-")
        rules.append(f".wg .is-{word} .edge{{fill:var(--wg-{word}-fill);stroke:var(--wg-{word}-stroke)}}")
        rules.append(
            f".wg .is-{word} .bar{{fill:var(--wg-{word}-stroke)}}.wg .is-{word} .status{{fill:var(--wg-{word}-text)}}"
        )
    return "".join(rules)


STYLE: Final = f".wg{{{_variables(False)}}}@media (prefers-color-scheme:dark){{.wg{{{_variables(True)}}}}}{_rules()}"
"""It names only what is inside a picture, since a style of a picture on a page is one of the page."""
