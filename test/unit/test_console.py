"""What is shown while one waits: a spinner on a terminal, and nothing anywhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

RUN = (
    "import sys; from superopt.driver.console import run; "
    "sys.exit(run([sys.executable, '-c', \"import time; print('said', flush=True); time.sleep(0.3); exit(3)\"], "
    "dict(__import__('os').environ), 'running a bundle'))"
)
PROGRAM = """func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "kernel.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""
OPTIMIZE = f"""
import superopt
superopt.optimize('''{PROGRAM}''', budget=1, store=None)
"""


MODEL = """
import torch, superopt
model = torch.nn.ModuleDict({"a": torch.nn.Sequential(torch.nn.RMSNorm(32), torch.nn.Linear(32, 32, bias=False))}).eval()
model.forward = lambda x: x + model.a(x)
superopt.CALL
"""
CALLS = {
    "replace": 'replace(model, "a", torch.ones(8, 32), budget=1, store=None)',
    "explain": "explain(model, torch.ones(8, 32), budget=1, store=None)",
}


def on_a_terminal(program: str) -> tuple[int, str]:
    """Exit status of a Python program, and what a terminal got of it."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(control, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(control)
    return process.wait(), shown.decode(errors="replace")


def test_a_command_runs_below_a_spinner() -> None:
    code, shown = on_a_terminal(RUN)
    assert code == 3
    assert "said" in shown
    assert "running a bundle" in shown


def test_a_check_of_programs_says_what_it_checks(tmp_path: Path) -> None:
    """Its verdict stays, and is all that is there where nobody looks."""
    program = tmp_path / "f.mlir"
    program.write_text(PROGRAM)
    check = (
        f"import sys; from superopt.tools.superopt_verify import main; sys.exit(main([{str(program)!r}] * 2))"
    )
    code, shown = on_a_terminal(check)
    assert code == 0
    assert "checking" in shown
    assert "equivalent: " in shown
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.startswith("equivalent: ")
    assert done.stderr == ""


def test_a_search_says_what_it_does() -> None:
    code, shown = on_a_terminal(OPTIMIZE)
    assert code == 0
    # A quick search may end before the bar is drawn for the first time.
    assert "search 1 of 1" in shown or "check of a candidate" in shown


@pytest.mark.torch
@pytest.mark.parametrize("call", CALLS)
def test_so_do_searches_in_a_model(call: str) -> None:
    pytest.importorskip("torch")
    code, shown = on_a_terminal(MODEL.replace("CALL", CALLS[call]))
    assert code == 0
    path = "a" if call == "replace" else "the whole graph"
    assert f"{path}: reading" in shown
    assert f"{path}: search 1 of 1" in shown or f"{path}: check of a candidate" in shown
    code, shown = on_a_terminal(
        MODEL.replace("CALL", CALLS[call].replace("budget", "progress=False, budget"))
    )
    assert (code, shown) == (0, "")


def test_without_a_terminal_it_is_silent() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")
    done = subprocess.run([sys.executable, "-c", OPTIMIZE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
