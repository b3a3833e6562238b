"""Options of passes, and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.errors import BadOption, Location
from superopt.options import MAX_INTEGER, spell_value, split_options
from superopt.transforms import registry
from superopt.transforms.passes import ModulePass, Pass


@dataclass(frozen=True)
class Sample(ModulePass):
    """Does nothing,
    at length.

    The second paragraph is not the summary.
    """

    flag: ClassVar[str] = "sample"

    budget: float = 1.5
    """Seconds
    to spend."""

    dims: tuple[int, ...] = (1, 2)
    mode: Literal["fast", "slow"] = "fast"
    """How."""

    limit: int | None = None
    dry_run: bool = False
    name: str = "x"

    def run(self, module: Any, diagnostics: Any) -> None:
        """Do nothing."""


HERE = Location("--sample", 1, 11)


def test_summary_and_documentation() -> None:
    assert Sample.summary() == "Does nothing, at length."
    docs = {o.name: (o.type_name, o.help) for o in Sample.options()}
    assert docs["budget"] == ("a number", "Seconds to spend.")
    assert docs["mode"] == ("one of fast|slow", "How.")
    assert docs["dims"] == ("a comma-separated list, each an integer", "")
    assert docs["dry-run"] == ("true or false", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Sample()),
        ("budget=3 dims=3,4", Sample(budget=3.0, dims=(3, 4))),
        ("dims={5} mode=slow", Sample(dims=(5,), mode="slow")),
        ("dims=[] dry-run", Sample(dims=(), dry_run=True)),
        ("dry_run=true limit=none", Sample(dry_run=True)),
        ("  limit=7\tname='a b'  ", Sample(limit=7, name="a b")),
        ('name="{"', Sample(name="{")),
        ("budget=1e-3", Sample(budget=0.001)),
    ],
)
def test_parse(text: str, expected: Sample) -> None:
    assert Sample.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("budget=soon", 11, "sample: option 'budget' expects a number, got 'soon'"),
        ("budget", 11, "sample: option 'budget' expects a number, got no value"),
        ("budget=nan", 11, "expects a number, got 'nan'"),
        ("budget=1_0", 11, "expects a number, got '1_0'"),
        ("limit=1_0", 11, "expects an integer or none, got '1_0'"),
        ("limit=3.5", 11, "expects an integer or none, got '3.5'"),
        ("dims=1,x", 11, "expects a comma-separated list, each an integer, got '1,x'"),
        ("mode=quick", 11, "expects one of fast|slow, got 'quick'"),
        ("dry-run=maybe", 11, "expects true or false, got 'maybe'"),
        (
            "budget=1 bugdet=2",
            20,
            "sample has no option 'bugdet' (did you mean 'budget'?); its options: budget, ",
        ),
        (
            "limit=2147483648",
            11,
            "option 'limit' expects an integer between -2147483647 and 2147483647, got 2147",
        ),
        ("limit=1 limit=2", 19, "sample: option 'limit' is given twice"),
        ("=3", 11, "expected options as name=value, got '=3'"),
        ("name='a", 16, "unterminated ' in option value"),
        ("dims={1", 16, "missing '}' in option value '{1'"),
    ],
)
def test_parse_errors_are_located(text: str, column: int, message: str) -> None:
    with pytest.raises(BadOption) as caught:
        Sample.parse(text, HERE)
    assert message in caught.value.message
    assert caught.value.location == Location("--sample", 1, column)


integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
samples = st.builds(
    Sample,
    budget=st.floats(0, 1e9),
    dims=st.lists(integers).map(tuple),
    mode=st.sampled_from(["fast", "slow"]),
    limit=st.none() | integers,
    dry_run=st.booleans(),
    name=st.text(st.characters(codec="ascii", exclude_categories=["C"])).filter(
        lambda s: not ('"' in s and "'" in s)
    ),
)


@given(samples)
def test_spelling_is_read_back(sample: Sample) -> None:
    spelled = str(sample)
    assert spelled.startswith("sample")
    options = spelled.removeprefix("sample").removeprefix("{").removesuffix("}")
    assert Sample.parse(options) == sample


@pytest.mark.parametrize(
    "text", ["", "a b", "a'b", 'a"b', 'it\'s "x" }', "\"'", "''\"\"", "'", '"', "{a", " "]
)
def test_a_value_that_is_spelled_is_read_back(text: str) -> None:
    written = f"a={spell_value(text)} b=1"
    assert [(name, value) for name, value, _ in split_options(written)] == [("a", text), ("b", "1")]


def test_split_options_gives_places() -> None:
    assert split_options("a=1  b") == [("a", "1", 0), ("b", None, 5)]


def test_every_registered_pass_loads_and_is_documented() -> None:
    for flag in registry.flags():
        loaded = registry.load(flag)
        assert issubclass(loaded, Pass)
        assert loaded.flag == flag
        assert loaded.summary().endswith("."), f"{flag}: the summary is a sentence"
        for option in loaded.options():
            assert option.help.endswith("."), f"{flag}: option {option.name} has no help"


def test_clash_of_names() -> None:
    with pytest.raises(BadOption, match="'cse' is registered already"):
        registry.register("cse", "nowhere:Nothing")
    with pytest.raises(BadOption, match="'partition' is registered already"):
        registry.register("partition", "nowhere:Nothing")


def test_unknown_pass() -> None:
    with pytest.raises(BadOption, match=r"unknown pass 'partitoin' \(did you mean 'partition'\?\)"):
        registry.load("partitoin")
