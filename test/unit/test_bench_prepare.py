"""From a program to results: prepared by the tool, measured in the interpreter where superopt cannot be imported."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import bench_folders
import pytest
from search_programs import Program
from test_bench_space import attention, matmul

from superopt import cost
from superopt.measure import baselines, report
from superopt.numerics.float_gate import input_specs
from superopt.tools import superopt_bench
from superopt.transforms.emit import read_bundle
from superopt.transforms.emit.program_source import emit_program, write_program
from superopt.transforms.emit.reference_source import reference_source
from superopt.transforms.lower import lower

PROGRAM = """
func.func @small(%x: tensor<16x64xf16>, %w: tensor<64x32xf16>) -> tensor<16x32xf16> {
  %s = "kernel.square"(%x) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  %t = "kernel.reduce_sum"(%s) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %p = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x32xf16>) -> tensor<16x32xf16>
  %y = "kernel.div"(%p, %t) : (tensor<16x32xf16>, tensor<16x1xf16>) -> tensor<16x32xf16>
  return %y : tensor<16x32xf16>
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    (place / "small.mlir").write_text(PROGRAM)
    made = place / "folder"
    few = ["--candidates=1", "--points=2", "--budget=4", "--tuning=60"]
    assert superopt_bench.run(["prepare", str(place / "small.mlir"), "-o", str(made), *few]) == 0
    return made


def test_what_is_prepared(folder: Path) -> None:
    described = json.loads((folder / "prepared.json").read_text())
    (program,) = described["programs"]
    assert program["name"] == "small"
    assert program["read_bytes"] == 2 * (16 * 64 + 64 * 32)
    ids = [r["id"] for r in program["rows"]]
    assert ids[:3] == ["eager", "compile-default", "compile-max-autotune-no-cudagraphs"]
    (ours,) = [r for r in program["rows"] if r["kind"] == "superopt"]
    assert len(ours["points"]) == 2
    for point in ours["points"]:
        assert point["proof"]["guarantee"] in ("bound", "congruence", "equality")
        assert (folder / point["path"] / "kernels.py").is_file()
    where = folder / "programs" / "small" / ours["id"] / "bundle"
    assert read_bundle(where).description["targets"] == ["sm_90"]
    assert "| small |" in report.markdown(report.load(folder))


