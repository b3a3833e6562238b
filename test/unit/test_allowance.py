"""What the check of a bundle may take in all: of its TTIR, its PTX, and compilers, by whatever kernels it has."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from superopt.dialects.writer import to_text
from superopt.errors import BadInput
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.bundle import write_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import allowance
from superopt.verify.bundle import verify_bundle


def chain(folder: Path, kernels: int) -> tuple[KernelGraph, Path]:
    """The bundle of as many products, one after the other, whose kernels are of other sizes each."""
    widths = [32 + 16 * i for i in range(kernels + 1)]
    values = [Value(TensorType((32, n), "f32"), f"x{i}") for i, n in enumerate(widths)]
    factors = [Value(TensorType(pair, "f32"), f"w{i}") for i, pair in enumerate(pairwise(widths))]
    nodes = [Node("matmul", (a, w), (b,)) for a, w, b in zip(values, factors, values[1:], strict=False)]
    graph = KernelGraph("chain", [values[0], *factors], nodes, values[-1:])
    lowered = lower(graph)
    compiled = compile_all(emit_program(lowered).kernels, ["sm_80"])
    return graph, write_bundle(
        folder,
        original=graph,
        lowered=lowered,
        compiled=compiled,
        original_mlir=to_text(graph),
        lowered_mlir=to_text(lowered),
    )


class Recorded(allowance.Allowance):
    """The last one that was made."""

    last: Recorded

    def __init__(self, most: int) -> None:
        super().__init__(most)
        Recorded.last = self


def taken(graph: KernelGraph, folder: Path) -> int:
    """Operations that the check of a bundle takes, without those of compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allowance, "A_SECOND", 0)
        patch.setattr(allowance, "Allowance", Recorded)
        verify_bundle(graph, folder, seed=0)
    return Recorded.last.most - Recorded.last.left


def test_the_kernels_of_a_bundle_share_what_its_check_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """However many there are, and however little each takes: in its TTIR, in its PTX, or where they are compiled."""
    one, three = (taken(*chain(tmp_path / str(n), n)) for n in (1, 3))
    assert three > 3 * one
    graph, folder = chain(tmp_path / "3", 3)
    monkeypatch.setattr(allowance, "A_SECOND", 0)
    monkeypatch.setattr(allowance, "MOST_WORK", three)
    verify_bundle(graph, folder, seed=0)
    said = set[str]()
    for i in (0, 3, 5, 6, 7):
        monkeypatch.setattr(allowance, "MOST_WORK", three * i // 8)
        with pytest.raises(BadInput, match="expected a bundle whose check takes at most") as error:
            verify_bundle(graph, folder, seed=0)
        said.add(re.sub(r"\d[\d,]*", "N", error.value.message.split(": ", 1)[1]))
    assert {"kernel 'chain_N', line N of its TTIR", "kernel 'chain_N', its PTX"} <= said


def test_compilers_count_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    graph, folder = chain(tmp_path / "2", 2)
    work = taken(graph, folder)
    monkeypatch.setattr(allowance, "MOST_WORK", work + 10**12)
    monkeypatch.setattr(allowance, "A_SECOND", 10**15)
    with pytest.raises(BadInput, match="takes more: kernel 'chain_1' for sm_80, compiled again"):
        verify_bundle(graph, folder, seed=0)


def test_outside_of_bundles_nothing_is_counted():
    allowance.spend(1 << 62, "a kernel")
    with allowance.allowed(10) as left:
        allowance.spend(10, "a kernel")
        with pytest.raises(BadInput, match="at most 10 operations in all, got one that takes more: a kernel"):
            allowance.spend(1, "a kernel")
    assert left.left == -1
    with allowance.allowed(10) as every:
        for _ in range(2):
            with allowance.allowed(6):
                allowance.spend(4, "a bundle")
        assert every.left == 2
        with pytest.raises(BadInput, match="takes more: a bundle"), allowance.allowed(6):
            allowance.spend(4, "a bundle")
    allowance.spend(1, "a kernel")
