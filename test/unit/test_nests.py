"""Nests without a name: what they read by quasi-affine indices and guards, folded moves, and guards as repairs.

The oracle is numpy, point by point, and Python's own floors.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from interpreter import interpret
from test_mutants import CASES, alone, mutants, whole_numbers
from test_windows import program, run, some, windows

from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import IllegalProgram, NotEquivalent
from superopt.nests_by_text import nest_attrs, nest_by_text, whole_dims
from superopt.operators import infer_type
from superopt.program import (
    Attr,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Node,
    Store,
    TensorType,
    TileProgram,
    Value,
    View,
    Window,
    rebuild_statements,
)
from superopt.quasi_affine import ALWAYS, Condition, Expressions, Linear, Read, parse
from superopt.spec import check_kernel
from superopt.transforms.derivation.fold import Unfoldable, folded
from superopt.transforms.derivation.mutants.derived import Mutant
from superopt.transforms.derivation.mutants.guards import guarded
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker import check_certificate
from superopt.verify.hashing import canonical_text
from superopt.verify.hashing import parse as parse_text
from superopt.verify.reduce import reduce_extents

Array = np.ndarray[Any, Any]


def nest(attrs: dict[str, Attr], *shapes: tuple[int, ...], dtype: str = "f32") -> KernelGraph:
    """The program of one nest."""
    inputs = [Value(TensorType(s, dtype), f"x{i}") for i, s in enumerate(shapes)]
    result = Value(infer_type("nest", [v.type for v in inputs], attrs), "y")
    return KernelGraph("f", inputs, [Node("nest", tuple(inputs), (result,), attrs)], [result])


def element(read: Read, point: tuple[int, ...], x: Array) -> float:
    """What is read at a point, by Python's eval of the texts."""
    names = {f"d{d}": n for d, n in enumerate(point)} | {"true": True, "false": False}

    def value(text: str) -> Any:
        return eval(text.replace("floordiv", "//"), {}, names)

    place = value(f"{read.place_text[:-1]},)")
    inside = all(0 <= i < e for i, e in zip(place, x.shape, strict=True))
    return float(x[place]) if value(read.guard_text) and inside else 0.0


def by_definition(graph: KernelGraph, arrays: list[Array]) -> Array:
    """The result of a nest, point by point."""
    (node,) = graph.nodes
    attrs = node.attrs
    extents, rank = attrs["extents"], attrs["rank"]
    assert isinstance(extents, tuple)
    assert isinstance(rank, int)
    maps = str(attrs["maps"]).split(";")
    guards = str(attrs.get("guards", "; ".join("true" for _ in maps))).split(";")
    reads = [parse(len(extents), m, g) for m, g in zip(maps, guards, strict=True)]
    where = parse(len(extents), "()", str(attrs.get("where", "true")))
    terms = attrs.get("terms") or (len(reads),)
    assert isinstance(terms, tuple)
    out = np.zeros(node.result.shape)
    for point in itertools.product(*map(range, extents)):
        if not eval(where.guard_text.replace("floordiv", "//"), {"true": True, "false": False}, {
            f"d{d}": n for d, n in enumerate(point)
        }):  # fmt: skip
            continue
        first = 0
        for count in terms:
            factors = [element(reads[n], point, arrays[n]) for n in range(first, first + count)]
            out[point[:rank]] += np.prod(factors)
            first += count
    return out


def linear(rng: random.Random, write: Expressions) -> Linear:
    """A sum of a few dimensions and floors."""
    x = Linear(rng.randint(-3, 3))
    for _ in range(rng.randint(1, 2)):
        y = write.dim(rng.randrange(write.rank)).times(rng.choice([-1, 1, 1, 2]))
        kind = rng.randrange(4)
        if kind == 0:
            y = write.floor(y.plus(Linear(rng.randint(-4, 4))), rng.randint(1, 3))
        elif kind == 1:
            y = write.mod(write.floor(y, 2).plus(Linear(rng.randint(-4, 4))), rng.randint(2, 4))
        x = x.plus(y)
    return x


