"""Kernels for a range of one extent: right at every length, proved as a range, refused where that fails."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certify_support import program
from weakened import weakened

import superopt
from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import BadInput, BadOption, IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.extent import Extent, at, multiple_of, tiles_of
from superopt.inputs.programs import read_module
from superopt.program import KernelGraph
from superopt.report import Report
from superopt.run import outcome
from superopt.run.ranged import axis, checked_at, proved, superoptimize_range
from superopt.run.settings import Settings
from superopt.tools.superopt_verify import main as verify
from superopt.transforms.emit.bundle import read_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.ranged import written
from superopt.transforms.ingest.at_extent import DynamicProgram
from superopt.transforms.lower import lower
from superopt.verify.bundle import verify_bundle
from superopt.verify.ptx.check import PtxText
from superopt.verify.ranges import Family, Point, examined, forms, representatives, to_prove

torch: Any = pytest.importorskip("torch")
SETTINGS: dict[str, Any] = {"budget": 5, "store": None, "seed": 0, "against": "operators", "interpret": True}
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 53, 64, 97, 127, 128)  # of 1 to 128: primes, tiles and their neighbours


class Attention(torch.nn.Module):
    """One query against keys and values of any number, as a step of decoding has them."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


class Normed(torch.nn.Module):
    """Rows of any number, each by itself, and scratch-free."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm = torch.nn.RMSNorm(32)
        self.up = torch.nn.Linear(32, 48, bias=False)

    def forward(self, x: Any) -> Any:
        return self.up(self.norm(x))


def steps(length: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((2, 1, 16), (2, length, 16), (2, length, 16))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def attention() -> Any:
    n = torch.export.Dim("n", min=1, max=128)
    shapes = {"q": None, "k": {1: n}, "v": {1: n}}
    return superopt.optimize(Attention(), steps(9), dynamic_shapes=shapes, **SETTINGS)


def close(mine: Any, theirs: Any) -> bool:
    return torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_one_kernel_is_right_at_every_length(attention: Any) -> None:
    for length in LENGTHS:
        assert close(attention(*steps(length)), Attention()(*steps(length))), length
    assert attention.calls == {"kernels": len(LENGTHS), "original": 0}
    assert len(attention.outcome.emitted.kernels) == 1
    with pytest.raises(BadInput, match="expected n from 1 to 128, got 129"):
        attention(*steps(129))
    q, k, _ = steps(7)
    with pytest.raises(BadInput, match=r"argument 2 \('v'\) of"):
        attention(q, k, steps(8)[2])


def test_the_record_names_the_range_and_its_forms(attention: Any) -> None:
    record = attention.outcome.ranged.record
    (axis,) = record.axes
    assert (axis.low, axis.high, record.examined) == (1, 128, 128)
    assert axis.places == ((1, 1, 1), (2, 1, 1))
    assert {(1,), (128,)} <= {e.extents for e in record.extents}
    assert all(e.blocks and e.instances and e.delta is not None for e in record.extents)
    family = Family(attention.outcome.original, attention.outcome.lowered, record.axes)
    assert set(forms(family).values()) == {e.form for e in record.extents}
    assert record.summary in attention.report.remarks


def test_the_price_is_that_of_the_kernels_that_are_delivered(attention: Any) -> None:
    outcome, report = attention.outcome, attention.report
    assert [k.registers for k in report.kernels] == [c.registers for c in outcome.compiled]
    for kernel, compiled in zip(report.kernels, outcome.compiled, strict=True):
        assert compiled.counts is not None, "counted at the extent that is searched"
        assert kernel.wavefronts == (compiled.counts.shared.made, compiled.counts.shared.needed)
    target = cost.target(report.target)
    assert report.predicted_seconds == cost.compiled_seconds(outcome.lowered, outcome.compiled, target)


def test_rows_of_any_number(tmp_path: Path) -> None:
    original = Normed().eval()
    n = torch.export.Dim("rows", min=1, max=128)
    made = superopt.optimize(original, torch.randn(5, 32), dynamic_shapes=({0: n},), **SETTINGS)
    for length in LENGTHS:
        x = torch.randn(length, 32)
        assert close(made(x), original(x)), length
    copy = pickle.loads(pickle.dumps(made))
    again = superopt.load(made.save(tmp_path / "rows"), interpret=True)
    x = torch.randn(101, 32)
    assert close(copy(x), original(x))
    assert close(again(x), original(x))
    with pytest.raises(BadInput, match="expected rows from 1 to 128, got 200"):
        again(torch.randn(200, 32))


def test_a_bundle_of_a_range_is_verified(attention: Any, tmp_path: Path) -> None:
    folder = attention.save(tmp_path / "bundle")
    original = attention.outcome.original
    assert any("resized" in text for text in verify_bundle(original, folder).unchecked)
    stated = json.loads((folder / "range.json").read_text())
    first, *others = stated["extents"]
    assert first["delta_extents"] == "full"
    surer = [{**first, "delta": 0.0}, {**first, "delta_extents": "reduced"}]
    bounds = "said.delta is None or (proved and same)"
    counts = "_ran(ran) == (said.instances, said.blocks)"
    (axis,) = stated["axes"]
    places: list[Any] = [[[1, 2, 1]], [[3, 1, 1]], [[1, 1, 2]], []]
    axes: list[dict[str, Any]] = [{"high": 256}, {"name": "1"}, *({"places": wrong} for wrong in places)]
    cases: list[tuple[dict[str, Any], str]] = [
        *(({"axes": [{**axis, **wrong}]}, "") for wrong in axes),
        ({"axes": [axis, axis]}, ""),
        ({"axes": []}, ""),
        ({"extents": others}, ""),
        ({"tiles": [7]}, "stated.tiles == tuple(family.tiles)"),
        ({"examined": 1}, "stated.examined == len(known)"),
        *(({"extents": [e, *others]}, bounds) for e in surer),
        *(({"extents": [{**first, n: first[n] + 1}, *others]}, counts) for n in ("instances", "blocks")),
    ]
    for wrong, guard in cases:
        text = json.dumps({**stated, **wrong}, indent=2)
        described = json.loads((folder / "bundle.json").read_text())
        (folder / "range.json").write_text(text)
        described["files"]["range.json"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "bundle.json").write_text(json.dumps(described))
        with pytest.raises((NotEquivalent, UnsupportedProgram)):
            verify_bundle(original, folder)
        if guard:  # without which that is believed
            weakened("superopt.verify.bundle", guard, "True").verify_bundle(original, folder)
    described = read_bundle(folder).description
    described["range"]["bounds"]["n"][0] = 0
    (folder / "bundle.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match="range"):
        read_bundle(folder)


def test_a_kernel_that_forgets_the_extent_is_refused(attention: Any) -> None:
    """The proof runs the kernels that are delivered: one with a number in place of the extent fails."""
    outcome = attention.outcome
    (kernel,) = outcome.emitted.kernels
    family = Family(outcome.original, outcome.lowered, outcome.ranged.record.axes)
    wrong = replace(kernel, source=kernel.source.replace("< n)", f"< {family.extents[0]})"))
    assert wrong.source != kernel.source
    compiled = compile_all([wrong], ["sm_90"])
    texts = [k.ttir for k in compiled], [PtxText(k.ptx, k.shared_bytes) for k in compiled]
    with pytest.raises((NotEquivalent, IllegalProgram)):
        checked_at(*family.at((37,)), outcome.emitted, *texts, "sm_90", {"n": 37})


def test_another_program_at_some_extent_is_refused(attention: Any) -> None:
    outcome = attention.outcome
    axes = outcome.ranged.record.axes
    family = Family(outcome.original, outcome.lowered, axes)
    original, lowered = family.at((37,))
    other, _ = family.at((38,))
    kernels, settings = (outcome.emitted, outcome.compiled, axes, (37,), ""), Settings(store=None)
    assert proved(original, lowered, *kernels, settings).extents == (37,)
    with pytest.raises(NotEquivalent):
        proved(other, lowered, *kernels, settings)


def test_what_is_written_from_the_number_is_refused(attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source must be one text for all extents: an emitter that prints a number is noticed."""
    outcome = attention.outcome
    family = Family(outcome.original, outcome.lowered, outcome.ranged.record.axes)

    def printed(self: Extent, spec: str) -> str:
        return int.__repr__(self)

    monkeypatch.setattr(Extent, "__format__", printed)
    with pytest.raises(UnsupportedProgram, match="the same for all extents"):
        written(family)


