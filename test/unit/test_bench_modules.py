"""PyTorch modules as rows: their own weights replaced by the program's inputs, with what they import beside them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import bench_folders
import pytest
from loaded_modules import forget_modules

pytest.importorskip("torch")

from superopt import cost
from superopt.inputs import factories
from superopt.measure import baselines
from superopt.measure.modules import Module
from superopt.numerics.float_gate import input_specs
from superopt.tools import superopt_bench
from superopt.transforms.emit.reference_source import reference_source
from superopt.transforms.ingest.import_torch import from_torch

MODULE = """
import torch
from bench_norms import Norm


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.v = Norm(), torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32)

    def forward(self, given):
        x, scale = given["x"], given["scale"]
        h = self.norm(x)
        q, v = (f(h).view(1, 16, 2, 16).transpose(1, 2) for f in (self.q, self.v))
        o = torch.nn.functional.scaled_dot_product_attention(q, q, v)
        return o.transpose(1, 2).reshape(1, 16, 32) * scale


class Twice(torch.nn.Module):
    def forward(self, x):
        return x + x


def attention():
    torch.manual_seed(0)
    return Attention().half(), ({"x": torch.randn(1, 16, 32).half(), "scale": 2.0},)


def twice():
    return Twice(), (torch.randn(8, 8),)
"""
NORMS = """
import torch


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(32))

    def forward(self, x):
        return x * self.weight
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "bench_attention.py").write_text(MODULE)
    (tmp_path / "code" / "bench_norms.py").write_text(NORMS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget_modules(monkeypatch, "bench_attention", "bench_norms")
    return tmp_path / "code" / "bench_attention.py"


def test_a_module_is_measured_with_the_weights_of_the_program(source: Path, tmp_path: Path) -> None:
    made = factories.load(factories.split(f"{source}:attention"))
    imported = from_torch(made.module, made.inputs, name="attention")
    assert imported.weight_names == ["norm.weight", "q.weight", "v.weight", "v.bias"]
    module = Module(made, imported.weight_names)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "reference.py").write_text(reference_source(imported.graph, {}))
    target = cost.target("sm_90")
    rows = baselines.rows(imported.graph, folder, "baselines", target, 1, Counter(), module)
    ids = [r.id for r in rows]
    assert ids[:3] == ["eager", "compile-default", "compile-max-autotune-no-cudagraphs"]
    assert {"module-flash", "module-math"} < set(ids)
    copied = {p.name for p in (folder / "baselines" / "source").iterdir()}
    assert copied == {"bench_attention.py", "bench_norms.py"}
    source.unlink()  # what is measured is the copy
    described = bench_folders.program("p", [dataclasses.asdict(r) for r in rows])
    described["inputs"] = [dataclasses.asdict(s) for s in input_specs(imported.graph)]
    described["outputs"] = [{"name": "y", "shape": imported.graph.outputs[0].shape, "dtype": "f16"}]
    bench_folders.seal(folder, bench_folders.prepared([described]))
    command = [
        sys.executable, str(folder / "measure.py"), "-o", str(tmp_path / "r.json"), "--rounds=3",
        "--device=interpreter", "--rows=eager,module-math",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {r["row"]: r["status"] for r in json.loads((tmp_path / "r.json").read_text())["rows"]}
    assert found == {"eager": "ok", "module-math": "ok"}


def test_only_what_calls_attention_gets_its_backends(source: Path) -> None:
    made = factories.load(factories.split(f"{source}:attention"))
    other = factories.load(factories.split(f"{source}:twice"))
    assert Module(made, []).calls_attention()
    assert not Module(other, []).calls_attention()


def test_the_tool_takes_modules_by_their_factories(source: Path, tmp_path: Path) -> None:
    few = ["--candidates=1", "--points=1", "--budget=1", "--tuning=20"]
    command = ["prepare", f"{source}:twice", "-o", str(tmp_path / "made"), *few]
    assert superopt_bench.run(command) == 0
    (program,) = json.loads((tmp_path / "made" / "prepared.json").read_text())["programs"]
    assert program["name"] == "twice"
    assert "loaded.twice()" in (tmp_path / "made/programs/twice/baselines/eager/launch.py").read_text()


def test_a_factory_that_is_not_there_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert superopt_bench.run(["prepare", f"{source}:thrice", "-o", str(tmp_path / "made")]) == 1
    assert (
        "expected a function 'thrice', got no such name; it has attention, twice" in capsys.readouterr().err
    )
    assert not (tmp_path / "made").exists()
