"""Law 18: what values and failures name are classes of data, and making one runs none of its code."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any, NamedTuple

import pytest
from cbor2 import CBORTag, dumps

from workflow_sdk import CodecError
from workflow_sdk.values import Codec
from workflow_sdk.values.basics import Tag as tag
from workflow_sdk.values.failures import pack_failure, unpack_failure

ran: list[str] = []
CODEC = Codec()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Every test begins with nothing run."""
    ran.clear()


@dataclass
class Trap:
    """Whatever it does when it is made says so."""

    path: str
    more: int = field(default=0)

    def __new__(cls, *args: Any, **kwargs: Any) -> Trap:
        ran.append("__new__")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        ran.append("__post_init__")

    def __setattr__(self, name: str, value: object) -> None:
        ran.append(f"__setattr__ {name}")
        super().__setattr__(name, value)

    def __setstate__(self, state: object) -> None:
        ran.append("__setstate__")

    def __reduce__(self) -> Any:
        ran.append("__reduce__")
        return print, ("reduced",)


class Pair(NamedTuple):
    a: int
    b: int


class Colour(Enum):
    RED = 1


class Plain:
    """No class of data."""

    def __init__(self, *args: object) -> None:
        ran.append("__init__")


def function(*args: object) -> None:
    ran.append("function")


def document(name: str, names: list[str], values: list[object]) -> bytes:
    """A value with one object, of the class of that name."""
    table = CBORTag(tag.TABLE, [[name, *names]])
    return dumps(CBORTag(tag.DOCUMENT, [table, CBORTag(tag.OBJECT, [0, *values])]))


def test_an_object_is_made_without_running_any_code_of_its_class() -> None:
    made = CODEC.decode(document(f"{__name__}:Trap", ["path"], ["x"]))
    assert isinstance(made, Trap)
    assert (made.path, made.more) == ("x", 0)
    assert ran == []


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}:Plain",
        f"{__name__}:function",
        f"{__name__}:ran",
        f"{__name__}:Path",
        f"{__name__}:Popen",
        f"{Popen.__module__}:Popen",
        f"{Thread.__module__}:Thread",
        "builtins:eval",
        "builtins:type",
        "builtins:memoryview",
        "os:system",
        "os:_wrap_close",
        "functools:partial",
        "operator:methodcaller",
        "types:FunctionType",
        f"{__name__}:Trap.__init__",
        f"{__name__}:Trap.__class__",
        f"{__name__}:Colour.RED",
        "",
    ],
)
def test_a_class_that_is_not_of_data_is_refused(name: str) -> None:
    many: list[tuple[list[str], list[object]]] = [([], []), ([], ["echo"]), (["args"], [["echo"]])]
    for names, values in many:
        with pytest.raises(CodecError):
            CODEC.decode(document(name, names, values))
        with suppress(CodecError):
            # What comes from others may name classes that are not there.
            assert CODEC.decode_checked(document(name, names, values)) in ({}, "echo", {"args": ["echo"]})
    assert ran == []


def test_no_module_is_imported_for_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "imported"
    (tmp_path / "planted_class.py").write_text(f"open({str(trace)!r}, 'w')\nclass A(Exception): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CodecError, match="not loaded"):
        CODEC.decode(document("planted_class:A", [], []))
    failure = pack_failure(ValueError("no"), CODEC)
    failure[2] = ["planted_class:A", *failure[2]]  # type: ignore[misc]
    assert isinstance(unpack_failure(failure, CODEC), ValueError)
    assert not trace.exists()
    assert "planted_class" not in sys.modules


class Trapped(Exception):
    """Whatever it does when it is made says so."""

    def __new__(cls, *args: object) -> Trapped:
        ran.append("__new__")
        return super().__new__(cls, *args)

    def __init__(self, *args: object) -> None:
        ran.append("__init__")
        super().__init__(*args)

    def __setattr__(self, name: str, value: object) -> None:
        ran.append(f"__setattr__ {name}")
        super().__setattr__(name, value)

    def __setstate__(self, state: object) -> None:
        ran.append("__setstate__")

    @property
    def path(self) -> object:
        return vars(self)["path"]

    @path.setter
    def path(self, value: object) -> None:
        ran.append(f"set {value}")


def test_an_exception_is_made_without_running_any_code_of_its_class() -> None:
    record = pack_failure(Trapped("no"), CODEC)
    ran.clear()
    state: Any = record[5]
    state["path"] = CODEC.encode("/etc/passwd")
    state["__class__"] = CODEC.encode("int")
    state["other"] = CODEC.encode(1)
    made: Any = unpack_failure(record, CODEC)
    assert isinstance(made, Trapped)
    assert made.args == ("no",)
    assert vars(made)["other"] == 1
    assert ran == []


@pytest.mark.parametrize("name", ["builtins:SystemExit", f"{__name__}:Trap", "os:system", f"{__name__}:function"])
def test_a_failure_that_names_no_exception_is_that_of_its_base(name: str) -> None:
    record: Any = pack_failure(ValueError("no"), CODEC)
    record[2] = [name, "builtins:ValueError"]
    assert type(unpack_failure(record, CODEC)) is ValueError
    assert ran == []


def test_classes_of_data_are_found_by_their_names() -> None:
    assert CODEC.decode(document(f"{__name__}:Pair", ["a", "b"], [1, 2])) == Pair(1, 2)
    enum = dumps(CBORTag(tag.DOCUMENT, [CBORTag(tag.TABLE, [[f"{__name__}:Colour"]]), CBORTag(tag.ENUM_VALUE, [0, 1])]))
    assert CODEC.decode(enum) is Colour.RED