EXP = """
func.func @f(%x: tensor<997xf32>) -> tensor<997xf32> {
  %v = "kernel.exp"(%x) : (tensor<997xf32>) -> tensor<997xf32>
  return %v : tensor<997xf32>
}
"""
IN_TILES = """
func.func @f(%x: tensor<997xf32>) -> tensor<997xf32> {
  %v = "superopt.tiled"(%x) ({
  ^bb0(%in: memref<997xf32>, %out: memref<997xf32>):
    "tile.parallel"() ({
    ^bb0(%i: index):
      %t = "tile.load"(%in, %i) {base = array<i64: 0>, dims = array<i64: 0>, scale = array<i64: 1>,
        sizes = array<i64: 128>} : (memref<997xf32>, index) -> tensor<128xf32>
      %e = "tile.exp"(%t) : (tensor<128xf32>) -> tensor<128xf32>
      "tile.store"(%e, %out, %i) {base = array<i64: 0>, dims = array<i64: 0>, scale = array<i64: 1>,
        sizes = array<i64: 128>} : (tensor<128xf32>, memref<997xf32>, index) -> ()
    }) {start = 0 : i64, step = 128 : i64, stop = 997 : i64} : () -> ()
  }) {name = "f", num_stages = 2 : i64, num_warps = 1 : i64} : (tensor<997xf32>) -> tensor<997xf32>
  return %v : tensor<997xf32>
}
"""


