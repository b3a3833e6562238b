"""Maxima of kernels, in the checks of TTIR and PTX: sets of what they join, so that no number may be left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_ragged import attention

from superopt.errors import NotEquivalent
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import lattices
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir import KernelText, verify_ttir
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import FULL_WORK


def compiled(graph: KernelGraph) -> tuple[KernelGraph, list[KernelText], list[PtxText]]:
    lowered = lower(graph)
    emitted = emit_program(lowered)
    made = compile_all(emitted.kernels, ["sm_90"], jobs=1)
    return lowered, kernel_texts(emitted, made), [PtxText(k.ptx, k.shared_bytes) for k in made]


def largest(rows: int, width: int) -> KernelGraph:
    x, o = Value(TensorType((rows, width), "f32"), "x"), Value(TensorType((rows,), "f32"), "o")
    node = Node("reduce_max", (x,), (o,), {"dims": (1,), "keepdims": False})
    return KernelGraph("largest", [x], [node], [o])


@pytest.mark.parametrize("full_work", [FULL_WORK, 1], ids=["all instances", "some"])
def test_a_maximum_in_the_ttir_leaves_nothing_out(full_work: int):
    """One number of 3,000 in each row: a random order, or numbers, would seldom tell."""
    graph = largest(64, 3000)
    lowered, (text,), _ = compiled(graph)
    record = verify_ttir(graph, lowered, [text], full_work=full_work)
    assert not record.formal
    assert [k.maxima for k in record.kernels] == ["sets"]
    assert "maxima as sets" in record.summary
    mask = re.search(r"( *)(%\w+) = arith.cmpi slt, (%\w+), (%\w+) : tensor<4096xi32>.*\n", text.ttir)
    assert mask is not None
    indent, taken, span, _ = mask.groups()
    fewer = (
        f"{indent}%last = arith.constant dense<2999> : tensor<4096xi32>\n"
        f"{indent}{taken} = arith.cmpi slt, {span}, %last : tensor<4096xi32>\n"
    )
    wrong = replace(text, ttir=text.ttir.replace(mask[0], fewer))
    with pytest.raises(NotEquivalent, match="expected"):
        verify_ttir(graph, lowered, [wrong], full_work=full_work)


@pytest.mark.parametrize(("most", "maxima"), [(lattices.MOST_LEAVES, "sets"), (2000, "order")])
def test_what_told_of_maxima_is_said(most: int, maxima: str, monkeypatch: pytest.MonkeyPatch):
    """Where sets need too much memory, one random order picks, and the record says so."""
    monkeypatch.setattr(lattices, "MOST_LEAVES", most)
    graph = largest(64, 3000)
    lowered, texts, ptx = compiled(graph)
    record = verify_ttir(graph, lowered, texts)
    below = verify_ptx(lowered, texts, ptx)
    for kernels, summary in ((record.kernels, record.summary), (below.kernels, below.summary)):
        assert [k.maxima for k in kernels] == [maxima]
        said = "maxima as sets" if maxima == "sets" else "maxima in 1 of 1 kernel by one random order only"
        assert said in summary


def test_kernels_without_maxima_say_nothing_of_them():
    x, o = (Value(TensorType((32, 64), "f32"), n) for n in "xo")
    graph = KernelGraph("negate", [x], [Node("neg", (x,), (o,))], [o])
    lowered, texts, ptx = compiled(graph)
    records = verify_ttir(graph, lowered, texts), verify_ptx(lowered, texts, ptx)
    assert not any("maxima" in record.summary for record in records)
    kernels: Sequence[str] = [k.maxima for record in records for k in record.kernels]
    assert kernels == ["none", "none"]


def test_attention_to_thousands_of_keys_has_sets():
    """The running maxima of each row join 4,096 scores, and each remembers only what it adds."""
    graph = attention(32, 4096, 16, 32, 64)
    lowered, texts, ptx = compiled(graph)
    assert [k.maxima for k in verify_ttir(graph, lowered, texts).kernels] == ["sets"]
    assert [k.maxima for k in verify_ptx(lowered, texts, ptx).kernels] == ["sets"]
