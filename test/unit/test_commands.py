"""Every command of the README and of docs/ runs: on small programs, with small budgets, and on the CPU.

What a page says of GPUs, minutes and whole folders is scaled by `SCALED`; what is neither run nor listed in
`ELSEWHERE`, with the test that does, fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_bench_model import results

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SCALED = (
    (r"((examples|benchmarks)/\S+\.mlir\s+)+", "model.mlir "),
    (r"models/\*\.mlir", "models/small.mlir"),
    (r"budget=\d+", "budget=2"),
    (r"tune=\d+", "tune=8"),
    (r"store results.json out/bench", "store results.json simulated"),
    (r"--evaluations \d+ --workers \d+", "--evaluations 2 --workers 1"),
    (r"--device=cuda", "--device=cpu"),
    (r"(superopt-run \S+ --device=cpu)", r"\1 --check --distributions=ordinary"),
    (r"(superopt-bench prepare model.mlir -o \S+).*", r"\1 --budget=2 --candidates=1 --points=1 --tuning=1"),
)
ELSEWHERE = {
    "make demo": "test_make_targets",
    "make test": "test_make_targets",
    "pip install 'superopt[lsp]'": "test_lsp.py",
    "python out/bench/measure.py -o results.json --minutes 9": "test_bench_measure.py",
}

MODEL = """func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>) -> tensor<16x64xf16> {
  %zero = arith.constant 0.0 : f16
  %empty = tensor.empty() : tensor<16x64xf16>
  %init = linalg.fill ins(%zero : f16) outs(%empty : tensor<16x64xf16>) -> tensor<16x64xf16>
  %0 = linalg.matmul ins(%x, %w : tensor<16x64xf16>, tensor<64x64xf16>) outs(%init : tensor<16x64xf16>) -> tensor<16x64xf16>
  %1 = linalg.exp ins(%0 : tensor<16x64xf16>) outs(%empty : tensor<16x64xf16>) -> tensor<16x64xf16>
  return %1 : tensor<16x64xf16>
}
"""
FACTORY = """import torch
def factory():
    return torch.nn.Linear(8, 8), (torch.randn(4, 8),)
"""


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks, without comments and with continued lines joined."""
    lines = "".join(_BLOCK.findall(page.read_text())).replace("\\\n", " ").splitlines()
    return [c for line in lines if (c := re.sub(r"\s{2,}#.*", "", line).strip()) and not c.startswith("#")]


def scaled(command: str) -> str:
    for pattern, small in SCALED:
        command = re.sub(pattern, small, command)
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the inputs that the pages name are."""
    made = tmp_path_factory.mktemp("commands")
    (made / "models").mkdir()
    for name in ("model.mlir", "a.mlir", "b.mlir", "models/small.mlir"):
        (made / name).write_text(MODEL)
    (made / "model.py").write_text(FACTORY)
    (made / "bin").mkdir()
    for name, entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items():
        tool = made / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m {entry.split(":")[0]} "$@"\n')
        tool.chmod(0o755)
    (made / "choices.json").write_text("{}")
    measured, prepared = results(made)  # of simulated clocks
    measured.rename(made / "results.json")
    prepared.rename(made / "simulated")
    execute('superopt-opt model.mlir --superoptimize="budget=2" --emit=bundle -o out/model', made)
    return made


def execute(command: str, folder: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SUPEROPT_STORE": str(folder / "store"),
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_commands_run(page: Path, folder: Path) -> None:
    for command in commands(page):
        if command.startswith("superopt-import"):
            pytest.importorskip("torch")
        if command not in ELSEWHERE:
            execute(scaled(command), folder)


def test_what_runs_elsewhere_is_there() -> None:
    every = {command for page in PAGES for command in commands(page)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command, test in ELSEWHERE.items():
        assert command in every, f"no page has {command}"
        assert test in globals() or Path(__file__).with_name(test).exists(), test
    for command in every:
        if asked := re.search(r"superopt\[(.*)\]", command):
            assert set(asked[1].split(",")) <= set(extras), command


def test_make_targets() -> None:
    """`make demo` runs the command that the README shows with its output, and `make test` these tests."""
    said = {
        target: subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for target in ("demo", "test")
    }
    (shown,) = re.findall(
        r"^\$ (superopt-opt examples/\S+ --superoptimize=\S+ \S+) --emit",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert shown in said["demo"]
    assert "test/run.py" in said["test"]
