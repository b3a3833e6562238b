"""What may go wrong around the compiler does: killed workers, signals, damaged files; and the same answer twice.

SUPEROPT_TEST_KILLS says how often a whole run is interrupted (the store has kills of its own, in test_store).
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from programs import TILED_SCALE

from superopt.errors import BadInput
from superopt.verify.checker import check_certificate
from superopt.verify.ttir.same_source import same_source

for _module in ("torch_mlir", "triton"):
    pytest.importorskip(_module)

KILLS = max(5, int(os.environ.get("SUPEROPT_TEST_KILLS", "5")) // 10)
TOOL = [sys.executable, "-m", "superopt.tools.superopt_opt"]
PROGRAM = """
func.func @mlp(%x: tensor<8x64xf16>, %w: tensor<64x32xf16>, %v: tensor<64x32xf16>) -> tensor<8x32xf16> {
  %a = "kernel.matmul"(%x, %w) : (tensor<8x64xf16>, tensor<64x32xf16>) -> tensor<8x32xf16>
  %b = "kernel.matmul"(%x, %v) : (tensor<8x64xf16>, tensor<64x32xf16>) -> tensor<8x32xf16>
  %s = "kernel.silu"(%a) : (tensor<8x32xf16>) -> tensor<8x32xf16>
  %o = "kernel.mul"(%s, %b) : (tensor<8x32xf16>, tensor<8x32xf16>) -> tensor<8x32xf16>
  return %o : tensor<8x32xf16>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "mlp.mlir"
    path.write_text(PROGRAM)
    return path


def optimize(program: Path, out: Path, *more: str, cpus: int = 2) -> subprocess.CompletedProcess[str]:
    allowed = sorted(os.sched_getaffinity(0))[:cpus]
    return subprocess.run(
        [*TOOL, str(program), "--superoptimize=budget=20", "--emit=bundle", "-o", str(out), *more],
        capture_output=True, text=True, check=False, preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def bundle(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "mlp"
    done = optimize(program, out, "--report", str(out.with_suffix(".report")))
    assert done.returncode == 0, done.stderr
    return out


# --- the same answer twice ----------------------------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes(program: Path, bundle: Path, tmp_path: Path):
    """Source, schedule, certificate, TTIR, PTX; on one processor and on two. The report too, but for times and errors.

    Errors are measured on inputs of each run's own.
    """
    done = optimize(program, tmp_path / "again", "--report", str(tmp_path / "report"), cpus=1)
    assert done.returncode == 0, done.stderr
    first, second = files(bundle), files(tmp_path / "again")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    reports = [json.loads(p.read_text()) for p in (bundle.with_suffix(".report"), tmp_path / "report")]
    for report in reports:
        assert report.pop("seconds")
        assert report.pop("numerics").startswith("within tolerance")
        compiled = [c.pop("compiled_after") for c in report["candidates"]]
        assert any(compiled), "a time, too"
    assert reports[0] == reports[1]


def test_a_schedule_is_replayed_without_a_search(program: Path, bundle: Path, tmp_path: Path):
    """Every file of the bundle again, byte by byte."""
    again = tmp_path / "again"
    command = [
        *TOOL,
        str(program),
        "--schedule",
        str(bundle / "schedule.json"),
        "--emit=bundle",
        "-o",
        str(again),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = files(bundle), files(again)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


# --- damaged files ------------------------------------------------------------------------------------------


def damaged(data: bytes, generator: random.Random) -> bytes:
    if generator.random() < 0.5:
        return data[: generator.randrange(len(data))]
    at = generator.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << generator.randrange(8)]) + data[at + 1 :]


def test_damaged_certificates_are_refused_or_hold_still(bundle: Path):
    """A flipped bit may be in a remark: then what is proved must be what was proved."""
    generator = random.Random(0)
    data = (bundle / "certificate.json").read_bytes()
    good = check_certificate(data, elements=1)
    assert good.faults == []
    held = 0
    for _ in range(60):
        try:
            check = check_certificate(damaged(data, generator), elements=1)
        except BadInput:
            continue
        if not check.faults:
            held += 1
            assert check.delta is not None
            assert good.delta is not None
            assert check.delta >= good.delta
    assert held < 15


def test_damaged_schedules_end_with_an_error(program: Path, bundle: Path, tmp_path: Path):
    generator = random.Random(1)
    data = (bundle / "schedule.json").read_bytes()
    for number in range(4):
        path = tmp_path / f"{number}.json"
        path.write_bytes(damaged(data, generator))
        command = [*TOOL, str(program), "--schedule", str(path), "--emit=triton"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        if done.returncode == 0:  # a bit of a version or of a constant's spelling that changes nothing
            assert same_source(done.stdout, (bundle / "kernels.py").read_text())
        else:
            assert "error:" in done.stderr


# --- signals and workers ------------------------------------------------------------------------------------


def test_killed_runs_lose_nothing_and_the_next_one_goes_on():
    """`test/kills/kills.py --count=500` is the whole campaign."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "kills"))
    kills = importlib.import_module("kills")
    tally = kills.campaign(KILLS, seed=2)
    assert tally.losses == []
    assert tally.kills == KILLS
    assert tally.completed == 1 + KILLS // kills.PERIOD


TERMINATED = """
import pathlib, sys, time
from superopt.driver.isolation import isolated

def work():
    half = pathlib.Path(sys.argv[1])
    half.write_text("half")
    try:
        print("there", flush=True)
        time.sleep(60)
    finally:
        half.unlink()
    return 0

sys.exit(isolated(work, "tool"))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_half_written_is_removed_when_a_tool_is_terminated(tmp_path: Path, number: signal.Signals):
    command = [sys.executable, "-c", TERMINATED, str(tmp_path / "half")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == ""
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_killed_or_out_of_memory_costs_one_kernel():
    from superopt.dialects.reader import read
    from superopt.transforms.emit import compile as compiling
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.emit.triton_source import TritonKernel

    (good,) = emit_program(read(TILED_SCALE)).kernels

    def kernel(prelude: str) -> TritonKernel:
        return TritonKernel(good.name, prelude + good.source, good.parameters, good.grid, 4, 1)

    failures: list[str] = []

    def compile_slowly() -> None:
        try:
            compiling.compile_kernel(kernel("import time\ntime.sleep(60)\n"))
        except compiling.CompilationFailed as error:
            failures.append(error.message)

    thread = threading.Thread(target=compile_slowly)
    before = set(children())
    thread.start()
    for _ in range(100):
        time.sleep(0.1)
        if started := set(children()) - before:
            break
    else:
        started = before
    time.sleep(1.0)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    thread.join(30)
    assert failures
    assert "SIGKILL" in failures[0]
    with pytest.raises(compiling.CompilationFailed):
        compiling.compile_kernel(kernel("hog = bytearray(12 << 30)\n"), memory_bytes=8 << 30)
    assert compiling.compile_kernel(good).ttir


def children() -> list[int]:
    """Process ids of our own children."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    found = [int(p) for p in path.read_text().split()] if path.exists() else []
    for task in Path("/proc/self/task").iterdir():
        found += [int(p) for p in (task / "children").read_text().split()]
    return found
