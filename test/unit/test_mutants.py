"""Mutants of convolutions: where they are wrong, what corrects them, and the faults of PET's public code.

The oracle is a full comparison on integers, exact in fp64.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from interpreter import interpret
from test_windows import WRONG, by_definition, program, run, some, windows

from superopt.cost import cost, target
from superopt.errors import IllegalProgram
from superopt.operators import is_general
from superopt.program import Attr, KernelGraph, Node, NodeKind, TensorType, Value
from superopt.transforms.derivation.mutants import boxes, exact
from superopt.transforms.derivation.mutants.correction import DIFFERENCES, Corrector, Difference
from superopt.transforms.derivation.mutants.derived import MUTANTS, Mutant, alone, derived
from superopt.transforms.derivation.mutants.generated import MOST_WORK, chain, generated
from superopt.transforms.derivation.mutants.guards import guarded
from superopt.transforms.derivation.mutants.points import Undecided
from superopt.transforms.derivation.mutants.region import Region
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.transforms.derivation.optimizer import DerivationOptimizer
from superopt.transforms.derivation.rewrite import Rewrite
from superopt.transforms.lower import lower
from superopt.transforms.lower.kernel_to_tile import fuse_windows
from superopt.verify import certify

Array = np.ndarray[Any, Any]


def whole_numbers(graph: KernelGraph, seed: int = 0) -> list[Array]:
    """None of them zero, which would hide a difference."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 10**5, v.shape) * rng.choice([-1.0, 1.0], v.shape) for v in graph.inputs]


def wrong_places(mutant: Mutant) -> Array:
    arrays = whole_numbers(mutant.source)
    return run(mutant.source, arrays) != run(mutant.graph, arrays)


def mutants(graph: KernelGraph, name: str = "") -> list[Mutant]:
    return [m for m in derived(alone(graph.nodes[0]), tuple(MUTANTS)) if name in m.name]


def written(graph: KernelGraph, *steps: tuple[str, dict[str, Attr]]) -> KernelGraph:
    """`graph` with operators behind its output."""
    write, value = Rewrite(graph, graph.nodes[-1]), graph.outputs[0]
    for op, attrs in steps:
        value = write.emit(op, value, **attrs)
    return replace(graph, nodes=[*graph.nodes, *write.nodes], outputs=[value])


# --- published cases --------------------------------------------------------------------------------------