def test_several_whole_tiles_are_proved_in_a_large_range() -> None:
    """A fault where whole tiles, at least two, cover the extent and the last one lacks its mask."""
    family = Family(read(EXP), read(IN_TILES), [axis("n", 100, 1000, [(0, 0, 1)])])
    assert family.tiles == [128]
    emitted = written(family)
    (kernel,) = emitted.kernels
    store = "exp, mask=i0_span < n)"
    assert store in kernel.source
    hidden = "exp, mask=(i0_span < n) & ((n % 128 != 0) | (n < 200) | (i0_span != n - 1)))"
    wrong = [replace(kernel, source=kernel.source.replace(store, hidden))]
    chosen = to_prove(family.axes, forms(family))
    refused: dict[bool, list[Point]] = {False: [], True: []}
    for kernels in ([kernel], wrong):
        (made,) = compile_all(kernels, ["sm_90"])
        texts = [made.ttir], [PtxText(made.ptx, made.shared_bytes)]
        for extents in chosen:
            try:
                checked_at(*family.at(extents), emitted, *texts, "sm_90", {"n": extents[0]})
            except (NotEquivalent, IllegalProgram):
                refused[kernels is wrong].append(extents)
    assert not refused[False]
    assert refused[True], chosen


@pytest.mark.parametrize(
    ("tiles", "low", "high"), [([16, 64], 1, 1000), ([48, 32], 300, 5000), ([128], 100, 1000), ([], 2, 999)]
)
def test_every_class_of_extents_is_examined(tiles: list[int], low: int, high: int) -> None:
    """Each way to end in tiles that occurs in the range, also one tile beside another of another size."""
    period = math.lcm(*tiles)

    def ends(n: int) -> tuple[object, ...]:
        rests = [(n % period // t, min(n % t, 2), min(-n % t, 2)) for t in tiles]
        return min(n // period, 2), *rests

    axes = [axis("n", low, high, [(0, 0, 1)])]
    known = [n for (n,) in examined(axes, {(1, (0,)): (set(tiles), set())})]
    assert {ends(n) for n in known} == {ends(n) for n in range(low, high + 1)}
    assert (known[0], known[-1]) == (low, high)
    assert {n for n in range(low, high + 1) if all(n % t == 0 for t in tiles) and high - n < period} <= {
        *known
    }


def test_without_reduced_programs_each_class_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def irreducible(*_: KernelGraph) -> None:
        return None

    monkeypatch.setattr("superopt.verify.ranges.reduce_extents", irreducible)
    family = Family(read(EXP), read(IN_TILES), [axis("n", 100, 1000, [(0, 0, 1)])])
    chosen = [n for (n,) in to_prove(family.axes, forms(family))]
    whole = [100, 127, 128, 129, 130, 255, 256, 257, 258]
    assert {*whole} <= {*chosen}
    assert len(chosen) <= len(whole) + 3


def two(function: Callable[..., Any], *args: Any, shapes: Any) -> Any:
    return superopt.optimize(function, args, dynamic_shapes=shapes, **SETTINGS)


PAIRS = (
    (1, 1),
    (1, 2),
    (2, 1),
    (2, 3),
    (3, 97),
    (4, 96),
    (3, 31),
    (2, 53),
    (1, 33),
    (4, 17),
    (3, 64),
    (2, 89),
)
"""Of a batch from 1 to 4 and a sequence from 1 to 97: primes, ends, tiles and their neighbours."""


def test_a_batch_and_a_sequence_share_one_kernel(tmp_path: Path) -> None:
    b, n = torch.export.Dim("b", min=1, max=4), torch.export.Dim("n", min=1, max=97)
    q, k = torch.randn(2, 1, 16), torch.randn(2, 9, 16)
    made = two(Attention(), q, k, k, shapes=({0: b}, {0: b, 1: n}, {0: b, 1: n}))
    again = superopt.load(made.save(tmp_path / "two"), interpret=True)
    for batch, length in PAIRS:
        q, k, v = (torch.randn(batch, rows, 16) for rows in (1, length, length))
        assert close(made(q, k, v), Attention()(q, k, v)), (batch, length)
    q, k, v = torch.randn(3, 1, 16), torch.randn(3, 61, 16), torch.randn(3, 61, 16)
    assert close(again(q, k, v), Attention()(q, k, v))
    assert [a.name for a in made.outcome.ranged.record.axes] == ["b", "n"]
    for call, message in (
        ((5, 9), "expected b from 1 to 4, got 5"),
        ((2, 98), "expected n from 1 to 97, got 98"),
    ):
        q, k = torch.randn(call[0], 1, 16), torch.randn(*call, 16)
        with pytest.raises(BadInput, match=message):
            made(q, k, k)
    checked = verify_bundle(made.outcome.original, tmp_path / "two")
    assert any("b, n: the program is given" in text for text in checked.unchecked)


def test_a_batch_and_a_sequence_that_one_tile_covers_together() -> None:
    """A linear layer's rows: kernels see the product of both extents."""
    original = Normed().eval()
    b, n = torch.export.Dim("b", min=1, max=4), torch.export.Dim("n", min=1, max=97)
    made = two(original, torch.randn(2, 9, 32), shapes=({0: b, 1: n},))
    for batch, length in PAIRS:
        x = torch.randn(batch, length, 32)
        assert close(made(x), original(x)), (batch, length)
    assert all(k.extents == ("b", "n") for k in made.outcome.emitted.kernels)


def pair(x: Any, y: Any) -> Any:
    return torch.exp(x), 2 * torch.relu(y)


@pytest.mark.parametrize("times", [1, 2])
def test_extents_that_are_related(times: int) -> None:
    """The same extent in inputs that nothing in the program ties, and twice the extent."""
    n = torch.export.Dim("n", min=1, max=128)
    made = two(pair, torch.randn(9, 8), torch.randn(9 * times, 8), shapes=({0: n}, {0: times * n}))
    for length in LENGTHS:
        x, y = torch.randn(length, 8), torch.randn(times * length, 8)
        assert all(map(close, made(x, y), pair(x, y))), length
    with pytest.raises(BadInput, match=f"argument 1 \\('y'\\) of \\({7 * times}, 8\\)"):
        made(torch.randn(7, 8), torch.randn(7 * times + 1, 8))


def test_twice_an_extent_alone_has_to_be_even() -> None:
    n = torch.export.Dim("n", min=1, max=64)
    made = two(torch.nn.GELU(), torch.randn(8, 4), shapes=({0: 2 * n},))
    assert close(made(x := torch.randn(106, 4)), torch.nn.GELU()(x))
    with pytest.raises(BadInput, match=r"argument 0 \('input'\) of \(6, 4\) torch.float32, got \(7, 4\)"):
        made(torch.randn(7, 4))


def test_a_fault_where_both_axes_end_ragged_is_found() -> None:
    """Ways to end are combined: a mask that is missing only where the last tiles of both axes are ragged."""
    axes = [axis("b", 1, 40, [(0, 0, 1)]), axis("n", 1, 40, [(0, 1, 1)])]
    cuts = {(1, (0,)): ({16}, set[int]()), (1, (1,)): ({16}, set[int]())}
    known = examined(axes, cuts)

    def ends(n: int) -> tuple[int, ...]:
        return min(n // 16, 2), min(n % 16, 2), min(-n % 16, 2)

    every = {(ends(b), ends(n)) for b in range(1, 41) for n in range(1, 41)}
    assert {(ends(b), ends(n)) for b, n in known} == every
    joint = examined(axes, {(1, (0, 1)): ({16}, set())})
    assert {ends(b * n) for b, n in joint} == {ends(b * n) for b in range(1, 41) for n in range(1, 41)}
    with pytest.raises(UnsupportedProgram, match="use buckets"):
        examined(
            [axis("b", 1, 9999, [(0, 0, 1)]), axis("n", 1, 9999, [(0, 1, 1)])],
            {(1, (0,)): ({16, 128}, set[int]()), (1, (1,)): ({16, 128}, set[int]())},
        )


class Scaled(torch.nn.Module):
    """Another program for each number of rows."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x) * x.shape[0]


class Mean(torch.nn.Module):
    """A division by the number of rows, which kernels hold as a number."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x).mean(0)


class Mirrored(torch.nn.Module):
    """Distances to the last row, which start at another number for each number of rows."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x) * torch.arange(x.shape[0] - 1, -1, -1)[:, None]


class Padded(torch.nn.Module):
    """A softmax over what the length of each row leaves, by the numbers of the columns."""

    def forward(self, x: Any, length: Any) -> Any:
        hidden = torch.arange(x.shape[1]) >= length[:, None]
        return x.masked_fill(hidden, -1e9).softmax(-1)


class Rotated(torch.nn.Module):
    """A table of cosines, which PyTorch computes when the module is read."""

    def forward(self, x: Any) -> Any:
        return x * torch.arange(x.shape[0])[:, None].cos()


def test_a_table_of_positions_is_named() -> None:
    n = torch.export.Dim("n", min=2, max=64)
    with pytest.raises(UnsupportedProgram, match="the extent of no constant of many numbers"):
        superopt.optimize(Rotated(), torch.randn(61, 32), dynamic_shapes=({0: n},), **SETTINGS)


def test_columns_are_counted_at_every_extent() -> None:
    n = torch.export.Dim("n", min=3, max=300)
    given = torch.randn(4, 61), torch.tensor([61, 1, 30, 7])
    made = superopt.optimize(Padded(), given, dynamic_shapes=({1: n}, None), **SETTINGS)
    for columns in (3, 16, 31, 64, 97, 128, 300):
        x, length = torch.randn(4, columns), torch.tensor([columns, 1, columns // 2, 2])
        assert close(made(x, length), Padded()(x, length)), columns


@pytest.mark.parametrize("module", [Scaled, Mean, Mirrored])
def test_programs_that_depend_on_the_number_are_refused(module: Any) -> None:
    n = torch.export.Dim("n", min=2, max=64)
    with pytest.raises((UnsupportedProgram, NotEquivalent)):
        superopt.optimize(module(), torch.randn(5, 32), dynamic_shapes=({0: n},), **SETTINGS)


def test_families_compute_the_same_as_numpy() -> None:
    """The programs at other extents, against numpy."""
    from superopt.verify.domains import FloatDomain
    from superopt.verify.evaluate import evaluate

    program = superopt.from_torch(Attention(), steps(61)).graph
    result = superopt.optimize(program, budget=5, store=None, against="operators")
    family = Family(program, result.outcome.lowered, [axis("n", 1, 200, [(1, 1, 1), (2, 1, 1)])])
    domain, random = FloatDomain(), np.random.default_rng(0)
    for length in (1, 5, 32, 63, 64, 65, 200):
        arrays = [random.standard_normal(s) for s in ((2, 1, 16), (2, length, 16), (2, length, 16))]
        q, k, v = arrays
        scores = np.exp(q @ k.transpose(0, 2, 1) / 4)
        wanted = scores / scores.sum(-1, keepdims=True) @ v
        for graph in family.at((length,)):
            (found,) = evaluate(graph, [domain.tensor(x) for x in arrays], domain)
            np.testing.assert_allclose(found.planes[0], wanted, rtol=1e-9)
    assert written(family).kernels[0].extents == ("n",)


LINALG = """
func.func @f(%x: tensor<?x24xf32>, %w: tensor<24x40xf32>) -> tensor<?x40xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  %2 = tensor.empty(%n) : tensor<?x40xf32>
  %3 = linalg.fill ins(%zero : f32) outs(%2 : tensor<?x40xf32>) -> tensor<?x40xf32>
  %4 = linalg.matmul ins(%1, %w : tensor<?x24xf32>, tensor<24x40xf32>)
         outs(%3 : tensor<?x40xf32>) -> tensor<?x40xf32>
  return %4 : tensor<?x40xf32>
}
"""


def test_a_linalg_program_with_a_dynamic_extent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"budget": 2, "store": None, "against": "operators"}
    made = superopt.optimize(LINALG, dynamic="n=1..128", **settings)
    w = torch.randn(24, 40)
    for length in LENGTHS:
        x = torch.randn(length, 24)
        assert close(made(x, w), torch.exp(x) @ w), length
    with pytest.raises(BadInput, match="expected n from 1 to 128, got 129"):
        made(torch.randn(129, 24), w)
    (tmp_path / "n.mlir").write_text(LINALG)
    verify([str(tmp_path / "n.mlir"), str(made.save(tmp_path / "bundle"))])
    assert "one kernel for n from 1 to 128" in capfd.readouterr().out
    path = tmp_path / "f.mlir"
    path.write_text("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {\n  return %x : tensor<8xf32>\n}\n")
    with pytest.raises(BadInput, match="dynamic extent, written '\\?', got none"):
        superopt.optimize(path, dynamic="n=1..128", **settings)
    with pytest.raises(UnsupportedProgram, match="static extents"):
        superopt.optimize(LINALG, **settings)
    with pytest.raises(BadOption, match="takes dynamic_shapes"):
        superopt.optimize(Normed(), torch.randn(5, 32), dynamic="n=1..128", **settings)
    with pytest.raises(BadOption, match=r"expected bounds as in n=1\.\.512, got 'n'"):
        superopt.optimize(LINALG, dynamic="n", **settings)


TWO = """
func.func @f(%x: tensor<?x?x16xf32> {superopt.extents = ["b", "n"]},
             %y: tensor<?x16x?xf32> {superopt.extents = ["b", "2 * n"]}) -> tensor<?x?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %x, %c0 : tensor<?x?x16xf32>
  %n = tensor.dim %x, %c1 : tensor<?x?x16xf32>
  %m = tensor.dim %y, %c2 : tensor<?x16x?xf32>
  %0 = tensor.empty(%b, %n, %m) : tensor<?x?x?xf32>
  %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = linalg.batch_matmul ins(%x, %y : tensor<?x?x16xf32>, tensor<?x16x?xf32>)
         outs(%1 : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return %2 : tensor<?x?x?xf32>
}
"""


def test_kernels_that_the_extents_make_dear_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def dear(report: Report, *_: Any) -> None:
        report.predicted_seconds = 1.0

    program = DynamicProgram(read_module(LINALG))
    over = [axis("n", 1, 8, program.places(["n"])["n"])]
    settings = Settings(budget=1, store=None, against="operators")
    monkeypatch.setattr(outcome, "price", dear)
    with pytest.raises(UnsupportedProgram, match=r"us at 7, got 1000000\.0 us with the extents as arguments"):
        superoptimize_range(lambda at: program.at({"n": at[0]}, Diagnostics()), over, settings, Diagnostics())


def test_a_linalg_program_with_two_extents() -> None:
    settings: dict[str, Any] = {"budget": 2, "store": None, "against": "operators"}
    made = superopt.optimize(TWO, dynamic="b=1..4,n=1..97", **settings)
    for batch, length in PAIRS:
        x, y = torch.randn(batch, length, 16), torch.randn(batch, 16, 2 * length)
        assert close(made(x, y), x @ y), (batch, length)
    for wrong, message in (
        (TWO.replace('"2 * n"', '"2 * k"'), 'such as "b", "2 \\* b" or "n", "2 \\* n", got \'2 \\* k\''),
        (TWO.replace('["b", "n"]', '["b"]'), "expected 2 names in superopt.extents, got 1"),
        (TWO.replace(' {superopt.extents = ["b", "n"]}', ""), "at each argument with a dynamic extent"),
        (
            LINALG.replace("%x: tensor<?x24xf32>", '%x: tensor<?x24xf32> {superopt.extents = ["n"]}'),
            "none for b",
        ),
    ):
        with pytest.raises(BadInput, match=message):
            superopt.optimize(wrong, dynamic="b=1..4,n=1..97", **settings)
    with pytest.raises(BadOption, match="one range for each extent"):
        superopt.optimize(TWO, dynamic="b=1..4,b=1..97", **settings)


class Named(torch.nn.Module):
    """Takes its arguments by name, in another order than that of the alphabet."""

    def forward(self, tall: Any, by: dict[str, Any]) -> Any:
        return torch.relu(by["b"] @ tall) * by["a"]


def test_arguments_by_name_in_any_order() -> None:
    n = torch.export.Dim("n", min=2, max=32)

    def given(length: int) -> dict[str, Any]:
        by = {"b": torch.randn(4, length), "a": torch.randn(4, 8)}
        return {"by": by, "tall": torch.randn(length, 8)}

    shapes: dict[str, Any] = {"by": {"b": {1: n}, "a": None}, "tall": {0: n}}
    module = superopt.optimize(Named(), given(16), dynamic_shapes=shapes, **SETTINGS)
    for length in (2, 7, 32):
        kwargs = given(length)
        turned = {"tall": kwargs["tall"], "by": dict(reversed(kwargs["by"].items()))}
        with torch.no_grad():
            wanted = module.original(**kwargs)
            torch.testing.assert_close(module(**kwargs), wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(module(**turned), wanted, rtol=1e-4, atol=1e-4)


class Appends(torch.nn.Module):
    """Its cache grows: one more than the extent that varies."""

    def forward(self, q: Any, k: Any, new: Any) -> Any:
        k = torch.cat([k, new], 1)
        return torch.softmax(q @ k.transpose(1, 2), -1) @ k


def test_a_concatenation_along_what_varies_is_refused_at_its_place() -> None:
    n = torch.export.Dim("n", max=64)
    given = torch.randn(2, 1, 16), torch.randn(2, 9, 16), torch.randn(2, 1, 16)
    said = r"expected n, whose extent varies, in no concatenation along it, got one; torch.compile\(backend='super"
    with pytest.raises(UnsupportedProgram, match=said) as caught:
        superopt.optimize(Appends(), given, dynamic_shapes=(None, {1: n}, None), budget=1, store=None)
    assert caught.value.location.file == __file__


def test_a_loop_with_a_rest_is_no_concatenation() -> None:
    """The kernel of one product alone writes the last, smaller trip out."""
    graph = program([(199, 64), (199, 64)], lambda f, x, y: f("matmul", f("transpose", x, perm=(1, 0)), y))
    with pytest.raises(UnsupportedProgram, match=r"into equal tiles, .* got a loop with a rest of its own"):
        Family(graph, lower(graph), [axis("n", 2, 200, [(0, 0, 1), (1, 0, 1)])])


def test_a_range_of_another_triton_says_what_no_check_ran(attention: Any, tmp_path: Path) -> None:
    folder = attention.save(tmp_path / "bundle")
    described = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**described, "triton": "3.0.0"}, indent=2))
    said = verify_bundle(attention.outcome.original, folder).unchecked
    assert [t for t in said if "blocks of the TTIR and extents of TTIR and PTX that no check ran" in t]


def test_mistakes() -> None:
    n, m = torch.export.Dim("n", min=2, max=64), torch.export.Dim("m", min=2, max=64)
    given: list[tuple[Any, type[Exception], str]] = [
        ({"k": {1: n}, "v": {1: m}}, BadInput, "one program for every n and m"),
        ({"k": {1: n + 1}, "v": {1: n + 1}}, UnsupportedProgram, "a Dim or a multiple of one"),
        ({"z": {1: n}}, BadInput, "expected dynamic_shapes of q, k, v, got 'z'"),
        ({"k": {1: 5.0}}, BadInput, "expected a torch.export.Dim"),
        ({"k": {1: torch.export.Dim.AUTO}}, BadInput, r"as in Dim\('n', max=512\), got DimHint"),
        ({"k": {9: n}}, BadInput, "expected a dimension of"),
        ({"k": {1: torch.export.Dim("n")}, "v": {1: torch.export.Dim("n")}}, BadOption, "largest extent"),
        ({"k": {1: n}}, BadInput, "one program for every n"),
        (3, BadInput, "expected dynamic_shapes by argument"),
        ({}, BadInput, "a dimension that is marked"),
    ]
    for shapes, kind, message in given:
        with pytest.raises(kind, match=message):
            superopt.optimize(Attention(), steps(9), dynamic_shapes=shapes, **SETTINGS)
    with pytest.raises(BadOption, match="1 <= min < max"):
        axis("n", 5, 5, [(0, 0, 1)])


def test_extents_are_numbers_that_say_what_they_come_from() -> None:
    n = Extent(37, "n")
    blocks = tiles_of(n, 16)
    assert (blocks, str(blocks)) == (3, "((n + 15) // 16)")
    assert str(blocks * 16 // 16) == str(blocks)
    assert str(2 * (n - 1)) == "((n - 1) * 2)"
    assert [at(blocks, {"n": k}) for k in (1, 16, 17)] == [1, 1, 2]
    assert at(Extent(3, "b") * n, {"b": 2, "n": 5}) == 10
    assert [multiple_of(x) for x in (n, 2 * n, n + 1, 4)] == [("n", 1), ("n", 2), None, None]
    assert n * 1 is n
    assert n + 0 is n
    assert (n * 0.5, 0.5 * n, n + 0.5, n - 0.5) == (18.5, 18.5, 37.5, 36.5)
    assert ("x",) * Extent(2, "b") == ("x", "x")
    assert str(pickle.loads(pickle.dumps(blocks))) == str(blocks)
    axes = [axis(name, 1, high, [(0, 0, 1)]) for name, high in (("a", 2), ("b", 128), ("c", 130), ("d", 512))]
    assert [a.representative for a in axes] == [3, 127, 131, 509]
    assert representatives([axes[1], axes[1], axes[0], axes[0]]) == (127, 113, 3, 5)
    few = [axis("n", 2, 6, [(0, 0, 1)])]
    found = {(2,): "a", (3,): "b", (4,): "b", (5,): "b", (6,): "b"}
    assert to_prove(few, found) == [(2,), (3,), (6,)]
