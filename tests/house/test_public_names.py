"""The public surface is what is written down: every promised name is there, documented, and only handed on."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import workflow_sdk
from workflow_sdk import driver, errors

INIT = Path(__file__).parents[2] / "workflow_sdk" / "__init__.py"

PROMISED = {
    # defining
    "workflow", "Workflow", "step", "Context", "Backoff", "Break", "Continue",
    # what operations give back
    "Failure", "Message", "RaceResult", "Success",
    # running one instance, and reaching it
    "Delivery", "History", "RunResult", "Status", "read_history", "run_workflow", "send_message",
    # stores
    "Batch", "Driver", "open_driver",
}  # fmt: skip


def test_every_promised_name_is_public() -> None:
    assert set(workflow_sdk.__all__) >= PROMISED


def test_every_error_is_public() -> None:
    assert set(workflow_sdk.__all__) >= set(errors.__all__)


def test_the_contract_of_drivers_is_public() -> None:
    assert set(driver.__all__) >= {"Driver", "Batch", "open_driver", "ConflictError"}


def test_public_names_are_listed_once_and_exist() -> None:
    assert len(set(workflow_sdk.__all__)) == len(workflow_sdk.__all__)
    assert [name for name in workflow_sdk.__all__ if not hasattr(workflow_sdk, name)] == []


@pytest.mark.parametrize("name", sorted(workflow_sdk.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(workflow_sdk, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        # Not inherited: the docstring of `Exception` or `object` promises nothing.
        own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert own
        # What `dataclass` and `NamedTuple` write of themselves repeats the signature.
        assert not own.startswith(f"{name}(")


def test_the_front_door_has_no_logic() -> None:
    allowed = (ast.ImportFrom, ast.Expr, ast.Assign)
    for node in ast.parse(INIT.read_text()).body:
        assert isinstance(node, allowed), ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.module.startswith(("workflow_sdk", "__future__"))
        elif isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), "only the docstring"
        else:
            assert [ast.unparse(target) for target in node.targets] == ["__all__"]


def test_public_methods_of_the_context_are_documented() -> None:
    members = vars(workflow_sdk.Context).items()
    public = {name: member for name, member in members if not name.startswith("_") and hasattr(member, "__doc__")}
    assert public.keys() >= {"step", "loop", "sleep", "sleep_until", "listen", "join", "race", "map", "attempt"}
    assert [name for name, member in public.items() if not member.__doc__] == []
