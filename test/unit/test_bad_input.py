"""No input makes a traceback or ends the interpreter: each gives its message, at its place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from bad_inputs import CASES, GOOD, Case, many_operations

from superopt.driver.main import run

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "errors.md"
OPT = Path(sysconfig.get_path("scripts")) / "superopt-opt"


def answer(case: Case, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of one case, run in `folder`."""
    for name, content in case.files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    before = {*case.files, "__pycache__"}  # Python's own, where a module was imported
    if case.tool != "superopt-opt":
        done = subprocess.run(command(case), cwd=folder, capture_output=True, text=True, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:  # in this process, which saves half a second a case
        here = Path.cwd()
        os.chdir(folder)
        try:
            code = run(case.arguments)
        finally:
            os.chdir(here)
        out, err = capfd.readouterr()
    assert out == "", "an error goes to standard error, and nothing else is written"
    assert {p.name for p in folder.iterdir()} <= before, "a failed run leaves nothing behind"
    return code, err


def command(case: Case) -> list[str]:
    """The command line of a case."""
    return [str(OPT.with_name(case.tool)), *case.arguments]


def first_line(message: str) -> str:
    """The first error of a message, shortened for the table."""
    line = next((x for x in message.splitlines() if "error: " in x), message)
    return line if len(line) <= 160 else line[:157] + "..."


def table_row(case: Case, message: str) -> str:
    """What docs/errors.md has of a case."""
    return f"| {case.name} | `{first_line(message).replace('|', chr(92) + '|')}` |"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_message(case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, err = answer(case, tmp_path, capfd)
    assert case.says in err
    assert code == case.exit_code
    assert "Traceback" not in err
    assert re.search(r"^(\S+: )?error: ", err, re.MULTILINE), "an error says where, then what"
    assert table_row(case, err) in DOC.read_text().splitlines(), (
        "run `python test/unit/test_bad_input.py` to write docs/errors.md"
    )


def test_table_is_complete() -> None:
    assert len(CASES) >= 25
    assert len({c.name for c in CASES}) == len(CASES)


def test_many_good_operations_pass(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.mlir").write_text(str(many_operations(100_000, "  return %9 : tensor<4xf32>")["x.mlir"]))
    assert run([str(tmp_path / "x.mlir"), "--canonicalize", "-o", str(tmp_path / "y.mlir")]) == 0
    assert (tmp_path / "y.mlir").read_text().count("arith.addf") == 10
    assert capfd.readouterr().err == ""


def test_output_survives_a_failed_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.mlir").write_text("not MLIR")
    (tmp_path / "y.mlir").write_text("kept")
    assert run([str(tmp_path / "x.mlir"), "-o", str(tmp_path / "y.mlir")]) == 1
    assert (tmp_path / "y.mlir").read_text() == "kept"
    assert "x.mlir:1:1: error: " in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_without_permission(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.mlir").write_text(GOOD)
    (tmp_path / "locked").mkdir(mode=0o500)
    assert run([str(tmp_path / "x.mlir"), "-o", str(tmp_path / "locked" / "y.mlir")]) == 1
    assert "cannot write: no permission" in capfd.readouterr().err


# --- what only happens to a process of its own --------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_goes_away(tmp_path: Path, unbuffered: str) -> None:
    source = tmp_path / "x.mlir"
    source.write_text(str(many_operations(20_000, "  return %9 : tensor<4xf32>")["x.mlir"]))
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    tool = subprocess.Popen([OPT, source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tool.stdout is not None
    assert tool.stderr is not None
    tool.stdout.read(1)
    tool.stdout.close()
    err = tool.stderr.read()
    tool.stderr.close()
    assert tool.wait(60) == 128 + signal.SIGPIPE
    assert err == b""


def test_interrupt() -> None:
    tool = subprocess.Popen(
        [OPT, "-", "--cse"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert tool.stdin is not None
    # Larger than the pipe: once it is written, the tool is reading.
    tool.stdin.write(b"// wait\n" * 100_000)
    tool.stdin.flush()
    os.killpg(tool.pid, signal.SIGINT)
    out, err = tool.communicate(timeout=60)
    assert tool.returncode == 128 + signal.SIGINT
    assert (out, err) == (b"", b"superopt-opt: interrupted; nothing was written\n")


def test_crash_of_native_code_is_a_message() -> None:
    program = (
        "import os, signal, sys\n"
        "from superopt.driver import isolation\n"
        "def work():\n"
        "    isolation.phase('parsing x.mlir')\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return 0\n"
        "sys.exit(isolation.isolated(work, 'superopt-opt'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = "superopt-opt: error: MLIR crashed (SIGSEGV) while parsing x.mlir; nothing was written\n"
    assert done.stderr == expected


def test_killed_tool_leaves_no_process() -> None:
    tool = subprocess.Popen([OPT, "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert tool.stdin is not None
    tool.stdin.write(b"// wait\n" * 100_000)
    children = Path(f"/proc/{tool.pid}/task/{tool.pid}/children").read_text().split()
    assert len(children) == 1
    tool.kill()
    tool.wait(60)
    for _ in range(200):
        status = Path(f"/proc/{children[0]}/status")
        if not status.exists() or "Z (zombie)" in status.read_text():
            return
        signal.sigtimedwait([], 0.02)
    pytest.fail("the child outlived the tool")


def write_table() -> None:
    """Write docs/errors.md with what the tools say now."""
    import tempfile

    rows: list[str] = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in case.files.items():
                data = content.encode() if isinstance(content, str) else content
                (Path(folder) / name).write_bytes(data)
            done = subprocess.run(command(case), cwd=folder, capture_output=True, text=True, check=False)
            rows.append(table_row(case, done.stderr))
    DOC.write_text(
        "# What bad input is answered with\n\n"
        "Every error says where it is (`file:line:column`, or the option on the command line), what was expected\n"
        "and what was got, and the exit code is 1, or 2 where the command line itself is wrong. Tools whose answer is a\n"
        "verdict (`superopt-verify`, `superopt-run`, `superopt-store`) say by 1 that what they looked at is wrong or\n"
        "damaged, and by 2 that they could not look. The inputs are in\n"
        "`test/unit/bad_inputs.py`; `test/unit/test_bad_input.py` checks this table, and writes it when it is run\n"
        "as a program. Further cases there: a reader that closes the pipe, Ctrl-C, a crash of LLVM.\n\n"
        "| input | answer |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    write_table()
