"""YAML as plain data: the core schema of YAML 1.2, so that `on`, `no` and `12:30` are texts.

A key that comes twice, a tag, and an alias that makes too much of a little are refused: documents come from anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from workflow_sdk.errors import DefinitionError
from workflow_sdk.graphs.definitions.plain import DEPTH_MAX, VALUES_MAX

_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_MERGE: Final = "<<"
"""As a key without quotes, it asks for what YAML 1.2 has not."""
_WHOLE: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FRACTION: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def read_yaml(text: str) -> Any:
    """The plain data of a YAML text with one document. DefinitionError says what is wrong, and in which line."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise DefinitionError("YAML needs the extra `yaml`: pip install 'workflow-sdk[yaml]'") from None
    # Only its parser is used, which makes no objects. The one in C is many times as fast.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(yaml.parse(text, Loader=loader)).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise DefinitionError(f"{where}no YAML: {' '.join(_told(error).split())}") from None
    except (UnicodeError, ValueError) as error:
        raise DefinitionError(f"no YAML: {error}") from None


def _told(error: Exception) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def write_yaml(data: Any) -> str:
    """Plain data as YAML, which `read_yaml` reads back as it was."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise DefinitionError("YAML needs the extra `yaml`: pip install 'workflow-sdk[yaml]'") from None

    class Dumper(yaml.SafeDumper):
        """Writes everything that stands in several places anew."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_str(self, data: str) -> Any:
            is_text = isinstance(resolved(data), str) and data != _MERGE
            # What can't be printed is escaped: some characters are ends of lines to one reader and not to another.
            style = ("'" if not is_text else None) if data.isprintable() else '"'
            writer: Any = self
            return writer.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))


class _Composer:
    """Makes data of the events of a parser."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, tuple[Any, int]] = {}
        """What has a name, and how many values there are in it."""
        self._count = 0

    def document(self) -> Any:
        """The data of the one document that there is."""
        next(self._events)
        start = next(self._events)
        if type(start).__name__ == "StreamEndEvent":
            return None
        found = self._value(next(self._events), DEPTH_MAX)
        next(self._events)
        more = next(self._events)
        if type(more).__name__ != "StreamEndEvent":
            raise _fault(more, "there is a second document")
        return found

    def _value(self, event: Any, depth: int) -> Any:
        kind = type(event).__name__
        self._count += 1
        if kind == "AliasEvent":
            return self._alias(event)
        if self._count > VALUES_MAX:
            raise _fault(event, f"a document has at most {VALUES_MAX:,} values")
        if depth < 0:
            raise _fault(event, f"a document is nested {DEPTH_MAX} deep at most")
        if event.tag not in (None, "!") or (event.tag == "!" and kind != "ScalarEvent"):
            raise _fault(event, f"tags such as {event.tag!r:.60} are not read")
        before = self._count
        made = self._read(kind, event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = made, self._count - before + 1
        return made

    def _read(self, kind: str, event: Any, depth: int) -> Any:
        if kind == "ScalarEvent":
            return _scalar(event)
        return self._list(depth) if kind == "SequenceStartEvent" else self._dict(depth)

    def _alias(self, event: Any) -> Any:
        found = self._anchors.get(event.anchor)
        if found is None:
            raise _fault(event, f"there is no anchor {event.anchor!r:.60} before this")
        made, count = found
        self._count += count
        if self._count > VALUES_MAX:
            raise _fault(event, f"a document has at most {VALUES_MAX:,} values, those of aliases counted again")
        return made

    def _list(self, depth: int) -> list[Any]:
        made: list[Any] = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            made.append(self._value(event, depth - 1))
        return made

    def _dict(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            key = self._value(event, depth - 1)
            if not isinstance(key, str):
                raise _fault(event, f"a key is a text, not {key!r:.60}")
            if key in made:
                raise _fault(event, f"the key {key!r:.60} comes twice")
            if key == _MERGE and getattr(event, "implicit", (False,))[0]:
                raise _fault(event, "keys are not merged with `<<`; write them out")
            made[key] = self._value(next(self._events), depth - 1)
        return made


def _fault(event: Any, what: str) -> DefinitionError:
    return DefinitionError(f"line {event.start_mark.line + 1}: {what}")


def _scalar(event: Any) -> Any:
    text: str = event.value
    return resolved(text) if event.implicit[0] else text  # what is quoted is a text


def resolved(text: str) -> Any:
    """What a text without quotes stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    return float(text) if _FRACTION.fullmatch(text) else text
