"""The command `superopt-import`: what it writes, and the message for each way of misusing it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from superopt.dialects import reader  # noqa: E402
from superopt.tools.superopt_import import main, run  # noqa: E402

FACTORIES = """\
import torch


def mlp():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    return model.eval(), (torch.randn(4, 8),)


def lookup():
    return torch.nn.Embedding(5, 4), (torch.tensor([1, 2]),)


def number():
    return 3


def triple():
    return torch.nn.ReLU(), (torch.randn(2),), None


def no_module():
    return 3, (torch.randn(2),)


def failing():
    missing = {}
    return missing["x"]


def argument(x):
    return x


class Dynamic(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]


def dynamic():
    return Dynamic(), (torch.randn(4),)


class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def branch():
    return Branch(), (torch.randn(4),)


VALUE = 1
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(FACTORIES)
    return path


@pytest.mark.parametrize("via", ["torch", "linalg"])
def test_writes_the_program_and_the_weights(source: Path, via: str, capfd: Any) -> None:
    out, weights = source.with_name("mlp.mlir"), source.with_name("mlp.npz")
    assert run([f"{source}:mlp", "-o", str(out), f"--weights={weights}", f"--via={via}"]) == 0
    graph = reader.read(out.read_text(), str(out))
    assert [n.op for n in graph.nodes] == ["matmul", "add", "gelu", "matmul", "add"]
    assert capfd.readouterr().err.splitlines()[-1] == "5 operators, 0 extern; 1 inputs, 4 weights"
    arrays = np.load(weights)
    assert [arrays[n].shape for n in arrays] == [v.shape for v in graph.inputs[1:]]
    assert list(arrays) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_writes_safetensors(source: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    weights = source.with_name("mlp.safetensors")
    assert run([f"{source}:mlp", "-o", str(source.with_name("mlp.mlir")), f"--weights={weights}"]) == 0
    assert {n: tuple(w.shape) for n, w in load_file(weights).items()}["0.weight"] == (16, 8)


def test_prints_to_standard_output_in_a_process_of_its_own(source: Path, capfd: Any) -> None:
    assert main([f"{source}:mlp"]) == 0
    assert "kernel.gelu" in capfd.readouterr().out


def test_says_what_stays_opaque(source: Path, capfd: Any) -> None:
    assert run([f"{source}:lookup", "-o", "/dev/null"]) == 0
    said = capfd.readouterr().err
    assert re.search(
        r"\w+\.py:\d+:\d+: remark: 'aten\.embedding\.default' is kept as superopt\.extern: ", said
    )
    assert "0 operators, 1 extern" in said


# arguments after FILE: -> exit code and message
MISTAKES: dict[str, tuple[list[str], int, str]] = {
    "no factory": (["models.py"], 2, r"error: expected FILE.py:FACTORY, got '.*models.py'"),
    "no file": (["absent.py:mlp"], 1, r"absent.py: error: cannot read: no such file"),
    "a folder": ([".:mlp"], 1, r"error: cannot read: is a directory"),
    "unknown factory": (["models.py:absent"], 1, r"models.py: error: expected a function 'absent', got no such name; it has .*mlp"),
    "not a function": (["models.py:VALUE"], 1, r"expected a function 'VALUE', got int"),
    "takes arguments": (["models.py:argument"], 1, r"models.py:31:1: error: expected 'argument' to take no arguments, got \(x\)"),
    "raises": (["models.py:failing"], 1, r"models.py:28:1: error: 'failing' raised KeyError: 'x'"),
    "returns a number": (["models.py:number"], 1, r"models.py:14:1: error: expected 'number' to return \(module, tuple of example inputs\), got int"),
    "returns three things": (["models.py:triple"], 1, r"got a tuple of ReLU, tuple, NoneType"),
    "returns no module": (["models.py:no_module"], 1, r"models.py:22:1: error: expected a torch.nn.Module, got int"),
    "dynamic": (["models.py:dynamic"], 1, r"models.py:37:\d+: error: expected static extents for the result of 'aten.index.Tensor', got \?xf32"),
    "dynamic linalg": (["models.py:dynamic", "--via=linalg"], 1, r"models.py:37:\d+: error: expected static extents"),
    "branch": (["models.py:branch"], 1, r"models.py:46:1: error: torch.export refuses the module"),
    "weights": (["models.py:mlp", "--weights=w.txt"], 2, r"error: expected --weights=FILE.npz or FILE.safetensors, got 'w.txt'"),
    "via": (["models.py:mlp", "--via=onnx"], 2, r"expected one of torch, linalg, got 'onnx'"),
    "unwritable": (["models.py:mlp", "-o", "absent/out.mlir"], 1, r"absent/out.mlir: error: cannot write: no such folder"),
    "syntax": (["broken.py:mlp"], 1, r"broken.py:2:\d+: error: expected Python, got a syntax error"),
    "binary": (["noise.py:mlp"], 1, r"noise.py.*: error: expected Python"),
    "import": (["importing.py:mlp"], 1, r"importing.py:2:1: error: the file raised ModuleNotFoundError: No module named 'nowhere'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, source: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    Path("broken.py").write_text("x = 1\ndef mlp(:\n")
    Path("noise.py").write_bytes(bytes(range(1, 256)))
    Path("importing.py").write_text("x = 1\nimport nowhere\n")
    arguments, code, message = MISTAKES[name]
    assert run(arguments) == code
    said = capfd.readouterr()
    assert re.search(message, said.err), said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_failed_import_leaves_the_old_file(source: Path) -> None:
    out = source.with_name("out.mlir")
    out.write_text("before")
    assert run([f"{source}:dynamic", "-o", str(out)]) == 1
    assert out.read_text() == "before"
    assert sorted(p.name for p in source.parent.iterdir() if p.suffix != "") == ["models.py", "out.mlir"]


def test_without_torch(source: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from superopt.transforms.ingest.torch_types import torch_module

    torch_module.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run([f"{source}:mlp"]) == 1
    assert "expected PyTorch to be installed" in capfd.readouterr().err
    torch_module.cache_clear()