# program at few channels, at the published ones, mutant, which one of that name, outputs that differ
CASES: dict[str, tuple[Any, Any, str, int, int]] = {
    "dilated": (
        ([(1, 4, 14, 14), (2, 4, 3, 3)], windows(2, dilation=2, pad=2)),
        ([(1, 512, 14, 14), (256, 512, 3, 3)], windows(2, dilation=2, pad=2)),
        "residues-side-by-side", 0, 13_312,
    ),
    "pairs of images": (
        ([(4, 3, 8, 8), (2, 3, 3, 3)], windows(2, pad=1)),
        ([(16, 64, 14, 14), (64, 64, 3, 3)], windows(2, pad=1)),
        "images-side-by-side", 0, 16 * 64 * 14,
    ),
    "blocks": (
        ([(1, 2, 14, 14), (2, 2, 5, 5)], windows(2, pad=2)),
        ([(1, 48, 38, 38), (64, 48, 5, 5)], windows(2, pad=2)),
        "blocks-as-images", 2, 49_152,
    ),
    "pads": (
        ([(1, 4, 14, 14), (2, 4, 3, 3)], windows(2, stride=2, pad=1)),
        ([(1, 64, 56, 56), (128, 64, 3, 3)], windows(2, stride=2, pad=1)),
        "without-pads", 0, 128 * (28 * 28 - 27 * 27),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_published_mutants_are_found_and_corrected(case: str) -> None:
    _, (shapes, attrs), name, number, count = CASES[case]
    graph = program("conv", shapes, attrs)
    mutant = mutants(graph, name)[number]
    region = boxes.difference(mutant.source, mutant.graph)
    exactly = exact.difference(mutant.source, mutant.graph)
    assert region.count == exactly.count == count
    assert region.slabs() == exactly.slabs()
    assert not certify(graph, mutant.graph).equivalent
    repaired = dict(repairs(mutant, region))
    assert "recompute" in repaired
    for made in repaired.values():
        assert certify(graph, made).equivalent


@pytest.mark.parametrize("case", CASES)
def test_their_kernels_compute_what_the_source_does(case: str) -> None:
    pytest.importorskip("triton")
    (shapes, attrs), _, name, number, _ = CASES[case]
    graph = program("conv", shapes, attrs)
    mutant = mutants(graph, name)[number]
    region = boxes.difference(mutant.source, mutant.graph)
    np.testing.assert_array_equal(region.mask(), wrong_places(mutant))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    expected = by_definition("conv", {"groups": 1, **attrs}, *arrays)
    for made in dict(repairs(mutant, region)).values():
        np.testing.assert_allclose(interpret(made, arrays)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["dilated", "blocks"])
def test_their_ttir_is_what_was_proved(case: str) -> None:
    pytest.importorskip("triton")
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.verify.ttir import verify_compiled

    (shapes, attrs), _, name, number, _ = CASES[case]
    graph = program("conv", shapes, attrs)
    mutant = mutants(graph, name)[number]
    region = boxes.difference(mutant.source, mutant.graph)
    lowered = lower(dict(repairs(mutant, region))["recompute"])
    emitted = emit_program(lowered)
    records = verify_compiled(graph, lowered, emitted, compile_all(emitted.kernels, ["sm_90"]))
    assert all(record.end_to_end for record in records.values())


# --- the region is the full comparison's ------------------------------------------------------------------


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_regions_of_random_convolutions_are_what_a_full_comparison_says(difference: Difference) -> None:
    rng, seen = random.Random(7), dict.fromkeys(MUTANTS, 0)
    while min(seen.values()) < 3:
        shapes, attrs = some(rng, "conv")
        try:
            graph = program("conv", shapes, attrs)
        except IllegalProgram:
            continue
        for mutant in mutants(graph):
            region = DIFFERENCES[difference](mutant.source, mutant.graph)
            wrong = wrong_places(mutant)
            assert region.count == region.mask().sum()
            if difference == "relation":
                np.testing.assert_array_equal(region.mask(), wrong)
            assert (region.mask() >= wrong).all()  # of a box, all is wrong if something is
            arrays = whole_numbers(graph, seen[mutant.name])
            seen[mutant.name] += 1
            for _, made in repairs(mutant, region):
                np.testing.assert_array_equal(run(made, arrays), run(graph, arrays))
                if seen[mutant.name] < 3:
                    assert certify(graph, made).equivalent


# --- faults of published correctors -----------------------------------------------------------------------


def test_a_mutant_that_mostly_agrees_is_refused() -> None:
    """PET's public code accepts 70% agreement, its check of boxes being off."""
    (mutant,) = mutants(program("conv", *CASES["dilated"][0]), "residues")
    assert boxes.difference(mutant.source, mutant.graph).agreement > 0.7
    assert not certify(mutant.source, mutant.graph).equivalent


def test_without_boxes_a_clipped_border_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PET's public code compares inner positions only, its check of boxes being off: as if all were one box."""
    source = program("conv", [(1, 2, 8), (2, 2, 3)], {**windows(1), "low": (0,), "high": (1,)})
    shorter, y = program("conv", [(1, 2, 8), (2, 2, 3)], windows(1)), source.outputs[0]
    mutant = written(replace(shorter, inputs=source.inputs), ("pad", {"low": (0, 0, 0), "high": (0, 0, 1)}))
    mutant.nodes[0] = replace(mutant.nodes[0], operands=tuple(source.inputs))
    assert mutant.outputs[0].shape == y.shape
    assert (
        boxes.difference(source, mutant).count == wrong_places(Mutant("clipped", source, mutant)).sum() == 2
    )
    monkeypatch.setattr(boxes, "classes", _one_box)
    assert boxes.difference(source, mutant).count == 0
    assert not certify(source, mutant).equivalent


def _one_box(graph: KernelGraph) -> list[Array]:
    return [np.zeros(e, np.int64) for e in graph.outputs[0].shape]


def test_a_correction_that_is_too_small_is_refused() -> None:
    """The halo that PET's public code corrects is always 0."""
    for case, (few, _, name, number, _) in CASES.items():
        mutant = mutants(program("conv", *few), name)[number]
        region = boxes.difference(mutant.source, mutant.graph)
        slabs = region.slabs()
        kept = tuple(box for box in region.boxes if not any(p[0] in box[d] for d, p in slabs.items()))
        assert kept != region.boxes, case
        too_small = dict(repairs(mutant, replace(region, boxes=kept)))
        made = too_small.get("recompute", too_small.get("as it is"))
        assert made is not None
        assert not certify(mutant.source, made).equivalent


def _whole(places: Array, divisor: int) -> Array:
    """One class, whatever the residue: PET's boxes are not cut."""
    return np.zeros_like(places)


def test_without_cuts_by_residue_the_boxes_accept_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position 2 a + b of 3 pairs comes from another pair: positions 0 and 1 are right, the next eight are not."""
    source = program("conv", [(1, 1, 12), (1, 1, 1)], windows(1))
    mutant = written(
        source,
        ("reshape", {"shape": (2, 3, 2)}),
        ("transpose", {"perm": (1, 0, 2)}),
        ("reshape", {"shape": (1, 1, 12)}),
    )
    places = wrong_places(Mutant("swapped", source, mutant))
    assert places.sum() == 8
    assert (boxes.difference(source, mutant).mask() >= places).all()
    monkeypatch.setattr(boxes, "_cut", _whole)
    assert boxes.difference(source, mutant).count == 0
    assert not certify(source, mutant).equivalent


def test_what_wraps_is_refused() -> None:
    """Modulo 2^32, PET's integers, a multiple of 2^32 is nothing."""
    source = program("conv", [(1, 2, 6), (2, 2, 3)], windows(1, pad=1))
    write, (y,) = Rewrite(source, source.nodes[-1]), source.outputs
    factor = write.emit("constant", value=float(2**32 + 1), shape=y.shape, dtype="f32")
    graph = replace(source, nodes=[*source.nodes, *write.nodes], outputs=[write.emit("mul", y, factor)])
    graph = replace(graph, nodes=[*source.nodes, *write.nodes])
    arrays = [x % 10 for x in whole_numbers(source)]
    wrapped = [run(g, arrays).astype(np.int64).astype(np.uint32) for g in (source, graph)]
    assert (wrapped[0] == wrapped[1]).all()
    assert not certify(source, graph).equivalent
    with pytest.raises(Undecided):
        boxes.difference(source, graph)


def test_what_a_mutant_holds_where_it_is_wrong_never_reaches_the_result() -> None:
    """An image holds an infinity; its neighbour's windows do not, but the mutant's do."""
    few, _, name, number, _ = CASES["pairs of images"]
    graph = program("conv", *few)
    mutant = mutants(graph, name)[number]
    arrays = whole_numbers(graph)
    arrays[0][1, :, :, 0] = np.inf
    arrays[1] = np.abs(arrays[1]) + 1
    with np.errstate(invalid="ignore"):
        expected, garbage = run(graph, arrays), run(mutant.graph, arrays)
        assert np.isfinite(expected[0]).all()
        assert not np.isfinite(garbage[0]).all()
        assert np.isnan((garbage + (expected - garbage))[0]).any()  # what adds a difference says
        region = boxes.difference(mutant.source, mutant.graph)
        for repair, made in repairs(mutant, region):
            np.testing.assert_array_equal(run(made, arrays)[0], expected[0], err_msg=repair)


def test_a_source_that_is_zero_where_a_mutant_is_wrong_is_masked() -> None:
    source = program("conv", [(1, 2, 6), (2, 2, 1)], windows(1, pad=2))
    mutant = Mutant("one pad", source, written(program_without(source), ("pad", PADS)))
    region = boxes.difference(source, mutant.graph)
    assert not region.count  # nothing but zeros was left out
    (name, _), *_ = repairs(mutant, region)
    assert name == "as it is"
    # Garbage in place of zeros: the last positions, again.
    shifted = program("conv", [(1, 2, 6), (2, 2, 1)], windows(1))
    shifted = KernelGraph("f", source.inputs, [], [])
    write = Rewrite(shifted, source.nodes[0])
    y = write.emit("conv", *source.inputs, **windows(1))
    y = write.concat(2, [write.slice(y, {2: (4, 2, 1)}), y, write.slice(y, {2: (0, 2, 1)})])
    mutant = Mutant("around", source, KernelGraph("f", source.inputs, write.nodes, [y]))
    region = boxes.difference(source, mutant.graph)
    assert region.count == 8
    assert not certify(source, mutant.graph).equivalent
    made = dict(repairs(mutant, region))["zeros"]
    assert certify(source, made).equivalent
    arrays = whole_numbers(source)
    np.testing.assert_array_equal(run(made, arrays), run(source, arrays))
    other = replace(region, boxes=region.boxes[1:])
    assert not certify(source, dict(repairs(mutant, other))["zeros"]).equivalent


def banded(batch: int, rows: int, depth: int, reach: int, dilation: int) -> tuple[KernelGraph, KernelGraph]:
    """G2BMM, y[b, m, w] = sum over k of x[b, m, k] v[b, m + dilation (w - reach), k], and the mutant that has places
    of one residue modulo the dilation side by side and none between (OLLIE, OSDI 2023, section 6.2).
    """
    inputs = [Value(TensorType((batch, rows, depth), "f32"), name) for name in "xv"]

    def products(write: Rewrite, x: Value, v: Value, step: int) -> Value:
        wide = write.pad(v, [0, step * reach, 0], [0, step * reach, 0])
        parts = [write.slice(wide, {1: (step * w, rows, 1)}) for w in range(2 * reach + 1)]
        columns = [write.emit("reduce_sum", write.emit("mul", x, p), dims=(2,), keepdims=True) for p in parts]
        return write.concat(2, columns)

    graph = KernelGraph("f", inputs, [], [])
    placeholder = Node("reshape", (inputs[0],), (Value(inputs[0].type),), {"shape": inputs[0].shape})
    source, mutant = Rewrite(graph, placeholder), Rewrite(graph, placeholder)
    y = products(source, inputs[0], inputs[1], dilation)
    apart = [mutant.reshape(v, batch, rows // dilation, dilation, depth) for v in inputs]
    sides = [mutant.reshape(mutant.transpose(v, 0, 2, 1, 3), *inputs[0].shape) for v in apart]
    z = products(mutant, sides[0], sides[1], 1)
    z = mutant.reshape(z, batch, dilation, rows // dilation, 2 * reach + 1)
    z = mutant.reshape(mutant.transpose(z, 0, 2, 1, 3), *y.shape)
    return replace(graph, nodes=source.nodes, outputs=[y]), replace(graph, nodes=mutant.nodes, outputs=[z])


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_band_products_side_by_side_are_masked(difference: Difference) -> None:
    """OLLIE accepts the mutant: 36 of 640 outputs are wrong, where a band of the source reaches outside."""
    source, graph = banded(2, 64, 8, 2, 4)
    region = DIFFERENCES[difference](source, graph)
    assert region.count == 36
    assert not certify(source, graph).equivalent
    mutant = Mutant("side by side", source, graph)
    np.testing.assert_array_equal(region.mask(), wrong_places(mutant))
    made = dict(repairs(mutant, region))
    assert set(made) == {"zeros"}  # it would compute all of the source again
    assert certify(source, made["zeros"]).equivalent
    arrays = whole_numbers(source)
    np.testing.assert_array_equal(run(made["zeros"], arrays), run(source, arrays))


PADS: dict[str, Attr] = {"low": (0, 0, 2), "high": (0, 0, 2)}


def program_without(graph: KernelGraph) -> KernelGraph:
    """The convolution without its pads, of the same inputs."""
    write = Rewrite(graph, graph.nodes[0])
    y = write.emit("conv", *graph.inputs, **windows(1))
    return KernelGraph("f", graph.inputs, write.nodes, [y])


@pytest.mark.parametrize("name", [n for n in WRONG if "max" in n or "zero" in n])
def test_maxima_padded_by_zeros_are_refused(name: str) -> None:
    first, second = WRONG[name]
    assert not certify(first, second).equivalent


def test_maxima_are_no_sums_of_products() -> None:
    graph = program("pool_max", [(1, 2, 8)], windows(1, pad=1, sizes=(3,)))
    assert not mutants(graph)
    with pytest.raises(Undecided):
        boxes.difference(graph, graph)


def test_moves_do_not_pass_exponentials() -> None:
    """pad(exp(x)) is zero where exp(pad(x)) is one; neither is a sum of products."""
    x = Value(TensorType((1, 1, 4), "f32"), "x")
    graph = KernelGraph("f", [x], [], [x])
    before = written_from(graph, ("exp", {}), ("pad", PADS))
    after = written_from(graph, ("pad", PADS), ("exp", {}))
    assert not certify(before, after).equivalent
    with pytest.raises(Undecided):
        boxes.difference(before, after)


def written_from(graph: KernelGraph, *steps: tuple[str, dict[str, Attr]]) -> KernelGraph:
    """Operators on the only input of `graph`."""
    placeholder = Node("reshape", (graph.inputs[0],), (Value(graph.inputs[0].type),), {"shape": (1, 1, 4)})
    return written(replace(graph, nodes=[placeholder], outputs=[placeholder.result]), *steps)


def test_sums_of_unlike_terms_are_left_to_others() -> None:
    """x + x reversed in halves: right at a position and at its neighbour says nothing about the others."""
    graph = program("conv", [(1, 1, 8), (1, 1, 1)], windows(1))
    write, (y,) = Rewrite(graph, graph.nodes[-1]), graph.outputs
    total = write.emit("add", y, y)
    with pytest.raises(Undecided):
        boxes.difference(graph, replace(graph, nodes=[*graph.nodes, *write.nodes], outputs=[total]))


# --- in programs ------------------------------------------------------------------------------------------


def test_a_correction_takes_the_place_of_each_node_of_its_kind() -> None:
    graph = program("conv", *CASES["dilated"][0], behind=True)
    corrector = Corrector()
    found = [*corrector.of(graph, graph.nodes[0])]
    decided = dict(corrector.counts)
    other = program("conv", *CASES["dilated"][0], behind=True)
    again = [*corrector.of(other, other.nodes[0])]
    assert [c for c, _ in again] == [c for c, _ in found]
    assert corrector.counts == decided
    for _, made in [*found[:2], *again[:2]]:
        assert certify(other, made).equivalent


def test_what_cannot_pay_is_not_decided() -> None:
    corrector = Corrector(worthwhile=lambda source, mutant: False)
    graph = program("conv", *CASES["dilated"][0])
    assert not [*corrector.of(graph, graph.nodes[0])]
    assert corrector.counts["mutants dearer"] == corrector.counts["mutants"] > 0


def test_one_kernel_may_pay_though_the_moves_of_its_mutant_do_not() -> None:
    corrector = Corrector(worthwhile=lambda source, mutant: len(mutant.nodes) == 1)
    graph = program("conv", *CASES["dilated"][0])
    found = [*corrector.of(graph, graph.nodes[0])]
    assert {c.repair for c, _ in found} == {"load guard", "second pass"}
    assert not corrector.counts["mutants dearer"]
    for _, made in found:
        assert certify(graph, made).equivalent


def test_a_repair_of_one_kernel_costs_what_its_kernel_does() -> None:
    """No library has a nest of general indices, so it is never priced as one of a library."""
    graph, gpu = program("conv", *CASES["dilated"][1]), target("sm_90")
    (mutant,) = mutants(graph, "residues-side-by-side")
    repaired = dict(guarded(mutant.source, mutant.graph))["load guard"]
    kernel = fuse_windows(repaired, gpu)
    assert [n.op for n in kernel.nodes] == [NodeKind.TILED]
    assert cost(kernel, gpu).seconds == cost(lower(repaired, gpu.name), gpu).seconds
    proposed = DerivationOptimizer().propose(graph, gpu, budget=60).found
    nests = [p for p in proposed if any(map(is_general, p.graph.nodes))]
    assert nests
    assert all(p.seconds == cost(fuse_windows(p.graph, gpu), gpu).seconds for p in nests)


def test_a_region_is_covered_by_slabs() -> None:
    cross = Region((4, 5), (((1,), (0, 1, 2, 4)), ((0, 2, 3), (3,)), ((1,), (3,))), 8)
    assert cross.slabs() == {0: (1,), 1: (3,)}
    corner = Region((4, 5), (((0,), (0, 1)),), 2)
    assert corner.slabs() == {0: (0,)}
    assert Region((2, 2), (((0, 1), (0, 1)),), 4).slabs() == {0: (0, 1)}


# --- PET's generator --------------------------------------------------------------------------------------


def product() -> KernelGraph:
    x, w = Value(TensorType((4, 6, 8), "f32"), "x"), Value(TensorType((4, 8, 3), "f32"), "w")
    y = Value(TensorType((4, 6, 3), "f32"))
    return KernelGraph("f", [x, w], [Node("matmul", (x, w), (y,))], [y])


GENERATED: dict[str, tuple[KernelGraph, int]] = {
    "dilated": (program("conv", [(1, 2, 14, 14), (2, 2, 3, 3)], windows(2, dilation=2, pad=2)), 2 * 52),
    "pairs of images": (program("conv", [(4, 4, 8), (6, 4, 3)], windows(1, pad=1)), 6 * 4),
    "batched product": (product(), 0),
}


@pytest.mark.parametrize("name", GENERATED)
def test_published_mutants_are_generated(name: str) -> None:
    """Without a rule that knows them; what differs is what the derived ones differ in."""
    graph, count = GENERATED[name]
    found = [*generated(graph, 3, 0.7, MOST_WORK)]
    regions = [exact.difference(m.source, m.graph) for m in found]
    assert count in {r.count for r in regions}
    for mutant, region in zip(found, regions, strict=True):
        np.testing.assert_array_equal(region.mask(), wrong_places(mutant))
        assert region.agreement >= 0.7
    for mutant, region in [*zip(found, regions, strict=True)][:3]:
        for _, made in repairs(mutant, region):
            assert certify(graph, made).equivalent


def test_only_what_agrees_often_enough_is_generated_and_work_is_limited() -> None:
    graph, _ = GENERATED["pairs of images"]
    shares = {
        share: [exact.difference(m.source, m.graph).agreement for m in generated(graph, 3, share, MOST_WORK)]
        for share in (0.4, 0.8, 0.95)
    }
    assert min(shares[0.4]) < 0.8 <= min(shares[0.8])
    assert len(shares[0.4]) > len(shares[0.8]) > len(shares[0.95])
    assert not [*generated(graph, 3, 0.7, 10)]
    assert not [*generated(graph, 3, 0.7, MOST_WORK, lambda: True)]


def test_sources_are_split_where_operators_are_not_linear() -> None:
    first = program("conv", [(1, 2, 8), (3, 2, 1)], windows(1))
    w = Value(TensorType((2, 3, 1), "f32"), "v")
    write, (y,) = Rewrite(first, first.nodes[0]), first.outputs
    z = write.emit("conv", y, w, **windows(1))
    r = write.emit("relu", z)
    graph = KernelGraph("f", [*first.inputs, w], [*first.nodes, *write.nodes], [r])
    longer = chain(graph, graph.nodes[0])
    assert longer is not None
    assert (longer.nodes, longer.outputs) == (graph.nodes[:2], [z])
    assert chain(graph, graph.nodes[1]) is None
    assert chain(replace(graph, outputs=[r, y]), graph.nodes[0]) is None
    assert not [*generated(graph, 2, 0.7, MOST_WORK)]
