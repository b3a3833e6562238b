"""Where two programs differ, exactly, against a full comparison; `make relation` is the whole run."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.derivation.rules import RULES
from superopt.verify import Certificate, certifier, certify
from superopt.verify.certifier import replay
from superopt.verify.relation import Abstained, Region, difference, equal_sizes, polynomials
from superopt.verify.relation.polynomials import Abstains
from superopt.verify.relation.programs import Relations
from superopt.verify.relation.region import OPERATIONS
from superopt.verify.relation.sizes import Affine, Sizes

sys.path.insert(0, str(Path(__file__).parent.parent / "relation"))


class Program:
    """Writes a program: `p.x(2, 3)` is an input, `p("add", a, b)` a node."""

    def __init__(self) -> None:
        self.graph = KernelGraph("f", [], [], [])

    def x(self, *shape: int) -> Value:
        self.graph.inputs.append(Value(TensorType(shape, "f32")))
        return self.graph.inputs[-1]

    def __call__(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.graph.nodes.append(Node(op, operands, (result,), attrs))
        return result

    def of(self, *outputs: Value) -> KernelGraph:
        self.graph.outputs = list(outputs)
        return self.graph


def conv(stride: int = 1, dilation: int = 1, pad: int = 0) -> dict[str, Attr]:
    numbers = {"strides": stride, "dilations": dilation, "low": pad, "high": pad}
    return {name: (number, number) for name, number in numbers.items()}


def region(a: KernelGraph, b: KernelGraph) -> Region:
    found = difference(a, b)
    assert isinstance(found, Region), found
    return found


@pytest.fixture(scope="module")
def campaign() -> Any:
    return importlib.import_module("relation_campaign")


def test_regions_are_those_of_a_full_comparison(campaign: Any) -> None:
    tally = campaign.campaign(60, 300, 7)
    assert tally.wrong == []
    assert sum(tally.abstained.values()) <= 3
    assert tally.differing > 150
    assert tally.equal > 60


def test_a_relation_that_counts_no_product_twice_is_found_out(
    campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of every sum: points with one monomial add up."""

    def blind(result: Any, m: Any, *_: object) -> list[Any]:
        return [m.apply_domain(result)]

    monkeypatch.setattr(polynomials, "_injective", blind)
    p, q = Program(), Program()
    once = p("reduce_sum", p.x(2, 3), dims=(1,), keepdims=False)
    wide = q("reshape", q.x(2, 3), shape=(2, 1, 3))
    wide = q(
        "slice", q("repeat", wide, dim=1, times=2), offsets=(0, 0, 0), sizes=(2, 2, 3), strides=(1, 1, 1)
    )
    twice = q("reduce_sum", wide, dims=(1, 2), keepdims=False)
    assert region(p.of(once), q.of(twice)).empty, "what is wrong"
    monkeypatch.undo()
    assert region(p.of(once), q.of(twice)).counts == [2]
    assert not certify(p.graph, q.graph).equivalent


def test_images_side_by_side_differ_at_the_seam() -> None:
    """PET's batch as width: outputs next to the seam read the other image."""
    p, q = Program(), Program()
    one = p("conv", p.x(2, 3, 4, 5), p.x(4, 3, 3, 3), **conv(pad=1))
    x, w = q.x(2, 3, 4, 5), q.x(4, 3, 3, 3)
    wide = q("reshape", q("transpose", x, perm=(1, 2, 0, 3)), shape=(1, 3, 4, 10))
    y = q("reshape", q("conv", wide, w, **conv(pad=1)), shape=(4, 4, 2, 5))
    found = region(p.of(one), q.of(q("transpose", y, perm=(2, 0, 1, 3))))
    boxes, exact = found.boxes(0)
    assert sorted(boxes) == [
        ((0, 1, 1), (0, 4, 1), (0, 4, 1), (4, 5, 1)),
        ((1, 2, 1), (0, 4, 1), (0, 4, 1), (0, 1, 1)),
    ]
    assert exact
    assert found.counts == [32]


