"""Bundles: what they hold, that they are whole or absent, and superopt-run on good and broken ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import ATTENTION_ONLINE
from test_interpreter import Build, tensor

from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import BadInput, NotEquivalent
from superopt.program import KernelGraph, Node, Value
from superopt.tools import superopt_run
from superopt.transforms.emit import read_bundle, write_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower


def save(folder: Path, graph: KernelGraph, original: KernelGraph | None = None) -> Path:
    """A bundle of `graph`; one that says it is `original`, which writing refuses, where that is given."""
    lowered = lower(graph)
    return write_bundle(
        folder,
        original=original or graph,
        lowered=lowered,
        compiled=compile_all(emit_program(lowered).kernels, ["sm_80", "sm_90"]),
        certificate_json="{}",
        schedule_json="{}",
        original_mlir=to_text(graph),
        optimized_mlir=to_text(graph),
        lowered_mlir=to_text(lowered),
        artifact=None if original is None else "not asked for",
    )


@pytest.fixture(scope="module")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("bundles") / "attention", read(ATTENTION_ONLINE))


def test_files_of_a_bundle(attention_bundle: Path) -> None:
    files = {str(p.relative_to(attention_bundle)) for p in attention_bundle.rglob("*") if p.is_file()}
    assert files == {
        "bundle.json", "kernels.py", "launch.py", "reference.py", "run.py", "checking.py", "widening.py", "cubins.py",
        "shapes.json",
        "certificate.json", "schedule.json", "original.mlir", "optimized.mlir", "lowered.mlir",
        "sm_80/attention_0.ptx", "sm_80/attention_0.cubin", "sm_90/attention_0.ptx", "sm_90/attention_0.cubin",
        "sm_80/attention_0.ttir", "sm_90/attention_0.ttir", "artifact.json",
    }  # fmt: skip
    shapes = json.loads((attention_bundle / "shapes.json").read_text())
    assert shapes["kernels"][0]["grid"] == [2, 1, 1]
    assert shapes["compiled"]["sm_90/attention_0"]["spill_bytes"] == 0
    for source in attention_bundle.glob("*.py"):
        text = source.read_text()
        assert "import superopt" not in text
        assert "from superopt" not in text


def test_reading_a_bundle_runs_nothing(attention_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(attention_bundle, copy)
    assert read_bundle(copy).description["targets"] == ["sm_80", "sm_90"]
    mark = tmp_path / "ran"
    for name in ("kernels.py", "launch.py", "run.py", "reference.py", "checking.py"):
        (copy / name).write_text(f"open({str(mark)!r}, 'w')\n")
    with pytest.raises(BadInput, match="as it was written"):
        read_bundle(copy)
    assert superopt_run.main([str(copy), "--device=interpreter"]) == 2
    assert not mark.exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("absent", "got no such folder"),
        ("file", "got a file"),
        ("empty", "got a folder without bundle.json"),
        ("garbage", "got something else"),
        ("missing", "expected the file 'kernels.py' in the bundle"),
        ("truncated", "expected the file 'launch.py' as it was written"),
        ("version", "expected a bundle of format 2, got 99"),
    ],
)
def test_what_is_no_bundle(
    damage: str, message: str, attention_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broken"
    if damage == "file":
        folder.write_text("x")
    elif damage == "empty":
        folder.mkdir()
    elif damage != "absent":
        shutil.copytree(attention_bundle, folder)
        if damage == "garbage":
            (folder / "bundle.json").write_bytes(b"\xff\x00{")
        elif damage == "missing":
            (folder / "kernels.py").unlink()
        elif damage == "truncated":
            (folder / "launch.py").write_text((folder / "launch.py").read_text()[:40])
        else:
            described = json.loads((folder / "bundle.json").read_text())
            (folder / "bundle.json").write_text(json.dumps({**described, "format": 99}))
    assert superopt_run.main([str(folder), "--device=interpreter"]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_bundle_is_replaced_and_other_folders_are_not(tmp_path: Path) -> None:
    graph = read(ATTENTION_ONLINE)
    folder = tmp_path / "b"
    save(folder, graph)
    (folder / "old").write_text("x")
    save(folder, graph)
    assert not (folder / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").write_text("x")
    with pytest.raises(BadInput, match="a folder with other files"):
        save(tmp_path / "precious", graph)
    (tmp_path / "note").write_text("x")
    with pytest.raises(BadInput, match="got a file"):
        save(tmp_path / "note", graph)


def test_nothing_is_left_of_a_bundle_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.transforms.emit import folders

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_sync", full)
    with pytest.raises(BadInput, match="No space left on device"):
        save(tmp_path / "b", read(ATTENTION_ONLINE))
    assert list(tmp_path.iterdir()) == []


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The bundle's own `run.py`, without this package in reach."""
    command = [sys.executable, "-I", str(folder / "run.py"), "--device=interpreter", *arguments]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