def test_measured_without_superopt(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "superopt").mkdir()
    (tmp_path / "superopt" / "__init__.py").write_text("raise ImportError('superopt is not here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (ours,) = [
        r["id"]
        for r in json.loads((folder / "prepared.json").read_text())["programs"][0]["rows"]
        if r["kind"] == "superopt"
    ]
    command = [
        sys.executable, str(folder / "measure.py"), "-o", str(tmp_path / "r.json"), "--device=interpreter", "--rounds=3",
        f"--rows=eager,{ours}", "--strategy=model",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert {r["row"]: r["status"] for r in rows} == {"eager": "ok", ours: "ok"}
    assert all(r["ratio"] <= 1 for r in rows)


def test_attention_baselines_compute_the_program(tmp_path: Path) -> None:
    """Grouped keys, softmax in f32: eager, SDPA and both hand-written kernels agree, in the interpreter."""
    pytest.importorskip("torch")
    graph = attention(m=4, n=64, d=16, scale=0.25, wide=True, groups=4)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "reference.py").write_text(reference_source(graph, {}))
    rows = baselines.rows(graph, folder, "baselines", cost.target("sm_90"), 2, Counter())
    described = bench_folders.program("p", [dataclasses.asdict(r) for r in rows])
    described["inputs"] = [dataclasses.asdict(s) for s in input_specs(graph)]
    described["outputs"] = [{"name": "y", "shape": graph.outputs[0].shape, "dtype": "f16"}]
    bench_folders.seal(folder, bench_folders.prepared([described]))
    wanted = "eager,sdpa,sdpa-math,flash_attention,split_kv"
    command = [
        sys.executable, str(folder / "measure.py"), "-o", str(tmp_path / "r.json"), "--rounds=3",
        "--device=interpreter", f"--rows={wanted}", "--strategy=model", "--points=1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {r["row"]: r for r in json.loads((tmp_path / "r.json").read_text())["rows"]}
    assert {n: r["status"] for n, r in found.items()} == dict.fromkeys(wanted.split(","), "ok")
    assert all(len(r["parameters"]) >= 4 for n, r in found.items() if n in ("flash_attention", "split_kv"))


def test_convolutions_are_compared_with_the_best_of_cudnn(tmp_path: Path) -> None:
    """Two more rows, in whose processes cuDNN times its kernels; programs without convolutions lack them."""
    pytest.importorskip("torch")
    p = Program("p")
    none, ones = (0, 0), (1, 1)
    x, w = p.input(1, 2, 6, 6), p.input(4, 2, 3, 3)
    graph = p.graph(p("conv", x, w, strides=ones, dilations=ones, low=none, high=none, groups=1))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "reference.py").write_text(reference_source(graph, {}))
    gpu = cost.target("sm_90")
    rows = baselines.rows(graph, folder, "baselines", gpu, 2, Counter())
    assert [r.id for r in rows if "cudnn" in r.id] == ["eager-cudnn", "compile-cudnn"]
    product = baselines.rows(matmul(16, 32, 64), tmp_path / "product", "baselines", gpu, 2, Counter())
    assert not any("cudnn" in r.id for r in product)
    launch = folder / "baselines" / "eager" / "launch.py"
    refused = "    assert torch.backends.cudnn.benchmark\n    held ="
    launch.write_text(launch.read_text().replace("    held =", refused))
    described = bench_folders.program("p", [dataclasses.asdict(r) for r in rows])
    described["inputs"] = [dataclasses.asdict(s) for s in input_specs(graph)]
    (y,) = graph.outputs
    described["outputs"] = [{"name": "y", "shape": y.shape, "dtype": y.dtype}]
    bench_folders.seal(folder, bench_folders.prepared([described]))
    command = [
        sys.executable, str(folder / "measure.py"), "-o", str(tmp_path / "r.json"), "--rounds=3",
        "--device=interpreter", "--rows=eager,eager-cudnn",
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, text=True, check=False)
    found = {r["row"]: r["status"] for r in json.loads((tmp_path / "r.json").read_text())["rows"]}
    assert found["eager-cudnn"] == "ok" != found["eager"]


def test_bf16_is_measured_in_the_interpreter(tmp_path: Path) -> None:
    """numpy has no bf16, so that the interpreter's own products of it are of 16-bit patterns."""
    pytest.importorskip("torch")
    graph = matmul(16, 32, 64, "bf16")
    folder = tmp_path / "folder"
    (folder / "ours").mkdir(parents=True)
    (folder / "reference.py").write_text(reference_source(graph, {}))
    write_program(emit_program(lower(graph)), folder / "ours")
    described = bench_folders.program("p", [bench_folders.row("ours", [bench_folders.point("ours")])])
    described["inputs"] = [dataclasses.asdict(s) for s in input_specs(graph)]
    described["outputs"] = [{"name": "y", "shape": graph.outputs[0].shape, "dtype": "bf16"}]
    bench_folders.seal(folder, bench_folders.prepared([described]))
    command = [sys.executable, str(folder / "measure.py"), "-o", str(tmp_path / "r.json")]
    done = subprocess.run([*command, "--rounds=2"], capture_output=True, text=True, check=False)
    assert (done.returncode, "expected at least 3 rounds, got 2" in done.stderr) == (2, True)
    command = [*command, "--rounds=3", "--device=interpreter"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (row["status"], row["ratio"] <= 1) == ("ok", True)


def test_a_folder_with_other_files_is_left_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").write_text("x")
    (tmp_path / "p.mlir").write_text(PROGRAM)
    assert superopt_bench.run(["prepare", str(tmp_path / "p.mlir"), "-o", str(tmp_path)]) == 1
    assert "got a folder with other files" in capsys.readouterr().err
    assert (tmp_path / "thesis").exists()