def test_residues_are_steps_of_boxes() -> None:
    p, q = Program(), Program()
    x, y = p.x(12), q.x(12)
    kept = p("add", x, p("pad", p.x(6), low=(0,), high=(6,)))
    every = q("slice", y, offsets=(1,), sizes=(6,), strides=(2,))
    q.x(6)
    spread = q("reshape", q("pad", q("reshape", every, shape=(6, 1)), low=(0, 1), high=(0, 0)), shape=(12,))
    found = region(
        p.of(
            p("sub", kept, kept),
        ),
        q.of(spread),
    )
    assert found.boxes(0) == ([((1, 12, 2),)], True)
    assert found.mask(0).nonzero()[0].tolist() == [1, 3, 5, 7, 9, 11]


def test_products_commute_and_coefficients_add_up() -> None:
    p, q = Program(), Program()
    x, y = p.x(3, 3), q.x(3, 3)
    square = p("matmul", x, x, transpose_b=True)
    turned = q("transpose", q("matmul", y, y, transpose_b=True), perm=(1, 0))
    assert region(p.of(square), q.of(turned)).empty
    double = q("add", turned, turned)
    assert region(p.of(square), q.of(double)).counts == [9]
    assert region(p.of(p("add", square, square)), q.of(double)).empty
    assert region(p.of(p("sub", square, square)), q.of(q("sub", turned, turned))).empty


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("exp", {}, "'exp' is not multilinear"),
        ("reduce_max", {"dims": (0,), "keepdims": True}, "'reduce_max' is not multilinear"),
        ("reciprocal", {}, "'div' by what is not a number"),
    ],
)  # fmt: skip
def test_what_is_not_multilinear_is_left_to_the_fields(op: str, attrs: dict[str, Attr], reason: str) -> None:
    graphs = [p.of(p(op, p("neg", p.x(3, 4)), **attrs)) for p in (Program(), Program())]
    found = difference(*graphs)
    assert found == Abstained(reason)


def test_isl_has_a_budget() -> None:
    p = Program()
    graph = p.of(p("conv", p.x(2, 3, 8, 8), p.x(4, 3, 3, 3), **conv(pad=1)))
    assert difference(graph, graph, operations=100) == Abstained("isl took more than 100 operations")


def test_sums_that_repeat_a_product_too_often_are_left_to_the_fields() -> None:
    p = Program()
    wide = p("reshape", p("repeat", p.x(1, 100), dim=0, times=100), shape=(10_000,))
    found = difference(p.of(p("reduce_sum", wide, dims=(0,), keepdims=True)), p.graph)
    assert found == Abstained("a sum adds one product too many times")


def test_strides_that_read_padding_alone_stay() -> None:
    """What the campaign found: the rule cut its input to nothing."""
    p = Program()
    attrs: dict[str, Attr] = {**conv(3), "low": (3, 0), "high": (0, 1)}
    graph = p.of(p("conv", p.x(1, 1, 2, 5), p.x(1, 1, 3, 3), **attrs))
    assert RULES["strides-as-channels"](graph, graph.nodes[0]) is None


def test_a_deep_product_is_given_up_soon() -> None:
    """Relations of dozens of dimensions, where one of isl's operations takes some hundred times as long."""
    p, q = Program(), Program()

    def chain(w: Program) -> KernelGraph:
        y = w("add", w.x(2, 256, 64), w.x(2, 256, 64))
        for _ in range(4):
            y = w("mul", y, w("reduce_sum", w("square", y), dims=(2,), keepdims=True))
        return w.of(y)

    assert difference(chain(p), chain(q)) == Abstained(f"isl took more than {OPERATIONS} operations")


def test_many_pieces_are_read_at_once() -> None:
    """isl's own list of these points first makes the pieces disjoint, which does not end."""
    import islpy as isl

    size, residues = 60, range(3, 40)
    pieces = " or ".join(f"({n + 1}*i + {n % 7 + 2}*j + k) mod {n} = {n // 2}" for n in residues)
    shape = (size, size, 4)
    box = " and ".join(f"0 <= {d} < {e}" for d, e in zip("ijk", shape, strict=True))
    i, j, k = np.indices(shape)
    expected = np.zeros(shape, dtype=bool)
    for n in residues:
        expected |= ((n + 1) * i + (n % 7 + 2) * j + k) % n == n // 2
    found = Region(
        (isl.Set.read_from_str(isl.Context(), f"{{ [i, j, k] : {box} and ({pieces}) }}"),), False, (shape,)
    )
    assert (found.mask(0) == expected).all()
    assert found.counts == [int(expected.sum())]


