"""Kernels for a range of one extent: right at every length, proved as a range, refused where that fails."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weakened import weakened

import superopt
from superopt.dialects.reader import read
from superopt.errors import BadInput, BadOption, IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.extent import Extent, at, tiles_of
from superopt.program import KernelGraph
from superopt.run.ranged import Range, checked_at, proved
from superopt.run.settings import Settings
from superopt.transforms.emit.bundle import read_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.ranged import written
from superopt.verify.bundle import verify_bundle
from superopt.verify.ptx.check import PtxText
from superopt.verify.ranges import Family, examined, forms, to_prove

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
    with pytest.raises(BadInput, match="argument 2 of"):
        attention(q, k, steps(8)[2])


def test_the_record_names_the_range_and_its_forms(attention: Any) -> None:
    record = attention.outcome.ranged.record
    assert (record.low, record.high, record.examined) == (1, 128, 128)
    proved_extents = [e.extent for e in record.extents]
    assert {1, 128} <= set(proved_extents)
    assert all(e.blocks and e.instances and e.delta is not None for e in record.extents)
    family = Family(attention.outcome.original, attention.outcome.lowered, record.argument, record.dim)
    assert set(forms(family, 1, 128).values()) == {e.form for e in record.extents}
    assert record.summary in attention.report.remarks


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
    cases: list[tuple[dict[str, Any], str]] = [
        ({"high": 256}, ""),
        ({"dim": 2}, ""),
        ({"argument": 3}, ""),
        ({"extents": others}, ""),
        ({"tiles": [7]}, "stated.tiles == family.tiles"),
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
    described["range"]["low"] = 0
    (folder / "bundle.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match="range"):
        read_bundle(folder)


def test_a_kernel_that_forgets_the_extent_is_refused(attention: Any) -> None:
    """The proof runs the kernels that are delivered: one with a number in place of the extent fails."""
    outcome = attention.outcome
    (kernel,) = outcome.emitted.kernels
    family = Family(outcome.original, outcome.lowered, 1, 1)
    wrong = replace(kernel, source=kernel.source.replace("< n)", f"< {family.extent})"))
    assert wrong.source != kernel.source
    compiled = compile_all([wrong], ["sm_90"])
    texts = [k.ttir for k in compiled], [PtxText(k.ptx, k.shared_bytes) for k in compiled]
    with pytest.raises((NotEquivalent, IllegalProgram)):
        checked_at(*family.at(37), outcome.emitted, *texts, 37)


def test_another_program_at_some_extent_is_refused(attention: Any) -> None:
    outcome = attention.outcome
    family = Family(outcome.original, outcome.lowered, 1, 1)
    original, lowered = family.at(37)
    other, _ = family.at(38)
    settings = Settings(store=None)
    record = proved(original, lowered, outcome.emitted, outcome.compiled, 37, "", settings)
    assert record.extent == 37
    with pytest.raises(NotEquivalent):
        proved(other, lowered, outcome.emitted, outcome.compiled, 37, "", settings)


def test_what_is_written_from_the_number_is_refused(attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source must be one text for all extents: an emitter that prints a number is noticed."""
    family = Family(attention.outcome.original, attention.outcome.lowered, 1, 1)

    def printed(self: Extent, spec: str) -> str:
        return int.__repr__(self)

    monkeypatch.setattr(Extent, "__format__", printed)
    with pytest.raises(UnsupportedProgram, match="the same for all extents"):
        written(family, "n")


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
    family = Family(read(EXP), read(IN_TILES), 0, 0)
    assert family.tiles == [128]
    emitted = written(family, "n")
    (kernel,) = emitted.kernels
    store = "exp, mask=i0_span < n)"
    assert store in kernel.source
    hidden = "exp, mask=(i0_span < n) & ((n % 128 != 0) | (n < 200) | (i0_span != n - 1)))"
    wrong = [replace(kernel, source=kernel.source.replace(store, hidden))]
    chosen, _ = to_prove(forms(family, 100, 1000))
    refused: dict[bool, list[int]] = {False: [], True: []}
    for kernels in ([kernel], wrong):
        (made,) = compile_all(kernels, ["sm_90"])
        texts = [made.ttir], [PtxText(made.ptx, made.shared_bytes)]
        for extent in chosen:
            try:
                checked_at(*family.at(extent), emitted, *texts, extent)
            except (NotEquivalent, IllegalProgram):
                refused[kernels is wrong].append(extent)
    assert not refused[False]
    assert refused[True], chosen


