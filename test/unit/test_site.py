"""The site of documentation builds, and a broken link keeps it from building."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [s.split("sphinx ")[1] for s in makefile.splitlines() if "-m sphinx" in s]
    arguments = line.replace("out/docs", str(out)).split()
    command = [sys.executable, "-m", "sphinx", *arguments]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


def test_it_builds_with_every_page(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for page in ROOT.glob("docs/*.md"):
        assert (tmp_path / "docs" / f"{page.stem}.html").stat().st_size > 5000
    assert 'href="tutorial-layer.html"' in (tmp_path / "docs" / "index.html").read_text()


def test_broken_links_are_errors(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text("# I\n\n```{toctree}\n../README\n```\n")
    text = "# A\n\n[a](docs/missing.md) [b](docs/index.md#nowhere) ![c](docs/missing.png) [right](docs/index.md#i)\n"
    (tmp_path / "README.md").write_text(text)
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    wrong = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(wrong) == 3
    assert all(any(name in line for line in wrong) for name in ("missing.md", "nowhere", "missing.png"))