def test_empty_tensors_are_left_to_the_fields() -> None:
    p, q = Program(), Program()
    x = p.x(3, 8)
    joined = p("concat", p("constant", value=0.0, shape=(3, 0), dtype="f32"), x, dim=1)
    found = difference(p.of(joined), q.of(q("reshape", q.x(3, 8), shape=(3, 8))))
    assert found == Abstained("a tensor is empty")


def test_scalars_are_padded_and_compared() -> None:
    """What has no dimension has no window either."""
    p, q = Program(), Program()
    padded = p("pad", p.x(), low=(), high=(), value=1.0)
    found = region(
        p.of(p("neg", padded)), q.of(q("mul", q.x(), q("constant", value=-1.0, shape=(), dtype="f32")))
    )
    assert found.empty
    assert found.mask(0).tolist() is False
    q = Program()
    assert region(p.graph, q.of(q("neg", q("neg", q.x())))).mask(0).tolist() is True


# --- all sizes --------------------------------------------------------------------------------------------


def test_the_family_of_a_program_is_that_program_at_other_sizes(campaign: Any) -> None:
    """Its relations at some parameters are those of the same nodes on inputs of the sizes that these give."""
    import islpy as isl

    tried = 0
    for seed in range(500):
        rng = random.Random(f"family/{seed}")
        graph = campaign.source(rng)
        if any(n.op in ("slice", "band", "reshape", "broadcast") for n in graph.nodes):
            continue  # whose attributes are sizes
        context = isl.Context()
        family = Sizes(graph.inputs, symbolic=True)
        relations = Relations(context, family)
        context.set_max_operations(1_000_000)
        try:
            (made,), _ = relations.outputs([graph])
        except (Abstains, isl.Error):
            continue
        context.set_max_operations(0)
        point = {u: rng.randint(1, 6) for u in family.parameters()}

        def at(x: Affine, point: dict[int, int] = point, family: Sizes = family) -> int:
            x = family.resolved(x)
            return x.constant + sum(c * point[u] for u, c in x.terms)

        if min(map(at, family.positive)) < 1:
            continue
        shapes = [tuple(at(d[0]) for d in dims) for dims in family.inputs]
        w = campaign.Writer()
        new = {v: w.input(*shape) for v, shape in zip(graph.inputs, shapes, strict=True)}
        for node in graph.nodes:
            new[node.result] = w.emit(node.op, *(new[v] for v in node.operands), **node.attrs)
        w.graph.outputs = [new[v] for v in graph.outputs]
        if any(1 in v.shape for v in [*graph.outputs, *w.graph.outputs]):
            continue  # which may be no dimension
        whole = Sizes(w.graph.inputs, symbolic=True)
        for shape, dims in zip(shapes, whole.inputs, strict=True):
            assert [whole.value(d[0]) for d in dims] == list(shape)
            whole.fix([d[0] for d in dims])
        (expected,), _ = Relations(context, whole).outputs([w.graph])
        values = " and ".join(f"p{u} = {n}" for u, n in point.items()) or "true"
        there = isl.Set.read_from_str(context, f"{family.prefix()}{{ : {values} }}")
        for p, q in zip(made, expected, strict=True):
            fixed = {(i, c): m.intersect_params(there) for i, c, m in polynomials.parts(p)}
            kept = {k: m for k, m in fixed.items() if not m.is_empty()}
            known = {(i, c): m for i, c, m in polynomials.parts(q)}
            assert kept.keys() == known.keys(), seed
            for key, m in kept.items():
                count = m.dim(isl.dim_type.param)
                assert m.project_out(isl.dim_type.param, 0, count).is_equal(known[key]), seed
        tried += 1
    assert tried > 40


def test_programs_are_equal_at_all_sizes_of_what_no_number_fixes() -> None:
    p, q = Program(), Program()
    one = p("conv", p.x(1, 3, 6, 7), p.x(5, 3, 3, 3), **conv(pad=1))
    x, w = q.x(1, 3, 6, 7), q.x(5, 3, 3, 3)
    padded = q("pad", x, low=(0, 0, 1, 1), high=(0, 0, 1, 1))
    found = equal_sizes(p.of(one), q.of(q("conv", padded, w, **conv())))
    assert found == ["in0.0", "in0.1 = in1.1", "in0.2", "in0.3", "in1.0", "in1.2", "in1.3"]


