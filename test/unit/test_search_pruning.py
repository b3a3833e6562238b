"""Pruning loses nothing (Mirage, Theorem 1): neither the normal form, nor the axis test, nor values told by evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import pytest
from search_programs import (
    Program,
    matmul_bias_gelu,
)
from search_support import SMALL, TARGET, search

from superopt.program import KernelGraph
from superopt.transforms.core._search import Algebra
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import PRUNE, native_options, native_problem
from superopt.transforms.named_axes.axis_program import AxisProgram
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.unfold import unfold


def scaled_product() -> KernelGraph:
    p = Program("scaled_product")
    x, y, z = p.input(4, 8, name="x"), p.input(8, 4, name="y"), p.input(4, 1, name="z")
    return p.graph(p("matmul", p("mul", x, z), y))


def distributed() -> KernelGraph:
    p = Program("distributed")
    x, y, z = p.input(4, 8, name="x"), p.input(4, 8, name="y"), p.input(8, 4, name="z")
    return p.graph(p("add", p("matmul", x, z), p("matmul", y, z)))


def normalised() -> KernelGraph:
    p = Program("normalised")
    e, v = p.input(4, 8, name="e"), p.input(8, 4, name="v")
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)), v))


def exponential() -> KernelGraph:
    p = Program("exponential")
    x, y, z = p.input(4, 8, name="x"), p.input(4, 8, name="y"), p.input(4, 1, name="z")
    return p.graph(p("reduce_sum", p("mul", p("mul", p("exp", x), y), z), dims=(1,)))


def looped() -> KernelGraph:
    p = Program("looped")
    x, y, s = p.input(4, 128, name="x"), p.input(128, 4, name="y"), p.input(4, 1, name="s")
    return p.graph(p("div", p("matmul", x, y), s))


def concatenated() -> KernelGraph:
    """`(x || y) (w ; v)`: a product in two parts."""
    p = Program("concatenated")
    x, y = p.input(4, 128, name="x"), p.input(4, 2, name="y")
    w, v = p.input(128, 4, name="w"), p.input(2, 4, name="v")
    return p.graph(p("matmul", p("concat", x, y, dim=1), p("concat", w, v, dim=0)))


def sliced() -> KernelGraph:
    """One half of a product scales the other."""
    p = Program("sliced")
    y = p("matmul", p.input(4, 8, name="x"), p.input(8, 8, name="w"))
    left, right = (p("slice", y, offsets=(0, o), sizes=(4, 4), strides=(1, 1)) for o in (0, 4))
    return p.graph(p("mul", left, p("exp", right)))


def in_two_roles() -> KernelGraph:
    """A scaled tensor times itself, transposed."""
    p = Program("in_two_roles")
    y = p("mul", p.input(4, 8, name="x"), p.input(4, 1, name="s"))
    return p.graph(p("matmul", y, y, transpose_b=True))


def nested_loops() -> KernelGraph:
    p = Program("nested_loops")
    rows = p("reduce_sum", p("exp", p.input(128, 128, name="x")), dims=(1,))
    return p.graph(p("reduce_sum", rows, dims=(0,)))


def graphs(
    graph: KernelGraph,
    operators: int,
    prune: str,
    axis_test: bool,
    *,
    canonical: Literal["values", "graphs"] = "values",
) -> set[str]:
    """Every graph of one kernel over the inputs, as text that names values by how they are computed.

    Without pruning there are also graphs that are equal by laws outside A_eq; Theorem 1 promises only those
    whose expression A_eq proves equal to the program's.
    """
    from superopt.transforms.core import _search

    program = name_axes(unfold(graph).graph)
    options = MugraphOptimizer(
        prune=PRUNE[PRUNE.index(prune)],  # type: ignore[arg-type]
        axis_test=axis_test,
        canonical=canonical,
        dominance=0,
        max_block_operators=operators,
        max_value_operators=operators,
    )
    native = native_options(options, TARGET, 60, 0, 2)
    native.max_found = native.max_attempts = 1_000_000_000
    problem = native_problem(program, splits=False)
    result = _search.enumerate_kernels(problem, native, None)
    assert result.complete
    algebra = _search.Algebra()
    wanted: dict[int, int] = {}
    out: set[str] = set()
    for plan in result.plans:
        (kernel,) = plan.kernels
        names: dict[int, str] = {}
        forms: dict[int, int] = {}
        for number, info in result.values.items():
            if info.leaf == "input":
                names[number] = f"{program.roles[info.symbol].source.name}{info.symbol}"
                forms[number] = algebra.input(info.symbol)
            elif info.leaf == "constant":
                names[number], forms[number] = (
                    str(program.constants[info.symbol]),
                    algebra.input(99 + info.symbol),
                )
        if any(leaf not in names for leaf in kernel.leaves):
            continue  # starts from a value that another kernel would make
        for step in kernel.steps:
            a, b = step.args[0], step.args[-1]
            args = (
                sorted((names[a], names[b]))
                if step.op in ("add", "mul", "contract")
                else [names[a], names[b]]
            )
            names[step.value] = f"{step.op}{step.reduced}({', '.join(args)})"
            if step.op == "unary":
                forms[step.value] = algebra.apply(step.function, [forms[a]])
            elif step.op in ("sum", "contract"):
                form = forms[a] if step.op == "sum" else algebra.mul(forms[a], forms[b])
                for factor in step.reduced:
                    form = algebra.sum(factor, form)
                forms[step.value] = form
            else:
                forms[step.value] = getattr(algebra, step.op)(forms[a], forms[b])
        (output,) = kernel.outputs
        wanted.setdefault(forms[output], 0)
        wanted[forms[output]] += 1
        out.add(f"{forms[output]}: {sorted(names[s.value] for s in kernel.steps)}")
    own = _program_form(program, algebra)
    return {text.split(": ", 1)[1] for text in out if text.startswith(f"{own}: ")}


def _program_form(p: AxisProgram, a: Algebra) -> int:
    forms = [a.input(i) for i in range(len(p.roles))]
    forms += [a.input(99 + i) for i in range(len(p.constants))]
    factor_of: dict[int, range] = {}
    factors = 0
    for axis in range(len(p.extents)):
        count = 2 if axis in p.looped else 1
        factor_of[axis] = range(factors, factors + count)
        factors += count
    for o in p.operations:
        x, y = forms[o.args[0]], forms[o.args[-1]]
        if o.kind == "unary":
            forms.append(a.apply(o.function, [x]))
        elif o.kind in ("sum", "contract"):
            form = x if o.kind == "sum" else a.mul(x, y)
            for factor in itertools.chain(*(factor_of[axis] for axis in o.reduced)):
                form = a.sum(factor, form)
            forms.append(form)
        else:
            forms.append(getattr(a, o.kind)(x, y))
    return forms[p.outputs[0]]


@pytest.mark.parametrize(
    ("build", "operators", "at_least"),
    [
        (scaled_product, 4, 2),
        (distributed, 3, 2),
        (normalised, 3, 2),
        (exponential, 4, 3),
        (looped, 3, 5),
        (concatenated, 4, 2),
        (sliced, 4, 1),
        (in_two_roles, 3, 5),
        (nested_loops, 5, 14),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_pruned_and_unpruned_search_find_the_same_graphs(
    build: Callable[[], KernelGraph], operators: int, at_least: int
):
    graph = build()
    everything = graphs(graph, operators, "none", axis_test=False)
    assert len(everything) >= at_least
    assert graphs(graph, operators, "normal-form", axis_test=False) == everything
    assert graphs(graph, operators, "normal-form", axis_test=True) == everything


@pytest.mark.parametrize("build", [scaled_product, distributed, normalised, exponential, looped])
def test_one_value_for_equal_evaluations_loses_no_graph(build: Callable[[], KernelGraph]):
    graph = build()
    apart = graphs(graph, 5, "normal-form", axis_test=True, canonical="graphs")
    assert apart
    assert graphs(graph, 5, "normal-form", axis_test=True) >= apart


def test_an_axis_is_split_between_kernels_in_one_way_throughout_a_kernel():
    """What the label check is for: sums over split and loop at once do not meet sums that leave the split."""
    from superopt.transforms.core import _search

    program = name_axes(softmax_product())
    problem = native_problem(program, splits=True)
    options = native_options(MugraphOptimizer(), TARGET, 60, 0, 2)
    result = _search.enumerate_kernels(problem, options, None, every=True)
    levels = dict(enumerate(level for _, level in problem.factors))
    axis_of = dict(enumerate(axis for axis, _ in problem.factors))
    kinds: set[tuple[bool, bool]] = set()
    for plan in result.plans:
        (kernel,) = plan.kernels
        for axis in set(axis_of.values()):
            reduced = [{levels[f] for f in s.reduced if axis_of[f] == axis} for s in kernel.steps]
            ends = [r for r in reduced if r - {0, 2}]  # reduces the loop factor
            together, leaves = any(0 in r for r in ends), any(0 not in r for r in ends)
            alone = any(r == {0} for r in reduced)
            assert not (together and leaves)
            assert not (alone and (ends or any(r == {2} for r in reduced)))
            kinds.add((together, leaves))
    assert (True, False) in kinds


def softmax_product() -> KernelGraph:
    p = Program("softmax_product")
    x, v = p.input(16, 256, name="x"), p.input(256, 64, name="v")
    e = p("exp", x)
    return p.graph(p("div", p("matmul", e, v), p("reduce_sum", e, dims=(1,), keepdims=True)))


@pytest.mark.parametrize("name", ["rmsnorm", "attention", "lora", "gated", "bilinear", "mixed"])
def test_the_axis_test_loses_no_graph(name: str):
    graph = SMALL[name]()
    without = graphs(graph, 11, "normal-form", axis_test=False)
    assert without
    assert graphs(graph, 11, "normal-form", axis_test=True) == without


def test_z3_answers_the_pruning_question_alike():
    pytest.importorskip("z3")
    graph = matmul_bias_gelu(16, 256, 64)
    native, by_z3 = (search(graph, prune=p, max_custom=1, budget=600) for p in ("normal-form", "smt"))
    assert by_z3.predicted == native.predicted
    assert by_z3.funnel["values.useful"] == native.funnel["values.useful"]
    assert by_z3.funnel["values.pruned.expression"] > 0
