"""What is emitted is proved against the program that was ingested, whatever passes came between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superopt.driver import main
from superopt.verify import program_hash

pytest.importorskip("torch_mlir")
pytest.importorskip("triton")

PROGRAM = """
func.func @mlp(%x: tensor<8x64xf16>, %w: tensor<64x32xf16>) -> tensor<8x32xf16> {
  %a = "kernel.matmul"(%x, %w) : (tensor<8x64xf16>, tensor<64x32xf16>) -> tensor<8x32xf16>
  %o = "kernel.silu"(%a) : (tensor<8x32xf16>) -> tensor<8x32xf16>
  return %o : tensor<8x32xf16>
}
"""
PLUGIN = '''
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.program import Node, Value
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class AddTwice(GraphPass):
    """Add something to the output."""

    flag: ClassVar[str] = "add-twice"

    what: str = "other"
    """"same" to add nothing, else the output itself."""

    def apply(self, graph, diagnostics):
        last = graph.outputs[0]
        zero, sum_ = Value(last.type), Value(last.type)
        attrs = {"value": 0.0, "shape": last.shape, "dtype": last.dtype}
        nodes = [Node("constant", (), (zero,), attrs)] if self.what == "same" else []
        other = zero if self.what == "same" else last
        return replace(graph, nodes=[*graph.nodes, *nodes, Node("add", (last, other), (sum_,))], outputs=[sum_])
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.mlir"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for all tests: another one with the same flag would clash with it."""
    path = tmp_path_factory.mktemp("plugin") / "add_twice.py"
    path.write_text(PLUGIN)
    return f"--load-pass-plugin={path}"


SEARCH = "--superoptimize=target=sm_80 budget=3 store=none optimizers=mugraph"


def test_contradicting_targets_are_an_error(program: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [str(program), SEARCH, "--target=sm_90", "--emit=ptx"]
    assert main.run(arguments) == main.MISUSED
    assert "expected one target, got sm_80 of --superoptimize, sm_90 of --target" in capsys.readouterr().err


@pytest.mark.parametrize("before", [[SEARCH], []])
def test_a_pass_that_changes_the_program_is_found_when_it_is_emitted(
    before: list[str], program: Path, plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """After a search, too, whose result was proved: what is written is not that."""
    for emit in ("bundle", "ptx"):
        out = tmp_path / "out"
        arguments = [
            str(program),
            plugin,
            *before,
            "--add-twice",
            f"--emit={emit}",
            "-o",
            str(out),
            "--quiet",
        ]
        assert main.run(arguments) == main.FAILED
        assert "got " in capsys.readouterr().err
        assert not out.exists()


def test_the_certificate_is_of_the_ingested_program(program: Path, plugin: str, tmp_path: Path):
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program

    out = tmp_path / "out"
    arguments = [
        str(program),
        plugin,
        SEARCH,
        "--add-twice=what=same",
        "--emit=bundle",
        "-o",
        str(out),
        "--quiet",
    ]
    assert main.run(arguments) == 0
    certificate = json.loads((out / "certificate.json").read_text())
    mine = program_hash(read_program(program, Diagnostics()))
    assert certificate["first"]["sha256"] == mine
    assert certificate["second"]["sha256"] != mine
    assert json.loads((out / "schedule.json").read_text())["target"] == "sm_80"
