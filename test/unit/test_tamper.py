"""Tampered bundles, scaled down: `test/tamper/tamper.py --count=400` is the whole run."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COUNT = int(os.environ.get("SUPEROPT_TEST_TAMPERINGS", "24"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tamper"))


@pytest.fixture(scope="module")
def tamper() -> Any:
    for module in ("torch_mlir", "triton"):
        pytest.importorskip(module)
    return importlib.import_module("tamper")


@pytest.fixture(scope="module")
def made(tamper: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program and its bundle."""
    return tamper.make(tmp_path_factory.mktemp("made"))


def test_no_tampered_bundle_is_believed(tamper: Any):
    tally = tamper.campaign(COUNT, seed=0)
    assert tally.tamperings == COUNT
    assert tally.believed == []
    assert tally.crashes == []


def test_a_verifier_that_believes_is_found_out(tamper: Any, monkeypatch: pytest.MonkeyPatch):
    def believing(program: Path, folder: Path) -> tuple[int, str]:
        return 0, "equivalent"

    monkeypatch.setattr(tamper, "judged", believing)
    assert len(tamper.campaign(6, seed=0).believed) == 6


def test_a_bundle_made_by_another_triton_is_not_called_equivalent(
    tamper: Any, made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """What cannot be made again here is listed, and the exit code says that nothing is said.

    Its PTX is read, and its cubins are those that this ptxas makes of that, unless another one made them.
    """
    from superopt.tools import superopt_verify

    program, bundle = made
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    described = json.loads((folder / "bundle.json").read_text())
    (cubin,) = (folder / "sm_90").glob("*.cubin")
    for data, unknown in ((cubin.read_bytes(), False), (cubin.read_bytes() + b"\0", True)):
        cubin.write_bytes(data)
        files = {**described["files"], f"sm_90/{cubin.name}": hashlib.sha256(data).hexdigest()}
        (folder / "bundle.json").write_text(json.dumps({**described, "triton": "9.9", "files": files}))
        code = superopt_verify.bundle_verdict(program, folder)
        said = capsys.readouterr().out
        assert code not in (0, superopt_verify.bundle_verdict(program, bundle))
        capsys.readouterr()
        assert said.startswith("undecided: ")
        assert ("not checked: sm_90: cubins, made by Triton 9.9" in said) == unknown
        assert "not checked: shapes.json" in said


@pytest.mark.parametrize("name", ["artifact.json", "certificate.json", "shapes.json", "schedule.json"])
def test_a_field_that_has_a_default_is_needed(
    tamper: Any, made: tuple[Path, Path], tmp_path: Path, name: str
):
    """What superopt writes is whole: without its version, a file is not what superopt wrote."""
    program, bundle = made
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    content = json.loads((folder / name).read_text())
    for record in content.values() if name == "artifact.json" else [content]:
        del record["version" if "version" in record else next(iter(record))]
    (folder / name).write_text(json.dumps(content))
    tamper.fitted(folder)
    code, said = tamper.judged(program, folder)
    assert code > 0
    assert said.startswith(("not equivalent: expected", "expected")), said


def judged_with_records(
    tamper: Any, made: tuple[Path, Path], folder: Path, change: Callable[[dict[str, Any]], None]
) -> tuple[int, str]:
    """What `superopt-verify` says of a copy of the bundle, under `folder`, with every record changed."""
    program, bundle = made
    copied = folder / "bundle"
    shutil.copytree(bundle, copied)
    content = json.loads((copied / "artifact.json").read_text())
    for record in content.values():
        change(record)
    (copied / "artifact.json").write_text(json.dumps(content))
    tamper.fitted(copied)
    return tamper.judged(program, copied)


@pytest.mark.parametrize("of", ["ttir", "ptx", "addressed", "maxima"])
@pytest.mark.parametrize("seed", [0, 7])
def test_blocks_that_did_not_run_are_not_counted(
    tamper: Any, made: tuple[Path, Path], tmp_path: Path, of: str, seed: int
):
    """A run draws other blocks than the one that wrote the record; those of its seed are drawn again."""

    def counted(record: dict[str, Any]) -> None:
        record["seed"] = seed
        kernel = (record if of == "ttir" else record["ptx"])["kernels"][0]
        if of == "maxima":
            kernel["maxima"] = "order" if kernel["maxima"] != "order" else "sets"
        else:
            kernel["addressed" if of == "addressed" else "evaluated"] += 1

    code, said = judged_with_records(tamper, made, tmp_path, counted)
    assert code > 0
    assert said.startswith("not equivalent: expected 'artifact.json'"), said


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_nobody_draws_is_refused(tamper: Any, made: tuple[Path, Path], tmp_path: Path, seed: int):
    code, said = judged_with_records(tamper, made, tmp_path, lambda record: record.update(seed=seed))
    assert code > 0
    assert said.startswith("expected what superopt writes, got seed: Input should be "), said
    assert "artifact.json" in said


def test_a_launch_is_needed(tamper: Any, made: tuple[Path, Path], tmp_path: Path):
    """Without it a replay would launch the kernel as `lower` chooses, whatever the bundle holds."""
    program, bundle = made
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    content = json.loads((folder / "schedule.json").read_text())
    assert content["launches"]
    (folder / "schedule.json").write_text(json.dumps({**content, "launches": {}}))
    tamper.fitted(folder)
    code, said = tamper.judged(program, folder)
    assert code > 0
    assert "schedule.json" in said


@pytest.mark.parametrize("name", ["run.py", "bundle.json"])
def test_what_runs_and_what_describes_are_made_again(
    tamper: Any, made: tuple[Path, Path], tmp_path: Path, name: str
):
    """Another `run.py` could report anything; other shapes or scales would run the kernels on other inputs."""
    program, bundle = made
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    if name == "run.py":
        with (folder / name).open("a") as file:
            file.write("\n# edited\n")
    else:
        described = json.loads((folder / name).read_text())
        described["grids"] = {k: [2 * n for n in grid] for k, grid in described["grids"].items()}
        (folder / name).write_text(json.dumps(described))
    tamper.fitted(folder)
    code, said = tamper.judged(program, folder)
    assert code > 0
    assert f"'{name}'" in said or name in said, said


SHADOW = "open({mark!r}, 'w')\nraise SystemExit(0)\n"
NAMES = ("__future__", "argparse", "json", "numpy", "torch", "triton", "kernels", "checking", "hashlib")


@pytest.mark.parametrize("place", ["beside", "PYTHONPATH", "cwd"])
def test_no_folder_of_the_users_is_imported_from(made: tuple[Path, Path], tmp_path: Path, place: str):
    """A numpy.py where the user is, or on PYTHONPATH, or beside run.py, is not run by `run.py` or `superopt-run`."""
    pytest.importorskip("torch")
    mark, folder = tmp_path / "ran", tmp_path / "bundle"
    shutil.copytree(made[1], folder)
    shadows = folder if place == "beside" else tmp_path / "shadows"
    shadows.mkdir(exist_ok=True)
    # What Python imports before the first line of a script, as hooks of editable installs do, is the user's own affair.
    listed = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    before = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    for name in sorted(set(NAMES) - set(before)):
        if not (shadows / f"{name}.py").exists():
            (shadows / f"{name}.py").write_text(SHADOW.format(mark=str(mark)))
    env = {**os.environ, **({"PYTHONPATH": str(shadows)} if place == "PYTHONPATH" else {})}
    cwd = shadows if place == "cwd" else tmp_path
    tool = Path(sys.executable).with_name("superopt-run")
    arguments = ["--device=interpreter", "--distributions=ordinary", "--check"]
    for command in ([sys.executable, str(folder / "run.py")], [str(tool), str(folder)]):
        if command[0] == str(tool) and place == "PYTHONPATH":
            continue  # the tool is the user's Python from its first line on
        done = subprocess.run(
            [*command, *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert not mark.exists(), command
        if place == "beside":  # and such a folder is no bundle
            assert done.returncode == 2
            assert "expected only files that bundle.json lists" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert "within tolerance" in done.stdout
