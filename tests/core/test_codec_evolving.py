"""A deploy changes a class of which values are recorded: what comes back, and what is said where nothing can."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from workflow_sdk import Context, Driver, Status, StepError, run_workflow, send_message, workflow
from workflow_sdk.errors import CodecError
from workflow_sdk.values import Codec

pytestmark = pytest.mark.law(4, 18)

CODEC = Codec()
HEAD = """
import enum, typing, functools, attrs, msgspec, pydantic
from dataclasses import dataclass, field, InitVar
from typing import Any, NamedTuple
"""
Deploy = Callable[[str], Any]


@pytest.fixture
def deploy() -> Iterator[Deploy]:
    """Deploys a release of the module `evolving`, in place of the one before."""

    def deployed(source: str) -> Any:
        module = sys.modules["evolving"] = ModuleType("evolving")
        exec(compile(HEAD + source, "<evolving>", "exec", dont_inherit=True), vars(module))
        return module

    yield deployed
    sys.modules.pop("evolving", None)


KINDS = {
    "dataclass": "@dataclass\nclass Order:\n",
    "dataclass with slots": "@dataclass(slots=True)\nclass Order:\n",
    "frozen dataclass": "@dataclass(frozen=True)\nclass Order:\n",
    "attrs": "@attrs.define\nclass Order:\n",
    "frozen attrs": "@attrs.frozen\nclass Order:\n",
    "struct": "class Order(msgspec.Struct):\n",
    "named tuple": "class Order(NamedTuple):\n",
    "model": "class Order(pydantic.BaseModel):\n",
    "pydantic dataclass": "@pydantic.dataclasses.dataclass\nclass Order:\n",
}
DEFAULTS = {
    "attrs": "attrs.Factory(list)",
    "frozen attrs": "attrs.Factory(list)",
    "struct": "msgspec.field(default_factory=list)",
    "model": "pydantic.Field(default_factory=list)",
}
FIELDS = "    id: str\n    count: int = 1\n"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """What the class is made with."""
    return str(request.param)


def both(data: bytes, hint: object) -> list[Any]:
    """The value as it is read with the type hint, and without."""
    return [CODEC.decode(data, hint), CODEC.decode(data)]


def test_a_field_is_added_with_a_default(deploy: Deploy, kind: str) -> None:
    data = CODEC.encode(deploy(KINDS[kind] + FIELDS).Order(id="a", count=2))
    factory = DEFAULTS.get(kind, "field(default_factory=list)")
    lines = f"    lines: list[str] = {factory}\n" if kind != "named tuple" else "    lines: tuple[str, ...] = ()\n"
    after = deploy(KINDS[kind] + FIELDS + lines + "    note: str = 'none'\n")
    for seen in both(data, after.Order):
        assert type(seen) is after.Order
        assert (seen.id, seen.count, list(seen.lines), seen.note) == ("a", 2, [], "none")
        assert seen == after.Order(id="a", count=2)
        assert CODEC.decode(CODEC.encode(seen)) == seen
    one, other = both(data, after.Order)
    if kind != "named tuple":
        one.lines.append("x")
        assert other.lines == []


def test_a_field_is_added_without_a_default(deploy: Deploy, kind: str) -> None:
    data = CODEC.encode(deploy(KINDS[kind] + FIELDS).Order(id="a", count=2))
    after = deploy(KINDS[kind] + "    id: str\n    price: int\n    count: int = 1\n")
    for hint in (after.Order, Any):
        with pytest.raises(CodecError, match="price"):
            CODEC.decode(data, hint)
    assert CODEC.decode(data, plain=True) == {"id": "a", "count": 2}


def test_a_field_is_removed(deploy: Deploy, kind: str) -> None:
    before = deploy(KINDS[kind] + FIELDS + "    note: str = ''\n")
    data = CODEC.encode(before.Order(id="a", count=2, note="gone"))
    after = deploy(KINDS[kind] + FIELDS)
    for seen in both(data, after.Order):
        assert type(seen) is after.Order
        assert (seen.id, seen.count) == ("a", 2)
        assert seen == after.Order(id="a", count=2)
        assert "gone" not in repr(seen)
        assert CODEC.decode(CODEC.encode(seen)) == seen


def test_fields_are_reordered(deploy: Deploy, kind: str) -> None:
    data = CODEC.encode(deploy(KINDS[kind] + "    id: str\n    count: int\n").Order(id="a", count=2))
    after = deploy(KINDS[kind] + "    count: int\n    id: str\n")
    for seen in both(data, after.Order):
        assert (seen.id, seen.count) == ("a", 2)
        assert seen == after.Order(id="a", count=2)


def test_a_field_is_renamed(deploy: Deploy, kind: str) -> None:
    """For what is recorded it is one removed and one added: with a default, that is what comes back."""
    data = CODEC.encode(deploy(KINDS[kind] + "    id: str\n    cents: int\n").Order(id="a", cents=2))
    renamed = deploy(KINDS[kind] + "    id: str\n    price: int\n")
    with pytest.raises(CodecError, match="price"):
        CODEC.decode(data, renamed.Order)
    kept = deploy(KINDS[kind] + "    id: str\n    cents: int\n    @property\n    def price(self): return self.cents\n")
    for seen in both(data, kept.Order):
        assert seen.price == 2


def test_a_field_becomes_a_property_or_a_method(deploy: Deploy, kind: str) -> None:
    data = CODEC.encode(deploy(KINDS[kind] + "    id: str\n    total: int\n").Order(id="a", total=2))
    for code in ("@property\n    def total(self): return 3", "def total(self): return 3"):
        after = deploy(KINDS[kind] + f"    id: str\n    {code}\n")
        for seen in both(data, after.Order):
            total = seen.total if code.startswith("@") else seen.total()
            assert total == 3
            assert CODEC.decode(CODEC.encode(seen)) == seen


def test_a_field_gets_another_annotation(deploy: Deploy, kind: str) -> None:
    """Nothing is coerced: what was recorded comes back as it was."""
    data = CODEC.encode(deploy(KINDS[kind] + "    id: str\n    count: int\n").Order(id="a", count=2))
    after = deploy(KINDS[kind] + "    id: str\n    count: str\n")
    for seen in both(data, after.Order):
        assert type(seen.count) is int
    if kind != "model":  # an object of a model is one that pydantic has checked
        with pytest.raises(CodecError, match="count"):
            CODEC.decode_checked(data, after.Order)


POST = "    def __post_init__(self):\n        made.append(self.id)\n        self.total = self.count * 10\n"
ATTRS_POST = POST.replace("__post_init__", "__attrs_post_init__")
FROZEN = POST.replace("self.total = ", "object.__setattr__(self, 'total', ").replace("* 10\n", "* 10)\n")
MADE = {
    "dataclass": (FIELDS + "    total: int = field(init=False)\n" + POST),
    "dataclass with slots": (FIELDS + "    total: int = field(init=False)\n" + POST),
    "frozen dataclass": (FIELDS + "    total: int = field(init=False)\n" + FROZEN),
    "pydantic dataclass": (FIELDS + "    total: int = field(init=False)\n" + POST),
    "attrs": (FIELDS + "    total: int = attrs.field(init=False)\n" + ATTRS_POST),
    "frozen attrs": (
        FIELDS + "    total: int = attrs.field(init=False)\n" + FROZEN.replace("__post_init__", "__attrs_post_init__")
    ),
    "struct": (FIELDS + "    total: int = 0\n" + POST),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_field_is_added_that_is_made_when_an_object_is(deploy: Deploy, kind: str) -> None:
    data = CODEC.encode([deploy(KINDS[kind] + FIELDS).Order(id="a", count=2)])
    after = deploy("made = []\n" + KINDS[kind] + MADE[kind])
    hint: Any = list.__class_getitem__(after.Order)
    (seen,) = CODEC.decode(data, hint)
    assert type(seen) is after.Order
    assert (seen.id, seen.count, seen.total) == ("a", 2, 20)
    assert seen == after.Order(id="a", count=2)
    # Recorded with it, it comes back as it is, and is not made again.
    after.made.clear()
    if not kind.startswith("frozen"):
        seen.total = 7
    again = CODEC.decode(CODEC.encode(seen), after.Order)
    assert again.total == seen.total
    assert after.made == ([] if kind != "struct" else ["a"])


@pytest.mark.parametrize("kind", [kind for kind in MADE if kind != "struct"])
def test_the_code_of_a_class_is_run_only_where_a_hint_names_it(deploy: Deploy, kind: str) -> None:
    """Whoever can write a row could choose it otherwise."""
    data = CODEC.encode(deploy(KINDS[kind] + FIELDS).Order(id="a", count=2))
    after = deploy("made = []\n" + KINDS[kind] + MADE[kind])
    for hint in (Any, object, dict[str, Any], int):
        with pytest.raises(CodecError, match="annotate what holds it"):
            CODEC.decode(data, hint)
    assert after.made == []
    assert CODEC.decode(data, plain=True) == {"id": "a", "count": 2}


def test_a_field_that_can_not_be_made_is_said(deploy: Deploy) -> None:
    data = CODEC.encode(deploy("@dataclass\nclass Order:\n    id: str\n").Order("a"))
    for more in (
        "    seed: InitVar[int]\n    def __post_init__(self, seed): self.total = seed\n",
        "    def __post_init__(self): raise LookupError('no such order')\n",
    ):
        after = deploy("@dataclass\nclass Order:\n    id: str\n    total: int = field(init=False)\n" + more)
        with pytest.raises(CodecError, match=r"total.*give the field a default"):
            CODEC.decode(data, after.Order)


def test_a_field_that_is_given_a_value_later_stays_without_one(deploy: Deploy) -> None:
    after = deploy("@dataclass\nclass Order:\n    id: str\n    cache: dict = field(init=False)\n")
    seen = CODEC.decode(CODEC.encode(after.Order("a")), after.Order)
    assert not hasattr(seen, "cache")
    made = deploy(
        "@dataclass\nclass Order:\n    id: str\n    total: int = field(init=False)\n"
        "    def __post_init__(self): self.total = 1\n"
    )
    order = made.Order("a")
    del order.total
    seen = CODEC.decode(CODEC.encode(order), made.Order)
    assert (type(seen), hasattr(seen, "total")) == (made.Order, False)
    assert CODEC.decode(CODEC.encode(order), plain=True) == {"id": "a"}


def test_a_default_of_attrs_that_looks_at_the_object(deploy: Deploy) -> None:
    data = CODEC.encode(deploy("@attrs.define\nclass Order:\n    _id: str\n    count: int = 1\n").Order("a", 2))
    after = deploy(
        "@attrs.define\nclass Order:\n    _id: str\n    count: int = 1\n    total: int = attrs.field()\n"
        "    @total.default\n    def _total(self): return self.count * 10\n"
    )
    assert CODEC.decode(data, after.Order) == after.Order("a", 2)
    with pytest.raises(CodecError, match="annotate"):
        CODEC.decode(data)


COLOUR = "class Colour(enum.Enum):\n    RED = 'r'\n    BLUE = 'b'\n"


def test_an_enum_changes(deploy: Deploy) -> None:
    before = deploy(COLOUR)
    red, blue = CODEC.encode(before.Colour.RED), CODEC.encode({"of": [before.Colour.BLUE]})
    after = deploy("class Colour(enum.Enum):\n    CRIMSON = 'r'\n    GREEN = 'g'\n")
    for seen in both(red, after.Colour):
        assert seen is after.Colour.CRIMSON  # known by its value
    for hint in (after.Colour, Any):
        with pytest.raises(CodecError, match=r"'b' is not a member .* any more at \['of'\]\[0\]"):
            CODEC.decode(blue, hint)
    assert CODEC.decode(blue, plain=True) == {"of": ["b"]}
    missing = deploy(
        "class Colour(enum.Enum):\n    RED = 'r'\n    OTHER = 'o'\n"
        "    @classmethod\n    def _missing_(cls, value): return cls.OTHER\n"
    )
    assert CODEC.decode(blue, missing.Colour) == {"of": [missing.Colour.OTHER]}
    text = deploy("class Colour(enum.StrEnum):\n    RED = 'r'\n")
    assert CODEC.decode(red, text.Colour) is text.Colour.RED


def test_an_enum_with_values_of_its_own_is_known_by_its_names(deploy: Deploy) -> None:
    data = CODEC.encode(deploy("class Colour(enum.Enum):\n    RED = (1, 2)\n    BLUE = (3, 4)\n").Colour.RED)
    after = deploy("class Colour(enum.Enum):\n    BLUE = (3, 4)\n    RED = (5, 6)\n")
    assert CODEC.decode(data, after.Colour) is after.Colour.RED
    with pytest.raises(CodecError, match="any more"):
        CODEC.decode(data, deploy("class Colour(enum.Enum):\n    CRIMSON = (1, 2)\n").Colour)


def test_a_model_gets_validators(deploy: Deploy) -> None:
    """What is recorded was valid when it was: it comes back as it was. What comes from outside is checked."""
    data = CODEC.encode(deploy(KINDS["model"] + FIELDS).Order(id="a", count=2))
    plain = CODEC.encode({"id": "a", "count": 2})
    after = deploy(
        KINDS["model"] + FIELDS + "    @pydantic.field_validator('count')\n    @classmethod\n"
        "    def many(cls, count):\n        if count < 10: raise ValueError('too few')\n        return count\n"
    )
    for seen in both(data, after.Order):
        assert (type(seen), seen.id, seen.count) == (after.Order, "a", 2)
    with pytest.raises(CodecError, match="too few"):
        CODEC.decode_checked(plain, after.Order)


def test_a_model_gets_a_default_made_from_other_fields(deploy: Deploy) -> None:
    data = CODEC.encode(deploy(KINDS["model"] + FIELDS).Order(id="a", count=2))
    after = deploy(
        KINDS["model"] + FIELDS + "    total: int = pydantic.Field(default_factory=lambda d: d['count'] * 10)\n"
    )
    assert CODEC.decode(data, after.Order) == after.Order(id="a", count=2)


def test_a_class_is_renamed_or_moves(deploy: Deploy) -> None:
    data = CODEC.encode(deploy(KINDS["dataclass"] + FIELDS).Order("a"))
    renamed = deploy(KINDS["dataclass"].replace("Order", "Purchase") + FIELDS)
    with pytest.raises(CodecError, match="as an alias"):
        CODEC.decode(data, renamed.Purchase)
    aliased = deploy(KINDS["dataclass"].replace("Order", "Purchase") + FIELDS + "Order = Purchase\n")
    for seen in both(data, aliased.Purchase):
        assert type(seen) is aliased.Purchase
    moved = deploy(KINDS["dataclass"] + FIELDS).Order
    moved.__module__ = "elsewhere"
    deploy("")
    assert type(CODEC.decode(data, moved)) is moved
    with pytest.raises(CodecError):
        CODEC.decode(data)


async def test_a_deploy_while_an_instance_waits(driver: Driver, deploy: Deploy) -> None:
    """Recorded results, the state of a loop, messages and the input come back as objects of the new class."""
    before = deploy(KINDS["dataclass"] + FIELDS)

    def release(module: Any) -> Any:
        async def fetch() -> Any:
            return module.Order("a", 2)

        fetch.__annotations__["return"] = module.Order

        async def run(ctx: Context, order: Any) -> Any:
            fetched = await ctx.step("fetch", fetch)
            (message,) = await ctx.listen_many("order", count=1, type=module.Order, timeout=0) or [fetched]
            await ctx.listen("go", timeout=3600)
            return [order.total, fetched.total, message.total] if hasattr(order, "total") else None

        run.__annotations__["order"] = module.Order
        return workflow(name="evolves")(run)

    first = await run_workflow(release(before), before.Order("i", 3), driver=driver, instance_id="i", mode="yield")
    assert first.status is Status.WAITING
    after = deploy("made = []\n" + KINDS["dataclass"] + MADE["dataclass"])
    await send_message(driver, "i", "go")
    result = await run_workflow(release(after), driver=driver, instance_id="i")
    assert (result.status, result.output) == (Status.COMPLETED, [30, 20, 20])


async def test_a_field_without_a_default_makes_the_instance_stuck_and_loses_nothing(
    driver: Driver, deploy: Deploy
) -> None:
    before = deploy(KINDS["dataclass"] + FIELDS)
    ran: list[str] = []

    def release(module: Any) -> Any:
        async def fetch() -> Any:
            ran.append("fetch")
            return module.Order("a", 2)

        @workflow(name="evolves")
        async def run(ctx: Context) -> str:
            try:
                order = await ctx.step("fetch", fetch)
            except (StepError, CodecError):
                return "swallowed"
            await ctx.listen("go", timeout=3600)
            return str(order.id)

        return run

    await run_workflow(release(before), driver=driver, instance_id="i", mode="yield")
    worse = deploy(KINDS["dataclass"] + "    id: str\n    price: int\n")
    result = await run_workflow(release(worse), driver=driver, instance_id="i", mode="yield")
    assert result.status is Status.STUCK
    assert result.error is not None
    assert result.error.kind == "consistency"
    assert "give the field a default" in result.error.message
    better = deploy(KINDS["dataclass"] + "    id: str\n    price: int = 0\n")
    result = await run_workflow(release(better), driver=driver, instance_id="i", mode="yield")
    assert result.status is Status.WAITING
    assert ran == ["fetch"]
