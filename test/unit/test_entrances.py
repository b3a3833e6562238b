"""One answer, whichever entrance: the pipeline, what is prepared for a GPU, the passes and the benchmarks.

SUPEROPT_TEST_ENTRANCES says for how many random programs.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from benchmarks.search import proposed
from benchmarks.trinity import programs
from random_programs import random_kernel
from test_pipeline import only_a_slow_library

from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.driver.main import run as superopt_opt
from superopt.measure.prepare import Program
from superopt.measure.prepare import Settings as PrepareSettings
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import KernelGraph
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.optimizers import Proposal, Proposals, names
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.verify import program_hash

BUDGET = 40.0
COUNT = int(os.environ.get("SUPEROPT_TEST_ENTRANCES", "3"))
SMALL = programs.Config(hidden=64, heads=2, ffn=128, groups=2, prefix=48)


def delivered(graph: KernelGraph, *optimizers: str) -> KernelGraph:
    settings = Superoptimize(budget=BUDGET, store=None, optimizers=optimizers or names())
    return superoptimize(graph, settings, Diagnostics()).optimized


def prepared(graph: KernelGraph, folder: Path) -> KernelGraph:
    """What a GPU would measure first; the input where that is nothing of ours."""
    settings = PrepareSettings(budget=BUDGET / 2)
    program = Program("p", graph, folder, cost.target("sm_90"), settings, cost.Model(), Diagnostics())
    return next((accepted.graph for _, accepted in program.accepted()), graph)


def driven(graph: KernelGraph, folder: Path) -> KernelGraph:
    """What the command line delivers."""
    source, result = folder / "in.mlir", folder / "out.mlir"
    source.write_text(to_text(graph))
    arguments = [str(source), f"--superoptimize=budget={BUDGET} store=none", "-o", str(result)]
    assert superopt_opt(arguments) == 0
    return read(result.read_text(), str(result))


def seconds(graph: KernelGraph) -> float:
    return cost.cost(graph, cost.target("sm_90")).seconds


def attention() -> KernelGraph:
    graph = programs.attention(SMALL, "vanilla_safe", safe=True)
    assert len(graph.nodes) >= 20
    return graph


def graphs() -> list[KernelGraph]:
    return [attention(), *(random_kernel(random.Random(seed)) for seed in range(COUNT))]


@pytest.mark.parametrize("number", range(COUNT + 1))
def test_every_entrance_gives_the_same_program(number: int, tmp_path: Path) -> None:
    graph = graphs()[number]
    expected = program_hash(delivered(graph))
    assert program_hash(prepared(graph, tmp_path)) == expected
    assert program_hash(driven(graph, tmp_path)) == expected


def test_benchmarks_search_what_the_pipeline_searches() -> None:
    """The best that the benchmark's search of the whole proposes is what the pipeline with that optimizer delivers."""
    graph = attention()
    found = proposed(graph, "sm_90", BUDGET / 4, {})
    assert seconds(delivered(graph, "mugraph")) <= found.predicted[0] * (1 + 1e-9)


def test_what_was_refused_is_not_checked_again_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_a_slow_library(monkeypatch)
    wrong = [
        search_plans(g, cost.target("sm_90"), budget=5).graphs[0] for g in (product("exp"), product("neg"))
    ]
    right = product("relu")

    def propose(*_: object, **__: object) -> Proposals:
        return Proposals([Proposal(g, seconds(g)) for g in wrong])

    for optimizer in (MugraphOptimizer, SaturationOptimizer):
        monkeypatch.setattr(optimizer, "propose", propose)
    settings = PrepareSettings(budget=BUDGET / 2)
    program = Program("p", right, tmp_path, cost.target("sm_90"), settings, cost.Model(), Diagnostics())
    assert list(program.accepted()) == []
    assert program.funnel["candidates rejected: not equivalent"] == 2 * len(wrong)


def product(op: str) -> KernelGraph:
    return read(
        f"""
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x128xf16>) -> tensor<16x128xf16> {{
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x128xf16>) -> tensor<16x128xf16>
  %1 = "kernel.{op}"(%0) : (tensor<16x128xf16>) -> tensor<16x128xf16>
  return %1 : tensor<16x128xf16>
}}""",
        "f.mlir",
    )