def test_run_py_checks_itself(attention_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = run(attention_bundle, f"--json={tmp_path / 'out.json'}")
    assert result.returncode == 0, result.stderr
    assert "attention on interpreter: within tolerance" in result.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 6
    assert all(r["ratio"] <= 1 for r in rows)


def test_superopt_run_finds_wrong_kernels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The original is one program, the kernels are another's; constants, several kernels and an extern take part."""
    pytest.importorskip("torch")

    def program(op: str) -> KernelGraph:
        build = Build()
        x = tensor((4, 6), "f32", "x")
        y = build("mul", x, build("constant", value=np.arange(6, dtype=np.float32), shape=(6,), dtype="f32"))
        z = Value(y.type, "z")
        args = '[{"tensor": 0}, 1]'
        build.nodes.append(
            Node("extern", (y,), (z,), {"target": "aten.cumsum.default", "reason": "a scan", "args": args})
        )
        out = build("reduce_sum", build(op, z), dims=(1,))
        return KernelGraph("scan", [x], build.nodes, [out])

    right = save(tmp_path / "right", program("tanh"))
    assert (
        superopt_run.main([str(right), "--device=interpreter", "--check", "--distributions=ordinary,tiny"])
        == 0
    )
    assert "within tolerance" in capfd.readouterr().out
    assert superopt_run.main([str(right), "--device=cpu"]) == 0
    out = capfd.readouterr().out
    assert "scan on cpu: within tolerance" in out
    assert "compiled from the kernels' tile programs" in out
    wrong = save(tmp_path / "wrong", program("sigmoid"), original=program("tanh"))
    for device in ("interpreter", "cpu"):
        assert superopt_run.main([str(wrong), f"--device={device}", "--distributions=ordinary"]) == 1
        out = capfd.readouterr().out
        assert "OUT OF TOLERANCE" in out
        assert "FAILED" in out
    assert superopt_run.main([str(right), "--device=interpreter", "--distributions=odd"]) == 2
    assert "expected distributions of ordinary" in capfd.readouterr().err
    for device in ("interpreter", "cpu"):
        assert superopt_run.main([str(right), f"--device={device}", "--time"]) == 2


def test_superopt_run_without_a_gpu(attention_bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert superopt_run.main([str(attention_bundle), "--device=cuda"]) == 2
    assert "expected a CUDA device, got none; try --device=interpreter" in capfd.readouterr().err


def test_sampled_blocks_still_see_a_wrong_block(tmp_path: Path) -> None:
    """Only some blocks are computed for most inputs; what they write is judged all the same."""
    pytest.importorskip("torch")

    def program(op: str) -> KernelGraph:
        x = tensor((64, 40), "f16", "x")
        build = Build()
        build.save(build(op, build.tile(x, (2, 40), (0,), ())), 0)
        return build.custom([x], (32,), (), (64, 40))

    good = run(save(tmp_path / "good", program("square")), "--distributions=ordinary,large")
    assert good.returncode == 0, good.stderr
    assert "the others: 8 blocks" in good.stdout
    bad = run(
        save(tmp_path / "bad", program("neg"), original=program("square")), "--distributions=tiny,ordinary"
    )
    assert bad.returncode == 1
    assert bad.stdout.count("FAILED") == 2


def test_kernels_of_another_program_are_not_bundled(tmp_path: Path) -> None:
    def program(op: str) -> KernelGraph:
        build = Build()
        x = tensor((8, 16), "f16", "x")
        return KernelGraph("g", [x], build.nodes, [build(op, x)])

    lowered = lower(program("neg"))
    compiled = compile_all(emit_program(lowered).kernels, ["sm_90"])
    with pytest.raises(NotEquivalent):
        write_bundle(tmp_path / "b", original=program("square"), lowered=lowered, compiled=compiled)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "link/passwd", "/dev/zero", 7])
def test_names_in_a_bundle_do_not_leave_it(attention_bundle: Path, tmp_path: Path, name: object) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(attention_bundle, folder)
    (tmp_path / "outside").write_text("x")
    (folder / "link").symlink_to("/etc")
    described = json.loads((folder / "bundle.json").read_text())
    described["files"] = [[name, "0" * 64]] if isinstance(name, int) else {name: "0" * 64}
    (folder / "bundle.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match="expected"):
        read_bundle(folder)


@pytest.mark.parametrize("name", ["kernels.py", "sm_90/x.ttir"])
def test_a_file_that_became_a_link_is_not_read(tmp_path: Path, name: str) -> None:
    """`read_bundle` refuses links; this one, a file or a folder, was made after it looked."""
    from superopt.verify.bundle import _Check  # pyright: ignore[reportPrivateUsage]

    folder, outside = tmp_path / "bundle", tmp_path / "outside"
    for root in (folder, outside):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("text")
    check = _Check(read(ATTENTION_ONLINE), folder, 0, 1e-9, {})
    assert check.text(name) == "text"
    first = name.split("/")[0]
    (folder / first).rename(tmp_path / "moved")
    (folder / first).symlink_to(outside / first)
    with pytest.raises(BadInput, match="expected a file of the bundle, got a link"):
        check.text(name)


def test_run_py_without_torch(attention_bundle: Path) -> None:
    script = (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    run_py = str(attention_bundle / "run.py")
    command = [sys.executable, "-P", "-E", "-c", script, run_py, "--device=interpreter"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "error: expected 'torch' to be installed, got none: pip install torch\n"