@pytest.mark.parametrize(
    ("tiles", "low", "high"), [([16, 64], 1, 1000), ([48, 32], 300, 5000), ([128], 100, 1000), ([], 2, 999)]
)
def test_every_class_of_extents_is_examined(tiles: list[int], low: int, high: int) -> None:
    """Each way to end in tiles that occurs in the range, also one tile beside another of another size."""
    family = Family(read(EXP), read(IN_TILES), 0, 0)
    family.tiles = tiles
    period = math.lcm(*tiles)

    def ends(n: int) -> tuple[object, ...]:
        rests = [(n % period // t, min(n % t, 2), min(-n % t, 2)) for t in tiles]
        return min(n // period, 2), *rests

    known = examined(family, low, high)
    assert {ends(n) for n in known} == {ends(n) for n in range(low, high + 1)}
    assert (known[0], known[-1]) == (low, high)
    assert {n for n in range(low, high + 1) if all(n % t == 0 for t in tiles) and high - n < period} <= {
        *known
    }


def test_without_reduced_programs_each_class_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def irreducible(*_: KernelGraph) -> None:
        return None

    monkeypatch.setattr("superopt.verify.ranges.reduce_extents", irreducible)
    chosen, _ = to_prove(forms(Family(read(EXP), read(IN_TILES), 0, 0), 100, 1000))
    whole = [100, 127, 128, 129, 130, 255, 256, 257, 258]
    assert {*whole} <= {*chosen}
    assert len(chosen) <= len(whole) + 2


class Scaled(torch.nn.Module):
    """Another program for each number of rows."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x) * x.shape[0]


class Mean(torch.nn.Module):
    """A division by the number of rows, which kernels hold as a number."""

    def forward(self, x: Any) -> Any:
        return torch.exp(x).mean(0)


@pytest.mark.parametrize("module", [Scaled, Mean])
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
    family = Family(program, result.outcome.lowered, 1, 1)
    domain, random = FloatDomain(), np.random.default_rng(0)
    for length in (1, 5, 32, 63, 64, 65, 200):
        arrays = [random.standard_normal(s) for s in ((2, 1, 16), (2, length, 16), (2, length, 16))]
        q, k, v = arrays
        scores = np.exp(q @ k.transpose(0, 2, 1) / 4)
        wanted = scores / scores.sum(-1, keepdims=True) @ v
        for graph in family.at(length):
            (found,) = evaluate(graph, [domain.tensor(x) for x in arrays], domain)
            np.testing.assert_allclose(found.planes[0], wanted, rtol=1e-9)
    assert written(family, "n").kernels[0].extent == "n"


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


def test_a_linalg_program_with_a_dynamic_extent(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": 2, "store": None, "against": "operators"}
    made = superopt.optimize(LINALG, dynamic="n=1..128", **settings)
    w = torch.randn(24, 40)
    for length in LENGTHS:
        x = torch.randn(length, 24)
        assert close(made(x, w), torch.exp(x) @ w), length
    with pytest.raises(BadInput, match="expected n from 1 to 128, got 129"):
        made(torch.randn(129, 24), w)
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


def test_mistakes() -> None:
    n, m = torch.export.Dim("n", min=2, max=64), torch.export.Dim("m", min=2, max=64)
    given: list[tuple[Any, type[Exception], str]] = [
        ({"k": {1: n}, "v": {1: m}}, UnsupportedProgram, "one dynamic extent"),
        ({"z": {1: n}}, BadInput, "expected dynamic_shapes of q, k, v, got 'z'"),
        ({"k": {1: 5.0}}, BadInput, "expected a torch.export.Dim"),
        ({"k": {9: n}}, BadInput, "expected a dimension of"),
        ({"k": {1: torch.export.Dim("n")}, "v": {1: torch.export.Dim("n")}}, BadOption, "largest extent"),
        ({"k": {1: n}}, BadInput, "one program for every n"),
        (3, BadInput, "expected dynamic_shapes by argument"),
        ({}, UnsupportedProgram, "one dynamic extent"),
    ]
    for shapes, kind, message in given:
        with pytest.raises(kind, match=message):
            superopt.optimize(Attention(), steps(9), dynamic_shapes=shapes, **SETTINGS)
    with pytest.raises(BadOption, match="1 <= min < max"):
        Range("n", 5, 5, 0, 0)


def test_extents_are_numbers_that_say_what_they_come_from() -> None:
    n = Extent(37, "n")
    blocks = tiles_of(n, 16)
    assert (blocks, str(blocks)) == (3, "((n + 15) // 16)")
    assert str(blocks * 16 // 16) == str(blocks)
    assert str(2 * (n - 1)) == "((n - 1) * 2)"
    assert [at(blocks, k) for k in (1, 16, 17)] == [1, 1, 2]
    assert n * 1 is n
    assert n + 0 is n
    assert str(pickle.loads(pickle.dumps(blocks))) == str(blocks)
    assert to_prove({2: "a", 3: "b", 4: "b", 5: "b", 6: "b"}) == ([2, 3, 6], {2, 3, 6})
    assert [Range("n", 1, high, 0, 0).representative for high in (2, 128, 130, 512)] == [3, 127, 131, 509]