def drawn(rng: random.Random) -> KernelGraph:
    """A nest of one or two terms of one or two operands."""
    rank, reduced = rng.randint(1, 3), rng.randint(0, 2)
    extents = [rng.randint(1, 4) for _ in range(rank + reduced)]
    terms = [rng.randint(1, 2) for _ in range(rng.randint(1, 2))]
    reads: list[Read] = []
    shapes: list[tuple[int, ...]] = []
    for _ in range(sum(terms)):
        write = Expressions(len(extents), extents if rng.random() < 0.5 else ())
        index = [linear(rng, write) for _ in range(rng.randint(1, 3))]
        guard = tuple(
            tuple(Condition(linear(rng, write), rng.random() < 0.2) for _ in range(rng.randint(1, 2)))
            for _ in range(rng.randint(1, 2))
        )
        reads.append(write.read(index, guard if rng.random() < 0.6 else ALWAYS))
        shapes.append(tuple(rng.randint(1, 5) for _ in index))
    write = Expressions(rank, extents)
    held = ((Condition(linear(rng, write)),),) if rng.random() < 0.3 else ALWAYS
    where = write.read((), held)
    text = parse(len(extents), "()", where.guard_text)
    return nest(nest_attrs(extents, rank, reads, terms, text), *shapes)


# --- meaning ----------------------------------------------------------------------------------------------


def test_random_nests_are_what_their_texts_say_and_so_are_their_kernels() -> None:
    rng = random.Random(3)
    for n in range(60):
        graph = drawn(rng)
        arrays = whole_numbers(graph, n)
        expected = by_definition(graph, [np.asarray(x) for x in arrays])
        np.testing.assert_array_equal(run(graph, arrays), expected)
        np.testing.assert_array_equal(run(lower(graph), arrays), expected)
        if n % 6 == 0:
            assert certify(graph, lower(graph)).equivalent


def test_random_nests_in_triton() -> None:
    pytest.importorskip("triton")
    rng = random.Random(5)
    for n in range(12):
        graph = drawn(rng)
        arrays = [np.asarray(x) % 7 for x in whole_numbers(graph, n)]
        np.testing.assert_allclose(interpret(graph, arrays)[0], by_definition(graph, arrays), rtol=1e-5)


def test_texts_are_read_back() -> None:
    rng = random.Random(4)
    for _ in range(40):
        graph = drawn(rng)
        for made in (graph, lower(graph)):
            assert canonical_text(read(to_text(made))) == canonical_text(made)
            assert canonical_text(parse_text(canonical_text(made))) == canonical_text(made)


def test_the_checker_reads_them_by_itself() -> None:
    rng = random.Random(6)
    for _ in range(8):
        graph = drawn(rng)
        certificate = certify(graph, lower(graph)).certificate
        assert certificate is not None
        assert check_certificate(certificate.model_dump_json()).faults == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": "(d0, d1 * d2); (d1, d2)"}, "expected sums of dimensions"),
        ({"maps": "(d0, d7); (d1, d2)"}, "expected dimensions d0 to d2, got d7"),
        ({"maps": "(d0, d1 floordiv 0); (d1, d2)"}, "expected a positive divisor, got 0"),
        ({"maps": "(d0, d1 floordiv (0 - 2)); (d1, d2)"}, "expected a positive divisor, got -2"),
        ({"maps": "(d0, __import__); (d1, d2)"}, "expected sums of dimensions"),
        ({"maps": "(d0,"}, "expected maps and guards of 2 operands"),
        ({"maps": "(d0, ; (d1, d2)"}, "expected expressions such as"),
        ({"maps": "(d0); (d1, d2)"}, "expected 2 indices of an operand of shape"),
        ({"maps": f"(d0, {'+'.join(['d1'] * 4000)}); (d1, d2)"}, "less deep"),
        ({"maps": f"(d0, {' ' * 70000}d1); (d1, d2)"}, "at most 65536 characters"),
        ({"guards": "d0 > 1; true"}, "expected conditions with '>=' or '=='"),
        ({"guards": "true"}, "expected maps and guards of 2 operands, got 2 and 1"),
        ({"where": "d2 >= 1"}, "expected 'where' to depend on d0 to d1"),
        ({"terms": (1, 2)}, "expected products of 2 operands together"),
        ({"extents": (2, 0, 4)}, "expected positive extents"),
        ({"rank": 5}, "of which the first 5 are the result's"),
    ],
)
def test_wrong_attributes_are_refused(changes: dict[str, Attr], message: str) -> None:
    attrs: dict[str, Attr] = {"extents": (2, 3, 4), "rank": 2, "maps": "(d0, d2); (d1, d2)"}
    assert nest(attrs, (2, 4), (3, 4)).outputs[0].shape == (2, 3)
    with pytest.raises(IllegalProgram, match=message.replace("(", r"\(")):
        nest({**attrs, **changes}, (2, 4), (3, 4))


def test_what_no_operand_depends_on_counts_as_often() -> None:
    graph = nest({"extents": (2, 5), "rank": 1, "maps": "(d0)"}, (2,))
    assert run(graph, [np.array([1.0, 2.0])]).tolist() == [5.0, 10.0]
    assert certify(graph, lower(graph)).equivalent


