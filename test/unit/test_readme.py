"""The README's commands print what it says; run as a program, this writes their output into it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
import warnings
from pathlib import Path

import pytest

from superopt.driver import command_line, pipeline

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_CONSOLE = re.compile(r"^```console\n\$ (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def output(command: str, folder: Path) -> str:
    """What `command` prints in `folder`, which has the examples."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_console_blocks(tmp_path: Path) -> None:
    blocks = _CONSOLE.findall(README.read_text())
    assert len(blocks) >= 3
    for command, said in blocks:
        assert output(command, tmp_path) == said, f"{command}: run `python test/unit/test_readme.py`"


def test_python_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = _PYTHON.findall(README.read_text())
    assert blocks
    for block in blocks:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "superopt")  # kernels for a part of a range, say
            exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "out" / "rmsnorm_linear" / "certificate.json").exists()


def test_named_flags_and_passes_exist() -> None:
    lines = re.findall(r"^superopt-opt (.*?)(?:\s{2,}#.*)?$", README.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        settings = command_line.parse(shlex.split(line))
        if settings.pass_pipeline is not None:
            assert pipeline.parse(settings.pass_pipeline)
        for flag, options in settings.passes:
            pipeline.flag_step(flag, options)


def write() -> None:
    """Write what the commands print now into the README."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:

        def block(match: re.Match[str]) -> str:
            return f"```console\n$ {match[1]}\n{output(match[1], Path(folder))}```"

        README.write_text(_CONSOLE.sub(block, README.read_text()))


if __name__ == "__main__":
    write()
