"""Other numbers of parts of a reduction that two kernels share: found, legal, proved, the same numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from test_interpreter import Build, tensor

from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.measure.space import Space
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.transforms.schedule import splits as module
from superopt.transforms.schedule.choose_splits import ChooseSplits, split_parameters, with_splits
from superopt.transforms.schedule.splits import Splits
from superopt.transforms.schedule.tilings import Tilings
from superopt.verify import certify, program_hash
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

H100 = cost.target("sm_90")

# x w in four parts of 64.
SPLIT_K = """
func.func @f(%x: tensor<16x256xf16>, %w: tensor<256x32xf16>) -> tensor<16x32xf16> {
  %xs = "kernel.reshape"(%x) : (tensor<16x256xf16>) -> tensor<16x4x64xf16>
  %ws = "kernel.reshape"(%w) : (tensor<256x32xf16>) -> tensor<4x64x32xf16>
  %p = "superopt.custom"(%xs, %ws) ({
  ^bb0(%a: tensor<16x4x64xf16>, %b: tensor<4x64x32xf16>):
    %at = "block.iterator"(%a) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<16x4x64xf16>) -> tensor<16x1x64xf16>
    %ar = "block.reshape"(%at) : (tensor<16x1x64xf16>) -> tensor<16x64xf16>
    %bt = "block.iterator"(%b) {imap = array<i64: 0>, fmap = array<i64>} : (tensor<4x64x32xf16>) -> tensor<1x64x32xf16>
    %br = "block.reshape"(%bt) : (tensor<1x64x32xf16>) -> tensor<64x32xf16>
    %c = "block.matmul"(%ar, %br) : (tensor<16x64xf16>, tensor<64x32xf16>) -> tensor<16x32xf16>
    %cr = "block.reshape"(%c) : (tensor<16x32xf16>) -> tensor<1x16x32xf16>
    "block.save"(%cr) {omap = array<i64: 0>} : (tensor<1x16x32xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<16x4x64xf16>, tensor<4x64x32xf16>) -> tensor<4x16x32xf16>
  %o = "kernel.reduce_sum"(%p) {dims = array<i64: 0>, keepdims = false} : (tensor<4x16x32xf16>) -> tensor<16x32xf16>
  return %o : tensor<16x32xf16>
}
"""
# The same, with a row that is as long as a part: a part of another length would need another row.
TIED = (
    SPLIT_K.replace("%w: tensor<256x32xf16>)", "%w: tensor<256x32xf16>, %y: tensor<64xf16>)")
    .replace('custom"(%xs, %ws)', 'custom"(%xs, %ws, %y)')
    .replace("%b: tensor<4x64x32xf16>)", "%b: tensor<4x64x32xf16>, %r: tensor<64xf16>)")
    .replace(
        '%c = "block.matmul"(%ar',
        '%rt = "block.iterator"(%r) {imap = array<i64: -1>, fmap = array<i64>} : (tensor<64xf16>) -> tensor<64xf16>\n'
        '    %as = "block.mul"(%ar, %rt) : (tensor<16x64xf16>, tensor<64xf16>) -> tensor<16x64xf16>\n'
        '    %c = "block.matmul"(%as',
    )
    .replace("tensor<4x64x32xf16>) -> tensor<4x16x32xf16>", "tensor<4x64x32xf16>, tensor<64xf16>) -> tensor<4x16x32xf16>")
)  # fmt: skip


def program() -> KernelGraph:
    x, w = tensor((16, 256), name="x"), tensor((256, 32), name="w")
    build = Build()
    return KernelGraph("f", [x, w], build.nodes, [build("matmul", x, w)])


def test_every_number_of_parts_is_proved_and_computes_the_same() -> None:
    graph, lowered = program(), lower(read(SPLIT_K))
    found = Splits(lowered)
    assert [(s.name, s.parts, s.total) for s in found.found.values()] == [("split", 4, 256)]
    variants = list(found.variants())
    assert [p["split"] for p, _ in variants] == [4, 2, 8, 16]
    domain = FloatDomain()
    rng = np.random.default_rng(0)
    inputs = [domain.tensor(rng.standard_normal(v.shape)) for v in graph.inputs]
    (expected,) = evaluate(graph, inputs, domain)
    for parameters, variant in variants:
        assert certify(graph, variant).equivalent
        (got,) = evaluate(variant, inputs, domain)
        np.testing.assert_allclose(got.planes[0], expected.planes[0], rtol=1e-9, atol=1e-9)
        partial = next(n.result for n in variant.nodes if n.op == "tiled")
        assert partial.shape == (parameters["split"], 16, 32)
    assert found.apply("split", 3) is None
    assert found.apply("other", 2) is None
    assert found.apply("split", 4) is lowered


def test_inputs_and_outputs_keep_their_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = lower(read(TIED))
    found = Splits(lowered)
    assert list(found.found) == ["split"]
    assert [p for p, _ in found.variants()] == [{"split": 4}]
    # Without the guard, the row would be given another length.
    monkeypatch.setattr(module, "_shapes", lambda graph: [])  # type: ignore[reportUnknownLambdaType]
    other = found.apply("split", 8)
    assert other is not None
    assert [v.shape for v in other.inputs] != [v.shape for v in lowered.inputs]


def test_an_axis_that_is_kept_is_no_split() -> None:
    """Rows that one kernel computes in blocks and the next one reads: nothing was reduced within a block."""
    x, w, v = tensor((64, 64), name="x"), tensor((64, 64), name="w"), tensor((64, 64), name="v")
    build = Build()
    out = build("matmul", build("relu", build("matmul", x, w)), v)
    assert Splits(lower(KernelGraph("f", [x, w, v], build.nodes, [out]))).found == {}


def test_the_space_has_splits_as_a_parameter() -> None:
    graph = program()
    space = Space(graph, lower(read(SPLIT_K)), H100)
    tilings = list(itertools.islice(space.tilings(), 60))
    assert {p["split"] for p, _ in tilings} == {2, 4, 8, 16}
    predicted = [cost.cost(g, H100).seconds for _, g in tilings]
    assert predicted == sorted(predicted)
    (first, *_) = space.points(2, 60, cost.Model())
    assert first.proof["ttir"] == "verified"
    again = space.at(first.parameters)
    assert again is not None
    assert cost.cost(again, H100).seconds == cost.cost(first.lowered, H100).seconds
    assert space.at({**first.parameters, "split": 5}) is None


# A sum of as many parts, each twice as long.
LONGER = re.sub(r"(?<=\D)(64|256)(?=x)", lambda m: str(2 * int(m[0])), SPLIT_K)


def two(other: str = LONGER) -> KernelGraph:
    a, b = read(SPLIT_K, "first"), read(other, "second")
    return KernelGraph("two", [*a.inputs, *b.inputs], [*a.nodes, *b.nodes], [*a.outputs, *b.outputs])


def test_splits_are_decisions_that_are_made_together() -> None:
    quiet, lowered = Diagnostics(), lower(two())
    assert program_hash(ChooseSplits().apply(lowered, quiet)) == program_hash(lowered)
    first, second = ChooseSplits().sites(lowered, quiet)
    assert first.choices[0] == "4"
    assert set(first.choices) == {"2", "4", "8", "16"}
    assert set(second.choices) == {"2", "4", "8", "16", "32"}
    made = ChooseSplits().applied(lowered, {first.at: "2", second.at: "8"}, quiet)
    assert [split.parts for split in Splits(made).found.values()] == [2, 8]
    assert certify(two(), made).equivalent
    given = split_parameters(lowered, {first.at: "2", second.at: "8"})
    assert given == {"split": 2, "split_1": 8}
    again = Tilings(lowered, H100).at(given)
    assert again is not None
    assert [split.parts for split in Splits(again).found.values()] == [2, 8]
    assert with_splits(lowered, {"split": 3}) is None
    assert with_splits(lowered, {"other": 2}) is None


def test_kernels_that_compute_side_by_side_share_their_parts() -> None:
    """Both products are one kernel's: one number of parts, each with an axis of its own within them."""
    lowered = lower(two(SPLIT_K))
    assert sum(n.op == "tiled" and len(n.results) == 2 for n in lowered.nodes) == 1
    (site,) = ChooseSplits().sites(lowered, Diagnostics())
    assert set(site.choices) == {"2", "4", "8", "16"}
    made = ChooseSplits().applied(lowered, {site.at: "8"}, Diagnostics())
    assert {n.result.shape for n in made.nodes if n.op == "reshape"} == {(16, 8, 32), (8, 32, 32)}
    assert certify(two(SPLIT_K), made).equivalent