def test_where_a_slice_begins_may_be_a_size() -> None:
    """The middle one of three parts begins where the first one ends, at all sizes at which programs are equal."""
    p, q = Program(), Program()
    middle = p("neg", [p.x(2), p.x(3), p.x(4)][1])
    joined = q("neg", q("concat", q.x(2), q.x(3), q.x(4), dim=0))
    part = q("slice", joined, offsets=(2,), sizes=(3,), strides=(1,))
    assert equal_sizes(p.of(middle), q.of(part)) == ["in0.0", "in1.0", "in2.0"]


def test_what_is_equal_at_one_size_alone_is_not_called_equal_at_others() -> None:
    """Halves exchanged, by a pitch that is a number."""
    p, q = Program(), Program()
    x, y = p.x(6), q.x(6)
    parts = [p("slice", x, offsets=(n,), sizes=(3,), strides=(1,)) for n in (3, 0)]
    one = p("concat", *parts, dim=0)
    rows = q("reshape", y, shape=(2, 3))
    turned = [q("slice", rows, offsets=(n, 0), sizes=(1, 3), strides=(1, 1)) for n in (1, 0)]
    other = q("reshape", q("concat", *turned, dim=0), shape=(6,))
    assert region(p.of(one), q.of(other)).empty
    assert equal_sizes(p.graph, q.graph) == []
    steps = q(
        "concat", *(q("slice", y, offsets=(n,), sizes=(1,), strides=(1,)) for n in (3, 4, 5, 0, 1, 2)), dim=0
    )
    assert region(p.graph, q.of(steps)).empty
    assert equal_sizes(p.graph, q.graph) == []


def test_a_size_that_has_a_largest_value_is_not_called_free() -> None:
    """What is padded to eight elements, by which a mean divides, has at most eight: other sizes are illegal."""
    p, q = Program(), Program()
    graphs = [
        w.of(w("reduce_mean", w("pad", w.x(3), low=(0,), high=(5,)), dims=(0,), keepdims=False))
        for w in (p, q)
    ]
    assert region(*graphs).empty
    assert equal_sizes(*graphs) == []


# --- the record of a certificate --------------------------------------------------------------------------


def turned(body: str | None = None) -> tuple[KernelGraph, KernelGraph]:
    """A matrix product, perhaps with an elementwise operator behind it, and another way to write it."""
    p, q = Program(), Program()
    x, w, v, u = p.x(4, 6), p.x(6, 5), q.x(4, 6), q.x(6, 5)
    one = p("matmul", x, w)
    other = q("transpose", q("matmul", u, v, transpose_a=True, transpose_b=True), perm=(1, 0))
    return p.of(p(body, one) if body else one), q.of(q(body, other) if body else other)


def certified(pair: tuple[KernelGraph, KernelGraph]) -> Certificate:
    certificate = certify(*pair).certificate
    assert certificate is not None
    assert certificate.relation is not None
    return certificate


def test_a_certificate_says_what_the_relations_say() -> None:
    made = certified(turned())
    assert made.relation is not None
    assert made.relation.abstained is None
    assert "equal relations for " in made.summary
    assert replay(made) == []
    other = certified(turned("exp"))
    assert "relation abstained: 'exp' is not multilinear" in other.summary
    assert replay(other) == []


@pytest.mark.parametrize("change", [{"sizes": ["x.0"]}, {"abstained": "too large"}, None])
def test_a_forged_record_is_refused(change: dict[str, Any] | None) -> None:
    made = certified(turned())
    assert made.relation is not None
    forged = made.relation.model_copy(update=change) if change else None
    (found,) = replay(made.model_copy(update={"relation": forged}))
    assert found.startswith("relation: stated ")
    other = certified(turned("exp"))
    proved = other.model_copy(update={"relation": made.relation})
    assert replay(proved)[0].startswith("relation: stated ")


def test_programs_whose_relations_differ_are_refused_whatever_the_tests_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = turned()
    c = Program()
    wrong = difference(a, c.of(c("matmul", c("neg", c.x(4, 6)), c.x(6, 5))))
    assert isinstance(wrong, Region)

    def differs(*_: object) -> Region:
        return wrong

    monkeypatch.setattr(certifier, "difference", differs)
    verdict = certify(a, b)
    assert not verdict.equivalent
    assert "the relations of the programs differ: output 0 at [" in str(verdict.counterexample)
