"""Ranges of extents in buckets: each has kernels of its own, a dispatcher chooses, outside nothing runs or the
original."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import superopt
from superopt.errors import BadInput, BadOption, UnsupportedProgram
from superopt.run import buckets as run_buckets
from superopt.run.buckets import superoptimize_buckets
from superopt.run.ranged import AnotherProgram, axis
from superopt.run.settings import Settings
from superopt.transforms.emit.bundle_buckets import read_buckets

torch: Any = pytest.importorskip("torch")
SETTINGS: dict[str, Any] = {"budget": 1, "store": None, "seed": 0, "against": "operators", "interpret": True}
LENGTHS = (1, 2, 7, 8, 9, 13, 31, 32, 53, 61, 63, 64)  # ends of buckets, their neighbours, primes


class Gate(torch.nn.Module):
    """Rows of any number."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.silu(x) * x


def marked(high: int = 64) -> Any:
    return ({0: torch.export.Dim("n", min=1, max=high)},)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def gate() -> Any:
    return superopt.optimize(
        Gate(), torch.randn(5, 16), dynamic_shapes=marked(), buckets=[1, 8, 64], **SETTINGS
    )


def right(module: Any, length: int) -> bool:
    x = torch.randn(length, 16)
    return torch.allclose(module(x), Gate()(x), rtol=1e-4, atol=1e-5)


def test_each_length_runs_the_kernels_of_its_bucket(gate: Any) -> None:
    bounds = [(b.axes[0].low, b.axes[0].high) for b in gate.outcome.buckets]
    assert bounds == [(1, 1), (2, 8), (9, 64)]
    first, *others = (b.outcome.ranged for b in gate.outcome.buckets)
    assert first is None  # one extent: kernels of fixed shapes
    assert [(r.record.axes[0].low, r.record.axes[0].high) for r in others] == bounds[1:]
    before = gate.calls["kernels"]
    for length in LENGTHS:
        assert right(gate, length), length
    assert gate.calls["kernels"] == before + len(LENGTHS)
    with pytest.raises(
        BadInput, match="expected n from 1 to 1, or n from 2 to 8, or n from 9 to 64, got n 65"
    ):
        gate(torch.randn(65, 16))
    with pytest.raises(BadInput, match="argument 0 of"):
        gate(torch.randn(3, 15))


def test_the_original_runs_outside_and_says_so_once(gate: Any) -> None:
    gate = pickle.loads(pickle.dumps(gate))
    gate.fallback = True
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert right(gate, 65)
        assert right(gate, 66)
        assert right(gate, 64)
    assert [str(w.message).partition(",")[0] for w in said] == [
        "superopt's Gate is called with other arguments than its kernels take"
    ]
    assert gate.calls == {"kernels": 1, "original": 2}


def test_a_bundle_has_one_for_each_bucket(gate: Any, tmp_path: Path) -> None:
    folder = gate.save(tmp_path / "gate")
    again = superopt.load(folder, interpret=True)
    for length in (1, 2, 8, 9, 61):
        assert right(again, length), length
    with pytest.raises(BadInput, match="got n 65"):
        again(torch.randn(65, 16))
    assert sorted(p.name for p in folder.iterdir()) == [
        "buckets.json", "module.json", "n-1-1", "n-2-8", "n-9-64", "weights.pt"
    ]  # fmt: skip
    assert gate.save(folder) == folder  # it may be replaced
    described = json.loads((folder / "buckets.json").read_text())
    described["buckets"][1]["bounds"]["n"] = [2, 9]  # its kernels know their range themselves
    (folder / "buckets.json").write_text(json.dumps(described))
    wider = superopt.load(folder, interpret=True)
    assert right(wider, 8)
    with pytest.raises(BadInput, match="expected n from 2 to 8, got 9"):
        wider(torch.randn(9, 16))
    wrong: dict[str, Any] = {"files": {}, "buckets": [], "places": {}, "version": 2}
    for entry, value in wrong.items():
        (folder / "buckets.json").write_text(json.dumps({**described, entry: value}))
        with pytest.raises(BadInput, match="expected the buckets of a bundle"):
            read_buckets(folder)
    (folder / "buckets.json").write_text(json.dumps(described))
    (folder / "n-2-8" / "bundle.json").write_text("{}")
    with pytest.raises(BadInput, match=r"expected 'n-2-8/bundle\.json' as it was written"):
        read_buckets(folder)
    shutil.rmtree(folder / "n-2-8")
    with pytest.raises(BadInput, match="expected the buckets of a bundle"):
        read_buckets(folder)


