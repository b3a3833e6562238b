"""What the check of a kernel's PTX may take: work of the core, and of the instances of the TTIR."""

from __future__ import annotations

import re

import pytest
from ptx_texts import STORE, launched

from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify.infinities import Extended
from superopt.verify.ptx.budget import MOST_WORK, Budget
from superopt.verify.ptx.check import PtxText, Reference, verify_ptx
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import KernelText
from superopt.verify.ttir.points import ImageTriton


@pytest.fixture(scope="module")
def product() -> tuple[KernelGraph, KernelText, PtxText]:
    """a b, of several blocks."""
    a, b = Value(TensorType((256, 64), "f16"), "a"), Value(TensorType((64, 256), "f16"), "b")
    o = Value(TensorType((256, 256), "f16"), "o")
    lowered = lower(KernelGraph("product", [a, b], [Node("matmul", (a, b), (o,))], [o]))
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, ("sm_80",))
    return lowered, kernel_texts(emitted, compiled)[0], PtxText(compiled[0].ptx, compiled[0].shared_bytes)


def test_a_loop_without_end_is_refused():
    budget = Budget(1 << 20)
    with pytest.raises(UnsupportedProgram, match=r"line \d+ of its PTX: a kernel that takes more work"):
        launched("$L:\nbra.uni $L;", 64, budget=budget).run(0)
    assert budget.left < 16


def test_blocks_of_a_launch_share_their_budget():
    """So do the threads of a block: each instruction of each one counts."""
    budget = Budget(1 << 20)
    launch = launched("mov.b32 %r10, 0;\n" + STORE, 1024, budget=budget)
    launch.run(0)
    one = (1 << 20) - budget.left
    assert one > 1024 * 12
    launch.run(0)
    assert budget.left == (1 << 20) - 2 * one
    budget.left = one - 1
    with pytest.raises(UnsupportedProgram, match="more work"):
        launch.run(0)


def test_terms_of_products_are_work(product: tuple[KernelGraph, KernelText, PtxText]):
    lowered, kernel, text = product
    (node,) = lowered.nodes
    budget = Budget()
    reference = Reference(node, kernel, Extended(ImageTriton("work", lattice="order")), budget)
    launch = reference.launch(decode(parse(text.ptx, "k.ptx")), text.shared_bytes)
    (stored,) = (s for s in launch.run(0) if s.places.size)
    assert MOST_WORK - budget.left > stored.places.size * 64


def test_a_check_that_takes_too_much_says_where(
    product: tuple[KernelGraph, KernelText, PtxText], monkeypatch: pytest.MonkeyPatch
):
    """Its kernel is verified as TTIR only: in the middle of a block, of the instances' integers, of their numbers."""
    lowered, kernel, text = product

    def reason(budget: Budget) -> str:
        monkeypatch.setattr("superopt.verify.ptx.check.Budget", lambda: budget)
        return verify_ptx(lowered, [kernel], [text]).kernels[0].unverified

    enough = Budget()
    assert not reason(enough)
    whole = MOST_WORK - enough.left
    assert not reason(Budget(whole))
    steps = 64
    found = {
        re.sub(r"\d[\d,]*(?= more| were)", "N", reason(Budget(whole * i // steps))) for i in range(steps)
    }
    core, more = "a kernel that takes more work than its check may", "N more operations where N were left"
    assert {re.sub(r"line \d+", "line N", one.removeprefix(f"kernel '{kernel.name}'")) for one in found} == {
        f" for sm_80, expected what can be verified, got: line N of its PTX: {core}",
        f", integers of its TTIR: expected work that its check may take, got {more}",
        f", numbers of its TTIR: expected work that its check may take, got {more}",
    }
