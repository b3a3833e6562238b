"""What the check of TTIR may take: text that computes for ever, or on more memory than there is, is refused by name."""

from __future__ import annotations

from functools import partial

import pytest

from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify.domains import Domain
from superopt.verify.fields import ImageField
from superopt.verify.ttir import Buffer, KernelText, check, evaluate, launch, parse, verify_ttir
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.values import ShapeDomain
from superopt.verify.ttir.work import A_NUMBER, AN_OPERATION, MOST_WORK, Meter

LOOPS = """
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%end = arith.constant 1000000 : i32
scf.for %a = %c0 to %end step %c1  : i32 {
scf.for %b = %c0 to %end step %c1  : i32 {
%s = arith.addi %a, %b : i32
}
}
"""
NUMBERS = """
%x = arith.constant dense<1.0> : tensor<64x64xf32>
%y = arith.constant dense<0.0> : tensor<64x64xf32>
"""


def took(body: str, domain: Domain, instances: int = 1, most: int = MOST_WORK) -> int:
    """What a kernel spends."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    head = "  tt.func public @k(%o: !tt.ptr<f32>) attributes {noinline = false} {"
    text = f"module {{\n{head}\n{lines}\n    tt.return\n  }}\n}}\n"
    made: list[Meter] = []

    def meter() -> Meter:
        made.append(Meter(most))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "Meter", meter)
        launch(parse(text), (instances, 1, 1), [Buffer("o", 4, "f32", writable=True)], domain)
    return most - made[-1].left


def test_loops_in_loops_are_refused():
    with pytest.raises(
        UnsupportedProgram, match=r"line \d+ of its TTIR: expected a kernel that its check can run"
    ):
        took(LOOPS, ShapeDomain(), most=1 << 20)


def test_batches_of_a_launch_share_what_it_may_take():
    body = "%r = tt.make_range {end = 1048576 : i32, start = 0 : i32} : tensor<1048576xi32>\n"
    one = took(body, ShapeDomain())
    assert one == AN_OPERATION + (1 << 20)
    assert took(body, ShapeDomain(), instances=3) == 3 * one
    with pytest.raises(UnsupportedProgram, match="more than"):
        took(body, ShapeDomain(), instances=3, most=3 * one - 1)


def test_numbers_cost_more_than_their_shapes_and_products_their_terms():
    add = NUMBERS + "%z = arith.addf %x, %y : tensor<64x64xf32>\n"
    dot = NUMBERS + (
        "%z = tt.dot %x, %x, %y, inputPrecision = tf32 : tensor<64x64xf32> * tensor<64x64xf32> -> tensor<64x64xf32>\n"
    )
    field = ImageField("work")
    numbers = took(NUMBERS, field)
    assert took(add, field) - numbers == A_NUMBER * 64 * 64 + AN_OPERATION
    assert took(dot, field) - numbers == 64 * 64 * 64 + AN_OPERATION
    assert took(add, ShapeDomain()) == took(dot, ShapeDomain()) < numbers


def test_tensors_are_as_large_as_triton_allows():
    body = "%r = tt.make_range {end = 2097152 : i32, start = 0 : i32} : tensor<2097152xi32>\n"
    with pytest.raises(UnsupportedProgram, match="tensors of at most 1048576 elements, got 2097152"):
        took(body, ShapeDomain())


def test_an_output_whose_stores_cannot_be_followed_is_refused():
    huge = Buffer("o", 1 << 40, "f32", writable=True)
    with pytest.raises(UnsupportedProgram, match="'o': expected an output of at most"):
        huge.begin_launch()


def negated() -> tuple[KernelGraph, KernelGraph, list[KernelText]]:
    x = Value(TensorType((512, 256), "f16"))
    node = Node("neg", (x,), (Value(TensorType((512, 256), "f16")),), {})
    graph = KernelGraph("negate", [x], [node], [node.result])
    lowered = lower(graph)
    emitted = emit_program(lowered)
    return graph, lowered, kernel_texts(emitted, compile_all(emitted.kernels, ["sm_90"], jobs=1))


def no_blocks(program: TileProgram, drawn: object) -> None:
    """As of a program that is no nest of parallel loops."""


@pytest.mark.parametrize("what", ["MOST_WORK", "MOST_ELEMENTS"])
@pytest.mark.parametrize("parts", [True, False], ids=["blocks", "whole"])
def test_what_a_kernel_is_compared_with_is_bounded(what: str, parts: bool, monkeypatch: pytest.MonkeyPatch):
    graph, lowered, texts = negated()
    if not parts:
        monkeypatch.setattr(check, "some_blocks", no_blocks)
    verify = partial(verify_ttir, graph, lowered, texts, full_work=1)
    verify()
    monkeypatch.setattr(check, what, 10)
    with pytest.raises(
        UnsupportedProgram, match="expected a program that it can be compared with, of at most"
    ):
        verify()


def test_programs_that_are_much_larger_than_their_kernels_are_not_evaluated_whole(
    monkeypatch: pytest.MonkeyPatch,
):
    graph, lowered, texts = negated()
    assert verify_ttir(graph, lowered, texts).end_to_end
    monkeypatch.setattr(check, "OF_PROGRAMS", 0)
    assert not verify_ttir(graph, lowered, texts).end_to_end
