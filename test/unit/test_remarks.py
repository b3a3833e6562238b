"""Remarks name the user's file and line once, in front, wherever they are read."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.driver.main import run as superopt_opt
from superopt.errors import IllegalProgram, Location
from superopt.inputs.programs import read_text
from superopt.program import KernelGraph
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.tile_saturation import search as saturation
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer

CONVOLVED = """func.func @f(%x: tensor<1x4x10x10xf32>, %w: tensor<8x4x3x3xf32>) -> tensor<1x8x8x8xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = tensor.empty() : tensor<1x8x8x8xf32>
  %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
  %2 = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x4x10x10xf32>, tensor<8x4x3x3xf32>)
    outs(%1 : tensor<1x8x8x8xf32>) -> tensor<1x8x8x8xf32>
  return %2 : tensor<1x8x8x8xf32>
}
"""
EXPONENTIALS = """func.func @f(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x64xf32>
  %0 = tensor.empty(%n) : tensor<?x64xf32>
  %1 = linalg.exp ins(%x : tensor<?x64xf32>) outs(%0 : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %1 : tensor<?x64xf32>
}
"""
PLACE = re.compile(r"[^\s'(]*:\d+:\d+")
OPTIONS = "budget=1 store=none"


def located(remarks: list[str], file: str) -> list[str]:
    """The remarks with a place, each of them one in `file`, in front."""
    found = [r for r in remarks if PLACE.search(r)]
    for remark in found:
        assert re.match(rf"{re.escape(file)}:\d+:\d+: (remark|warning): ", remark), remark
        assert len(PLACE.findall(remark)) == 1, remark
    return found


@pytest.mark.parametrize(
    ("text", "options"), [(CONVOLVED, OPTIONS), (EXPONENTIALS, f"{OPTIONS} dynamic=n=1..9")]
)
@pytest.mark.parametrize("piped", [False, True])
def test_of_a_file_or_a_pipe(
    text: str,
    options: str,
    piped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, report = tmp_path / "x.mlir", tmp_path / "r.json"
    file.write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    given, name = ("-", "<stdin>") if piped else (str(file), str(file))
    assert superopt_opt([given, f"--superoptimize={options}", "--report", str(report), "--emit=text"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "remark: " in line]
    assert located(said, name) or text is EXPONENTIALS, "nothing is missing there"
    assert located(json.loads(report.read_text())["remarks"], name)


@pytest.mark.parametrize(("text", "options"), [(CONVOLVED, {}), (EXPONENTIALS, {"dynamic": "n=1..9"})])
def test_of_a_text(text: str, options: dict[str, Any]) -> None:
    result = superopt.optimize(text, budget=1, store=None, **options)
    assert located(result.report.remarks, "<text>")


@pytest.mark.parametrize("optimizer", [SaturationOptimizer(), MugraphOptimizer()])
def test_an_optimizer_says_the_place_beside_the_reason(
    optimizer: SaturationOptimizer | MugraphOptimizer,
) -> None:
    graph = read_text(CONVOLVED, Diagnostics())
    found = optimizer.propose(graph, cost.target("sm_90"), budget=1)
    assert "'conv'" in found.remark
    assert not PLACE.search(found.remark)
    assert found.location == Location("<text>", 5, 8)


def test_a_reason_counted_by_saturation_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: KernelGraph, limit: int) -> None:
        raise IllegalProgram("expected less", graph.nodes[0].location)

    monkeypatch.setattr(saturation, "check_kernel", refuse)
    graph = read(
        """func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "kernel.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "kernel.square"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}""",
        "f.mlir",
    )
    found = SaturationOptimizer().propose(graph, cost.target("sm_90"), budget=1)
    assert found.remark.startswith("no extracted program is one of kernels: expected less; at '")
    assert not [name for name in found.funnel if PLACE.search(name)]
    assert found.location.file == "f.mlir"
