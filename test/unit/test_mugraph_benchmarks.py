"""The programs of the benchmarks and what experts write for them: same programs, proved."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.mugraph.programs import BLOCKS, FAMILIES, FOLDER, OWN, names, program
from benchmarks.mugraph.references import references

from superopt.cost import cost, target
from superopt.program import BlockGraph, KernelGraph
from superopt.spec import check_kernel
from superopt.verify import certify
from superopt.verify.reduce import reduce_extents

# One of each kind at full extents; the others as the certifier shrinks them. A mean over a loop divides by the
# extent, a constant that does not shrink.
FULL = [
    "gqa_decode_b1",
    "gqa_decode_b1_safe",
    "lora_b8",
    "mlp_b8",
    "norm_transformer_b8",
    "rmsnorm_linear_b8",
]


def test_every_program_has_a_file_and_each_file_a_program() -> None:
    assert {p.stem for p in Path(FOLDER).glob("*.mlir")} == {*names(), *BLOCKS, *OWN}
    assert {n.removesuffix("_safe").rsplit("_b", 1)[0] for n in names()} == set(FAMILIES)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["mqa_decode_b8_safe", "qknorm_public_b8", "moe_b8", "rbf_regression"])
def test_files_are_what_the_modules_give(name: str) -> None:
    pytest.importorskip("torch")
    from benchmarks.mugraph.modules import text

    assert text(name) == (FOLDER / f"{name}.mlir").read_text()


def _assert_equivalent(graph: KernelGraph, reference: KernelGraph) -> None:
    verdict = certify(graph, reference)
    assert verdict.equivalent, verdict.counterexample


@pytest.mark.parametrize("name", [n for n in names() if "_b8" in n and n not in FULL])
def test_references_compute_the_program(name: str) -> None:
    graph = program(name)
    gpu = target("sm_80")
    found = references(graph, gpu)
    assert found
    for label, reference in found.items():
        check_kernel(reference, gpu.shared_per_block)
        assert cost(reference, gpu).seconds < cost(graph, gpu).seconds, label
        pair = reduce_extents(graph, reference)
        assert pair, label
        _assert_equivalent(*pair)


@pytest.mark.parametrize("name", FULL)
def test_references_compute_the_program_at_full_extents(name: str) -> None:
    graph = program(name)
    for reference in references(graph, target("sm_90")).values():
        _assert_equivalent(graph, reference)


def test_a_reference_with_a_wrong_epilogue_is_told_apart() -> None:
    graph = program("lora_b8")
    (reference,) = references(graph, target("sm_90")).values()
    body = reference.nodes[0].body
    assert isinstance(body, BlockGraph)
    node = next(n for n in body.nodes if n.op == "add")
    node.op = "sub"
    assert not certify(graph, reference).equivalent


def test_the_page_shows_what_was_kept() -> None:
    from benchmarks.search_page import PAGE, page

    assert PAGE.read_text() == page()
