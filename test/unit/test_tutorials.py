"""The tutorials, from top to bottom: their files are written, their commands print what they say, their Python runs.

Run as a program, this writes what the commands print into them.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import pytest
from test_readme import output

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted(DOCS.glob("tutorial-*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//) (\S+\.\w+)\n")


def run(text: str, folder: Path, *, said: bool = False) -> str:
    """The tutorial with what its commands print now; with `said`, they must print what it says."""

    def block(match: re.Match[str]) -> str:
        language, inside = match.groups()
        if named := _FILE.match(inside):
            kept = inside if language == "mlir" else inside[named.end() :]
            (folder / named[1]).write_text(kept)
        elif language == "console":
            command, _, before = inside.removeprefix("$ ").partition("\n")
            printed = output(command, folder)
            assert not said or printed == before, "run `python test/unit/test_tutorials.py`"
            return f"```console\n$ {command}\n{printed}```"
        elif language == "python":
            _execute(inside, folder)
        return match[0]

    return _BLOCK.sub(block, text)


def _execute(code: str, folder: Path) -> None:
    modules = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        with contextlib.chdir(folder):
            exec(compile(code, "tutorial", "exec"), {})
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def test_there_are_three() -> None:
    assert len(TUTORIALS) == 3


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_it_does_what_it_says(path: Path, tmp_path: Path) -> None:
    if "torch" in path.read_text():
        pytest.importorskip("torch")
    run(path.read_text(), tmp_path, said=True)


def write() -> None:
    """Write what the commands print now."""
    import tempfile

    for path in TUTORIALS:
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(run(path.read_text(), Path(folder)))


if __name__ == "__main__":
    write()