LINALG = """
func.func @f(%x: tensor<?x24xf32>) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %1 : tensor<?x24xf32>
}
"""


def test_a_linalg_program_in_buckets() -> None:
    made = superopt.optimize(LINALG, dynamic="n=1..8..64", budget=1, store=None, against="operators")
    assert [(b.axes[0].low, b.axes[0].high) for b in made.outcome.buckets] == [(1, 8), (9, 64)]
    for length in LENGTHS:
        x = torch.randn(length, 24)
        assert torch.allclose(made(x), torch.exp(x), rtol=1e-4), length
    with pytest.raises(BadInput, match="got n 65"):
        made(torch.randn(65, 24))
    assert Settings(dynamic="n=1..auto..64").halves
    for wrong in ("n=1..", "n=1..2..x", "n=auto..3", "n=1..auto"):
        with pytest.raises(BadOption, match="expected bounds as in"):
            Settings(dynamic=wrong)


OVER = axis("n", 1, 64, [(0, 0, 1)])


class Made:
    """What stands for the outcome of a search, which costs as the extent that it was searched at."""

    def __init__(self, high: int) -> None:
        self.ranged, self.high = object(), high


Refuse: TypeAlias = Callable[[int, int], UnsupportedProgram | None]
Cheaper: TypeAlias = Callable[[int, int], bool]


def halved(
    patch: pytest.MonkeyPatch, refuse: Refuse, cheaper: Cheaper | None = None
) -> list[tuple[int, int]]:
    """The bounds of the parts that get kernels. `refuse` says why one does not; `cheaper`, given the lows of a part
    and of the whole, whether it beats that."""

    def made(_read: Any, over: Any, *_: Any) -> Any:
        (part,) = over
        if error := refuse(part.low, part.high):
            raise error
        return Made(part.high)

    def is_cheaper(_: Any, bucket: Any, whole: Any) -> bool:
        return cheaper is not None and cheaper(bucket.axes[0].low, whole.axes[0].low)

    patch.setattr(run_buckets, "superoptimize_range", made)
    patch.setattr(run_buckets.Maker, "cheaper", is_cheaper)
    nothing: Any = None
    maker = run_buckets.Maker(nothing, Settings(store=None), nothing)
    kept = maker.halved((OVER,), run_buckets.MOST_HALVINGS, auto=cheaper is not None)
    return [(b.axes[0].low, b.axes[0].high) for b in kept]


def test_a_range_without_kernels_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = UnsupportedProgram("too wide")
    assert halved(monkeypatch, lambda low, high: None) == [(1, 64)]
    assert halved(monkeypatch, lambda low, high: wide if high - low > 60 else None) == [(1, 8), (9, 64)]
    # What stays without kernels is left out, as is a program that depends on the number.
    assert halved(monkeypatch, lambda low, high: wide if high > 32 else None) == [(1, 8), (9, 24)]
    assert halved(monkeypatch, lambda low, high: AnotherProgram("another")) == []


def test_a_range_is_halved_where_that_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    assert halved(monkeypatch, lambda low, high: None, lambda low, whole: False) == [(1, 64)]
    upper = halved(monkeypatch, lambda low, high: None, lambda low, whole: low > whole)
    assert upper == [(1, 2), (3, 8), (9, 24), (25, 64)]


def test_without_any_kernels_the_first_reason_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedProgram("for a reason")

    monkeypatch.setattr(run_buckets, "superoptimize_range", refuse)
    with pytest.raises(UnsupportedProgram, match="for a reason"):
        superoptimize_buckets(refuse, [OVER], {"n": [8]}, Settings(store=None), None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([8, 4], r"expected ascending ends of buckets of n, got \[8, 4\]"),
        ([8, 8], "expected ascending ends"),
        ([8, 128], r"expected buckets of n from 1 to 64 to end inside, got \[8, 128\]"),
        ([0, 8], "to end inside"),
        ({"m": [8]}, "expected buckets of n, got 'm'"),
        ("automatic", r"expected buckets by the names of extents \(n\), or 'auto', got 'automatic'"),
        ({"n": "auto"}, "expected buckets by the names"),
        ([2.5], "expected ascending ends"),
    ],
)
def test_ends_are_checked(given: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        superopt.optimize(Gate(), torch.randn(5, 16), dynamic_shapes=marked(), buckets=given, **SETTINGS)


def test_buckets_are_of_dynamic_shapes() -> None:
    with pytest.raises(BadOption, match="expected buckets with dynamic_shapes"):
        superopt.optimize(Gate(), torch.randn(5, 16), buckets=[8], **SETTINGS)