def test_floors_of_negative_numbers_are_floors_in_kernels() -> None:
    """Triton's quotients round towards zero: -3 // 2 would be -1."""
    pytest.importorskip("triton")
    graph = nest({"extents": (9,), "rank": 1, "maps": "((d0 - 5) floordiv 2 + 3)"}, (5,))
    x = np.arange(5.0) + 1
    expected = [float(x[(d - 5) // 2 + 3]) for d in range(9)]
    assert interpret(graph, [x])[0].tolist() == expected


def test_a_kernel_whose_floors_are_truncated_is_refused() -> None:
    """Shifted, the quotient has no negative dividend; what Triton makes of -5 // 2 is -2, one place too far."""
    pytest.importorskip("triton")
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.verify.ttir import verify_compiled

    graph = nest({"extents": (9,), "rank": 1, "maps": "((d0 - 5) floordiv 2 + 3)"}, (5,))
    lowered = lower(graph)
    emitted = emit_program(lowered)
    (kernel,) = emitted.kernels
    shifted = "((span_16) + 1) // 2"
    assert kernel.source.count(shifted) == 1
    for quotient in (shifted, "((span_16) - 5) // 2 + 3"):
        made = replace(kernel, source=kernel.source.replace(shifted, quotient))
        compiled = compile_all([made], ["sm_90"])
        if quotient == shifted:
            assert verify_compiled(graph, lowered, emitted, compiled)["sm_90"].end_to_end
        else:
            with pytest.raises(NotEquivalent):
                verify_compiled(graph, lowered, emitted, compiled)


# --- tile programs ----------------------------------------------------------------------------------------

BORDERS: dict[str, Attr] = {
    "extents": (2, 16, 12, 16, 3),
    "rank": 3,
    "maps": "(d0, d3, d2 + d4 - 1 + 6 * (d2 floordiv 6)); (d1, d3, d4)",
    "guards": "d2 - 6 * (d2 floordiv 6) + d4 - 1 >= 0; true",
    "where": "10 - d2 >= 0",
}


def bordered() -> KernelGraph:
    return nest(BORDERS, (2, 16, 18), (16, 16, 3))


def with_view(lowered: KernelGraph, change: Callable[[View], View | None]) -> KernelGraph:
    """The lowered program with each view changed."""
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    made = {b: replace(b, view=change(b.view)) for b in node.body.locals if b.view is not None}

    def moved(s: Any) -> Any:
        return [replace(s, buffer=made[s.buffer]) if isinstance(s, Load) and s.buffer in made else s]

    body = replace(
        node.body,
        locals=[made.get(b, b) for b in node.body.locals],
        body=rebuild_statements(node.body.body, moved),
    )
    return replace(lowered, nodes=[replace(node, body=body)])


def test_a_kernel_without_one_of_its_guards_is_refused() -> None:
    graph = bordered()
    lowered = lower(graph)
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    views = [b.view for b in node.body.locals if b.view is not None]
    assert sorted(v.source for v in views) == [-1, 0]
    assert certify(graph, lowered).equivalent
    assert certify(graph, with_view(lowered, lambda v: v)).equivalent
    for view in views:

        def unguarded(v: View, view: View = view) -> View:
            return replace(v, read=replace(v.read, guard=ALWAYS)) if v is view else v

        assert not certify(graph, with_view(lowered, unguarded)).equivalent
    for name in ("guards", "where"):
        attrs = {k: v for k, v in BORDERS.items() if k != name}
        assert not certify(graph, nest(attrs, (2, 16, 18), (16, 16, 3))).equivalent


def test_views_are_of_inputs_that_stay_and_only_loaded() -> None:
    lowered = lower(bordered())
    check_kernel(lowered)
    changes: list[tuple[Callable[[View], View | None], str]] = [
        (lambda v: replace(v, source=2), "an input that stays"),
        (lambda v: replace(v, read=replace(v.read, index=v.read.index[1:])), "indices of what a view reads"),
        (lambda v: replace(v, read=Read(9)), "a view of"),
        (lambda v: None, "a view at"),
    ]
    for change, message in changes:
        with pytest.raises(IllegalProgram, match=message):
            check_kernel(with_view(lowered, change))
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    view = next(b for b in node.body.locals if b.view is not None)
    store = Store(replace(view), tuple(Window(1) for _ in view.type.shape), Value(TensorType((), "f32")))
    body = replace(node.body, body=[store, *node.body.body], locals=[*node.body.locals, store.buffer])
    with pytest.raises(IllegalProgram, match="a store to an output or a local"):
        check_kernel(replace(lowered, nodes=[replace(node, body=body)]))
    inputs = [Buffer(b.type, b.name, "view") for b in node.body.params[:1]]
    body = replace(node.body, params=[*inputs, *node.body.params[1:]])
    with pytest.raises(IllegalProgram, match="a local as view"):
        check_kernel(replace(lowered, nodes=[replace(node, body=body)]))


def test_a_slice_that_a_nest_reads_is_made() -> None:
    """A view reads its whole operand: places outside of the slice are zero, not its neighbours."""
    graph = bordered()
    x = Value(TensorType((2, 16, 30), "f32"), "x")
    attrs: dict[str, Attr] = {"offsets": (0, 0, 5), "sizes": (2, 16, 18), "strides": (1, 1, 1)}
    cut = Node("slice", (x,), (graph.inputs[0],), attrs)
    graph = replace(graph, inputs=[x, graph.inputs[1]], nodes=[cut, *graph.nodes])
    assert certify(graph, lower(graph)).equivalent


# --- folded moves, and guards as repairs ------------------------------------------------------------------


def one_kernel(graph: KernelGraph) -> KernelGraph:
    lowered = lower(graph)
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    assert sum(isinstance(s, Store) and s.buffer in node.body.params for s in node.body.statements()) == 1
    return lowered


def band(rows: int = 24, dilation: int = 4, width: int = 5) -> KernelGraph:
    """A dilated band product with as many rows above as below."""
    inputs = [Value(TensorType((2, rows, 16), "f32"), n) for n in "ab"]
    attrs: dict[str, Attr] = {"width": width, "dilation": dilation, "low": dilation * (width // 2)}
    y = Value(infer_type("g2bmm", [v.type for v in inputs], attrs), "y")
    return KernelGraph("f", inputs, [Node("g2bmm", tuple(inputs), (y,), attrs)], [y])


def cases() -> dict[str, tuple[Mutant, str]]:
    """A mutant, and the repair that it is known for."""
    found: dict[str, tuple[Mutant, str]] = {}
    repair = {"dilated": "load guard", "pairs of images": "load guard", "blocks": "second pass"}
    for case, wanted in repair.items():
        few, _, name, number, _ = CASES[case]
        found[case] = mutants(program("conv", *few), name)[number], wanted
    found["band"] = mutants(band(), "residues")[0], "store guard"
    return found


@pytest.mark.parametrize("case", cases())
def test_mutants_are_repaired_in_one_kernel(case: str) -> None:
    pytest.importorskip("triton")
    mutant, wanted = cases()[case]
    found = dict(guarded(mutant.source, mutant.graph))
    assert wanted in found
    arrays = whole_numbers(mutant.source)
    expected = run(mutant.source, arrays)
    assert (run(mutant.graph, arrays) != expected).any()
    small = [np.asarray(x) % 11 for x in arrays]
    for made in found.values():
        assert certify(mutant.source, made).equivalent
        assert certify(mutant.source, one_kernel(made)).equivalent
        np.testing.assert_array_equal(run(made, arrays), expected)
        np.testing.assert_allclose(interpret(made, small)[0], run(mutant.source, small), rtol=1e-5)


@pytest.mark.parametrize(("case", "column"), [("pairs of images", 0), ("dilated", 12)])
def test_an_infinity_stays_where_the_source_has_it(case: str, column: int) -> None:
    """A guard keeps a term from being loaded; a mask on its product would leave 0 times infinity."""
    pytest.importorskip("triton")
    mutant, wanted = cases()[case]
    made = dict(guarded(mutant.source, mutant.graph))[wanted]
    arrays = [np.abs(np.asarray(x)) % 11 + 1 for x in whole_numbers(mutant.source)]
    arrays[0][-1, :, :, column] = np.inf
    with np.errstate(invalid="ignore"):
        expected, garbage = run(mutant.source, arrays), run(mutant.graph, arrays)
        assert (np.isfinite(expected) & ~np.isfinite(garbage)).any()
        (found,) = interpret(made, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("case", cases())
def test_without_its_guards_each_is_refused(case: str) -> None:
    mutant, _ = cases()[case]
    for made in dict(guarded(mutant.source, mutant.graph)).values():
        (node,) = made.nodes
        for name in {"guards", "where"} & node.attrs.keys():
            attrs = {k: v for k, v in node.attrs.items() if k != name}
            open_ = replace(made, nodes=[replace(node, attrs=attrs)])
            same = (
                name == "guards" and "where" in node.attrs
            )  # those of the mutant, which the store guard covers
            assert same or not certify(mutant.source, open_).equivalent
            assert same or not certify(mutant.source, lower(open_)).equivalent


@pytest.mark.parametrize("case", cases())
def test_their_ttir_is_what_was_proved(case: str) -> None:
    pytest.importorskip("triton")
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.verify.ttir import verify_compiled

    mutant, wanted = cases()[case]
    lowered = lower(dict(guarded(mutant.source, mutant.graph))[wanted])
    emitted = emit_program(lowered)
    records = verify_compiled(mutant.source, lowered, emitted, compile_all(emitted.kernels, ["sm_90"]))
    assert all(record.end_to_end for record in records.values())


def test_programs_between_moves_are_one_nest() -> None:
    rng, seen = random.Random(11), 0
    while seen < 12:
        shapes, attrs = some(rng, "conv")
        try:
            graph = program("conv", shapes, attrs)
        except IllegalProgram:
            continue
        for mutant in mutants(graph):
            arrays = whole_numbers(graph, seen)
            for source in (mutant.source, mutant.graph):
                made = folded(source).program(source)
                np.testing.assert_array_equal(run(made, arrays), run(source, arrays))
            for _, made in guarded(mutant.source, mutant.graph):
                np.testing.assert_array_equal(run(made, arrays), run(graph, arrays))
            seen += 1


def test_what_is_no_sum_of_products_between_moves_is_not_folded() -> None:
    graph = program("pool_max", [(1, 2, 8)], windows(1, pad=1, sizes=(3,)))
    with pytest.raises(Unfoldable, match="a sum of products"):
        folded(alone(graph.nodes[0]))
    x = Value(TensorType((4,), "f32"), "x")
    with pytest.raises(Unfoldable, match="one operator besides moves"):
        folded(KernelGraph("f", [x], [], [x]))


def test_a_second_pass_takes_no_product_of_its_own() -> None:
    """The loads of both passes are added, and multiplied once with the weight that they share."""
    shapes = [(1, 32, 12, 12), (16, 32, 3, 3)]
    (node,) = (graph := program("conv", shapes, windows(2, pad=1))).nodes
    mutant = mutants(alone(node), "blocks")[0]
    made = dict(guarded(mutant.source, mutant.graph))["second pass"]
    lowered = one_kernel(made)
    statements = [s for n in lowered.nodes if isinstance(n.body, TileProgram) for s in n.body.statements()]
    products = [s for s in statements if isinstance(s, Compute) and s.op == "matmul"]
    views = {s.buffer for s in statements if isinstance(s, Load) and s.buffer.view is not None}
    assert (len(products), len([b for b in views if b.view and b.view.source == 0])) == (9, 2)
    assert certify(graph, lowered).equivalent


def test_dimensions_that_are_read_whole_shrink_in_proofs() -> None:
    """Batch and depth of a band product do; its rows and places, which guards and floors need, stay."""
    source = band(rows=200)
    small = reduce_extents(source, source)
    assert small is not None
    mutant = mutants(source, "residues")[0]
    made = dict(guarded(source, mutant.graph))["store guard"]
    pair = reduce_extents(source, made)
    assert pair is not None
    for graph in pair:
        assert [v.shape for v in graph.outputs] == [(2, 200, 5)]
        assert [v.shape for v in graph.inputs] == [(2, 200, 2)] * 2
    arrays = whole_numbers(pair[0])
    np.testing.assert_array_equal(run(pair[1], arrays), run(pair[0], arrays))
    lowered = reduce_extents(source, lower(made))
    assert lowered is not None
    assert [v.shape for v in lowered[1].inputs] == [(2, 200, 2)] * 2


@pytest.mark.parametrize(
    ("places", "guard", "whole"),
    [
        ("(d0, d1)", "true", {0, 1, 2}),
        ("(d0, d1)", "d1 >= 3", {0, 2}),  # guarded
        ("(d0, d1 + 1)", "true", {0, 2}),  # moved
        ("(d0, (d1 floordiv 2))", "true", {0, 2}),
        ("(d0 + d1, d1)", "true", {2}),  # d1 is in a sum elsewhere
        ("(d1, d1)", "true", {0, 2}),  # the first dimension is longer
    ],
)
def test_which_dimensions_are_read_whole(places: str, guard: str, whole: set[int]) -> None:
    attrs = nest_attrs((4, 6, 5), 2, [parse(3, places, guard)])
    nest = nest_by_text([(4, 6)], {"guards": "", "where": "true", "terms": (), **attrs})
    assert {*whole_dims(nest, [(4, 6)])} == whole
