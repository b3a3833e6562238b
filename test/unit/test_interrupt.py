"""Ctrl-C during a search keeps the best found; a second one ends the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from superopt import pipeline
from superopt.api import optimize
from superopt.dialects.reader import read
from superopt.driver import console
from superopt.driver.isolation import isolated
from superopt.numerics import runner
from superopt.tools import superopt_run, superopt_verify
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer

PROGRAM = """
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>) -> tensor<16x64xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x64xf16>) -> tensor<16x64xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  return %1 : tensor<16x64xf16>
}
"""


def test_the_first_interrupt_only_says_so_and_the_second_is_the_usual_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pipeline.first_interrupt_stops() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_interrupt_stops_all_runs_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """A range in buckets, or the modules of a model, are many runs."""
    with pipeline.first_interrupt_stops() as outer:
        with pipeline.first_interrupt_stops() as first:
            signal.raise_signal(signal.SIGINT)
            assert first()
        with pipeline.first_interrupt_stops() as second:
            assert second()
        assert outer()
    assert capsys.readouterr().err == pipeline.STOPPING
    with pipeline.first_interrupt_stops() as stopped:
        assert not stopped()


def test_a_tool_called_from_python_leaves_the_signals_as_they_were() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    assert isolated(lambda: 3, "tool") == 3
    assert [signal.getsignal(n) for n in numbers] == before


def test_other_threads_cannot_catch_signals() -> None:
    answers: list[bool] = []

    def run() -> None:
        with pipeline.first_interrupt_stops() as stopped:
            answers.append(stopped())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [False]


def test_what_was_found_by_then_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    search = MugraphOptimizer.propose
    asked: list[bool] = []

    def interrupted(*arguments: Any, stop: Callable[[], bool], **options: Any) -> Any:
        found = search(*arguments, stop=stop, **options)
        signal.raise_signal(signal.SIGINT)
        asked.append(stop())
        return found

    monkeypatch.setattr(MugraphOptimizer, "propose", interrupted)
    result = optimize(read(PROGRAM), numerics=False)
    assert asked == [True]
    assert "interrupted: this is the best result found by then" in result.report.remarks
    assert result.report.improved
    assert len(result.report.kernels) == 1


# --- what only happens to a process of its own

_IMPORTING = """
import os, signal
from superopt.tools import entry

def imports(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))
    except BaseException:
        raise ImportError("what an extension module makes of it") from None

entry.import_module = imports
entry.verify()
"""

_FORKING = """
import os, signal, sys, time
from superopt.driver import isolation

fork = os.fork

def interrupted():
    child = fork()
    os.kill(os.getpid(), signal.SIGINT)
    return child

os.fork = interrupted
sys.exit(isolation.isolated(lambda: time.sleep(60), "tool"))
"""

_WAITING = """
import os, signal, sys, threading, time
from superopt.driver import isolation

interrupts = []

def work():
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
    time.sleep(1.5)
    print(len(interrupts))
    return 0

threading.Timer(0.5, SEND).start()
sys.exit(isolation.isolated(work, "tool"))
"""

_ABORTING = """
import os, signal, sys, time
from superopt.driver import isolation

def work():
    signal.signal(signal.SIGINT, lambda *_: os.abort())
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)

sys.exit(isolation.isolated(work, "tool"))
"""

_ON_A_TERMINAL = """
import os, pty, signal, sys, threading
from superopt.driver import console

_, terminal = pty.openpty()
sys.stderr = open(terminal, "w")
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
try:
    console.run([sys.executable, "-c", code], os.environ, "waiting")
except KeyboardInterrupt:
    print("interrupted")
"""

_COMPILING = """
import os, signal, threading, time
from superopt.transforms.emit.compile import compile_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.dialects.reader import read

signal.signal(signal.SIGINT, lambda *_: None)
kernel = emit_program(lower(read('''PROGRAM'''), "sm_90")).kernels[0]

def interrupt():
    while True:
        os.killpg(0, signal.SIGINT)
        time.sleep(0.005)

threading.Thread(target=interrupt, daemon=True).start()
print(len(compile_kernel(kernel).ptx) > 0)
"""

_ASKING = """
import os, signal, threading
from superopt.numerics.child import Child

signal.signal(signal.SIGINT, lambda *_: None)
child = Child("a process", ["-c", "import time; input(); time.sleep(1); print(7)"])
threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start()
print(child.ask({}, 60) == 7)
"""


def alone(program: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a Python program in a session of its own, as a terminal's are."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_an_interrupt_while_a_tool_is_imported_is_one_line():
    assert alone(_IMPORTING) == (130, "", "superopt-verify: interrupted; nothing was written\n")


def test_an_interrupt_while_a_tool_forks_is_one_line():
    assert alone(_FORKING) == (130, "", "tool: interrupted\n")


@pytest.mark.parametrize("send", ["os.kill, (os.getpid(), signal.SIGINT)", "os.killpg, (0, signal.SIGINT)"])
def test_what_is_sent_to_a_tool_alone_or_to_its_group_reaches_the_work_once(send: str):
    assert alone(_WAITING.replace("SEND", send)) == (0, "1\n", "")


def test_an_extension_module_that_dies_of_an_interrupt_has_not_crashed():
    assert alone(_ABORTING) == (130, "", "tool: interrupted; nothing was written\n")


def test_an_interrupt_that_is_sent_to_a_tool_alone_ends_its_process():
    code, output, errors = alone(_ON_A_TERMINAL)
    number, said = output.split()
    assert (code, said, errors) == (0, "interrupted", "")
    with suppress(FileNotFoundError):  # gone, or a zombie where nothing reaps
        assert Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("program", [_COMPILING.replace("PROGRAM", PROGRAM), _ASKING])
def test_a_terminals_interrupt_leaves_compilers_and_other_helpers_alone(program: str):
    """The first one keeps the best that was found, which may be what is being compiled."""
    assert alone(program) == (0, "True\n", "")


def test_an_interrupted_check_has_the_exit_code_of_a_signal(monkeypatch: pytest.MonkeyPatch):
    def interrupted(work: Callable[[], int], tool: str) -> int:
        return 130

    monkeypatch.setattr(superopt_verify, "isolated", interrupted)
    assert superopt_verify.main(["a.mlir", "b.mlir"]) == 130


def test_an_interrupt_in_a_run_of_a_bundle_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Of the kernels' process, which a terminal interrupts, too."""
    process = "import os, signal, runner; runner.run = lambda _: os.kill(os.getpid(), signal.SIGINT)\n"
    monkeypatch.setenv("PYTHONPATH", str(Path(runner.__file__).parent))
    done = subprocess.run([sys.executable, "-c", process + "raise SystemExit(runner.main([]))"])
    assert (done.returncode, capfd.readouterr().err) == (130, "")
    bundle = optimize(read(PROGRAM), budget=1, against="operators", store=None).save(tmp_path / "bundle")
    capfd.readouterr()

    def interrupted(*_: Any) -> int:
        return 130

    monkeypatch.setattr(console, "run", interrupted)
    assert superopt_run.main([str(bundle)]) == 130
    assert capfd.readouterr().err == "superopt-run: interrupted\n"


def test_an_interrupt_while_a_line_is_being_written_is_said_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    class Writing:
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    monkeypatch.setattr(sys, "stderr", Writing())
    with pipeline.first_interrupt_stops() as stopped:
        signal.raise_signal(signal.SIGINT)
        assert stopped()
    assert capfd.readouterr().err == pipeline.STOPPING
