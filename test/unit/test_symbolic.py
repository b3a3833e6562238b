"""Normal forms: they prove what is equal at all extents, and nothing else."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import ALL_TEXTS
from random_programs import agreement, equal_pairs, wrong_pairs
from search_programs import attention, gated_mlp, lora, rmsnorm_linear

from superopt.cost import target
from superopt.dialects.reader import read
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.verify import certify
from superopt.verify.axes import Factor
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import reduce_extents
from superopt.verify.symbolic import prove

sys.path.insert(0, str(Path(__file__).parent.parent / "mutation"))

SMALL = {
    "gated_mlp": lambda: gated_mlp(8, 64, 96),
    "lora": lambda: lora(16, 64, 96, 16),
    "attention": lambda: attention(2, 16, 64, 16),
    "rmsnorm_linear": lambda: rmsnorm_linear(16, 128, 96),
}


def kernel(body: str, *types: str) -> KernelGraph:
    """A program of f32 tensors: `body` computes %o of the first type from %a, %b, ... of `types`."""
    names = ", ".join(f"%{'abcd'[i]}: tensor<{t}xf32>" for i, t in enumerate(types[1:]))
    out = f"tensor<{types[0]}xf32>"
    return read(f"func.func @f({names}) -> {out} {{\n{body}\n  return %o : {out}\n}}")


def op(result: str, name: str, operands: str, types: str, attrs: str = "") -> str:
    ins, out = types.split(" -> ")
    typed = ", ".join(f"tensor<{t}xf32>" for t in ins.split())
    return f'  %{result} = "kernel.{name}"({operands}){attrs} : ({typed}) -> tensor<{out}xf32>'


@pytest.mark.parametrize("name", list(SMALL))
def test_candidates_and_what_they_are_lowered_to_are_proved(name: str):
    graph = SMALL[name]()
    assert search_plans(graph, target("sm_90"), budget=120.0).graphs
    for candidate in search_plans(graph, target("sm_90"), budget=120.0).graphs[:3]:
        for program in (candidate, lower(candidate)):
            proof = prove(graph, program)
            assert proof is not None
            # A mean is a division by a number in the candidates: it stands for the extent that it has.
            assert proof.extents == ("these" if name == "rmsnorm_linear" else "all")


@pytest.mark.parametrize("name", ["gated_mlp", "lora", "attention"])
def test_what_is_proved_for_all_extents_holds_at_others(name: str, monkeypatch: pytest.MonkeyPatch):
    """The same two programs with other sizes of every factor, rebuilt and tried over finite fields."""
    graph = SMALL[name]()
    candidate = search_plans(graph, target("sm_90"), budget=120.0).graphs[0]
    generator = random.Random(0)
    for program in (candidate, lower(candidate)):
        proof = prove(graph, program)
        assert proof is not None
        assert proof.extents == "all"
        for _ in range(4):
            sizes: dict[Factor, int] = {}

            def size(self: Factor, sizes: dict[Factor, int] = sizes) -> int:
                return self.size if self.fixed else sizes.setdefault(self, generator.choice([1, 2, 3, 5]))

            with monkeypatch.context() as patched:
                patched.setattr(Factor, "reduced", property(size))
                pair = reduce_extents(graph, program)
            assert pair is not None
            assert sizes
            assert certify(*pair).equivalent


def test_equal_random_programs_are_often_proved():
    pairs = list(equal_pairs(60, seed=3))
    assert sum(prove(a, b) is not None for a, b in pairs) > len(pairs) // 4


def test_wrong_random_programs_never_are():
    count = 0
    for a, b, what in wrong_pairs(150, seed=4):
        assert prove(a, b) is None, what
        count += 1
    assert count == 150


@pytest.mark.parametrize("level", ["block", "tile"])
def test_mutants_never_are_unless_they_are_equal(level: str):
    harness: Any = importlib.import_module("harness")
    mutate: Any = importlib.import_module("mutate_graph").mutate

    from superopt.errors import SuperoptError
    from superopt.spec import check_kernel

    generator = random.Random(5)
    graphs: list[tuple[KernelGraph, KernelGraph]] = []
    for make in SMALL.values():
        graph = make()
        candidate = search_plans(graph, target("sm_90"), budget=120.0).graphs[0]
        graphs.append((graph, candidate if level == "block" else lower(candidate)))
    proved = 0
    for number in range(200):
        graph, program = graphs[number % len(graphs)]
        _, what, text = mutate(canonical_text(program), generator)
        try:
            mutant = parse(text)
            mutant.nodes = list(mutant.nodes)
            check_kernel(mutant)
            if prove(graph, mutant) is None:
                continue
            if not harness._gate(graph, lower(mutant)):
                continue  # equal over the reals, and NaN in floats: a maximum that starts at 1e30
            same = harness._same_floats(graph, mutant)
        except SuperoptError:
            continue
        proved += 1
        assert same, what
    assert proved, "some mutants are equal"


T = "4x6"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # sums distribute, and constants are rational numbers
        ([op("s", "add", "%a, %b", f"{T} {T} -> {T}"), op("o", "mul", "%s, %s", f"{T} {T} -> {T}")],
         [op("p", "square", "%a", f"{T} -> {T}"), op("q", "square", "%b", f"{T} -> {T}"),
          op("m", "mul", "%a, %b", f"{T} {T} -> {T}"), op("n", "add", "%m, %m", f"{T} {T} -> {T}"),
          op("r", "add", "%p, %q", f"{T} {T} -> {T}"), op("o", "add", "%r, %n", f"{T} {T} -> {T}")]),
        # exp of a sum
        ([op("s", "add", "%a, %b", f"{T} {T} -> {T}"), op("o", "exp", "%s", f"{T} -> {T}")],
         [op("p", "exp", "%a", f"{T} -> {T}"), op("q", "exp", "%b", f"{T} -> {T}"),
          op("o", "mul", "%q, %p", f"{T} {T} -> {T}")]),
        # (a / b) / b and a / (b * b)
        ([op("s", "div", "%a, %b", f"{T} {T} -> {T}"), op("o", "div", "%s, %b", f"{T} {T} -> {T}")],
         [op("p", "mul", "%b, %b", f"{T} {T} -> {T}"), op("o", "div", "%a, %p", f"{T} {T} -> {T}")]),
        # sigmoid spelled in another way
        ([op("s", "sigmoid", "%a", f"{T} -> {T}"), op("o", "mul", "%s, %b", f"{T} {T} -> {T}")],
         [op("e", "exp", "%a", f"{T} -> {T}"), op("f", "div", "%e, %e", f"{T} {T} -> {T}"),
          op("g", "add", "%e, %f", f"{T} {T} -> {T}"), op("h", "div", "%e, %g", f"{T} {T} -> {T}"),
          op("o", "mul", "%b, %h", f"{T} {T} -> {T}")]),
        # max is a semilattice
        ([op("s", "max", "%a, %b", f"{T} {T} -> {T}"), op("o", "max", "%s, %a", f"{T} {T} -> {T}")],
         [op("o", "max", "%b, %a", f"{T} {T} -> {T}")]),
    ],
    ids=["square of a sum", "exp of a sum", "quotients", "sigmoid", "max"],
)  # fmt: skip
def test_identities(first: list[str], second: list[str]):
    a, b = (kernel("\n".join(lines), T, T, T) for lines in (first, second))
    proof = prove(a, b)
    assert proof is not None
    assert (proof.extents, proof.factors) == ("all", 2)
    assert agreement(a, b)


def test_a_mean_is_a_sum_over_a_size():
    a = kernel(op("o", "reduce_mean", "%a", "4x6 -> 4", " {dims = array<i64: 1>}"), "4", "4x6")
    number = '  %n = "kernel.constant"() {value = 6.0 : f64, shape = array<i64: 4>, dtype = "f32"} : () -> tensor<4xf32>'
    total = op("s", "reduce_sum", "%a", "4x6 -> 4", " {dims = array<i64: 1>}")
    b = kernel("\n".join([total, number, op("o", "div", "%s, %n", "4 4 -> 4")]), "4", "4x6")
    proof = prove(a, b)
    assert proof is not None
    assert proof.extents == "these", "6 stands for the extent"
    assert prove(a, kernel("\n".join([total, op("o", "add", "%s, %s", "4 4 -> 4")]), "4", "4x6")) is None


def test_a_square_of_a_sum_is_no_sum_of_squares():
    """Two sums over one axis have two variables."""
    attrs = " {dims = array<i64: 1>}"
    square = "\n".join([op("s", "reduce_sum", "%a", "4x6 -> 4", attrs), op("o", "square", "%s", "4 -> 4")])
    squares = "\n".join(
        [op("s", "square", "%a", "4x6 -> 4x6"), op("o", "reduce_sum", "%s", "4x6 -> 4", attrs)]
    )
    assert prove(kernel(square, "4", "4x6"), kernel(squares, "4", "4x6")) is None
    assert prove(kernel(square, "4", "4x6"), kernel(square, "4", "4x6")) is not None


def test_what_this_method_does_not_reach_is_not_claimed():
    for name in ("attention_online", "fused_and_concat"):
        graph = read(ALL_TEXTS[name])
        assert prove(graph, lower(graph)) is None


def test_the_certificate_says_so():
    graph = SMALL["lora"]()
    candidate = search_plans(graph, target("sm_90"), budget=120.0).graphs[0]
    certificate = certify(graph, candidate).certificate
    assert certificate is not None
    assert certificate.normal_form is not None
    assert certificate.normal_form.extents == "all"
    assert "normal form for all extents" in certificate.summary
    assert certificate.tests, "it is tested as well"


def test_a_proof_ends_after_a_number_of_steps(monkeypatch: pytest.MonkeyPatch):
    """So that forms that grow with every operator cost nothing but themselves; steps, not seconds: runs agree."""
    from superopt.verify.symbolic import form

    graph = gated_mlp()
    assert prove(graph, graph) is not None
    first = form.Steps.left
    assert prove(graph, graph) is not None
    assert form.Steps.left == first
    monkeypatch.setattr(form, "MOST_STEPS", form.MOST_STEPS - first)
    assert prove(graph, graph) is not None
    monkeypatch.setattr(form, "MOST_STEPS", form.MOST_STEPS - 1)
    assert prove(graph, graph) is None
