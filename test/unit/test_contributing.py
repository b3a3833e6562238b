"""The worked examples of CONTRIBUTING.md, applied to a copy of the sources and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
_BLOCK = re.compile(
    r"^```(python|mlir)\n(?://|#) (\S+?)(?:, below `([^`]+)`)?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

# An editable install finds `superopt` by a hook of its own, before any path: take it out, so that the copy counts.
_USE_COPY = """import sys
sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
sys.path.insert(0, {path!r})
"""


def blocks() -> list[tuple[str, str, str | None, str]]:
    """Language, file, the line to stand below (None: a new file), and text of every block that names a file."""
    return _BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with every block applied, and a superopt-opt that runs them."""
    folder = tmp_path_factory.mktemp("superopt")
    for name in ("python", "dialects", "transforms", "tools"):
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for extension in _extensions():
        shutil.copy(extension, folder / "transforms" / "core")
    for language, name, below, text in blocks():
        target = folder / name
        if below:
            lines = target.read_text().splitlines(keepends=True)
            (at,) = [i for i, line in enumerate(lines) if below in line]
            target.write_text("".join([*lines[: at + 1], text, *lines[at + 1 :]]))
        else:
            assert not (ROOT / name).exists(), f"{name} is an example and must not exist"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text((f"// {name}\n" if language == "mlir" else "") + text)
    tool = folder / "bin" / "superopt-opt"
    tool.parent.mkdir()
    start = f"#!{sys.executable}\n{_USE_COPY.format(path=str(folder / 'python'))}"
    tool.write_text(f"{start}from superopt.tools.superopt_opt import main\nsys.exit(main())\n")
    tool.chmod(0o755)
    return folder


def _extensions() -> list[Path]:
    """The compiled modules of the installed package."""
    from superopt.transforms.core import _cost, _egraph, _field, _ptx, _search

    return [Path(str(m.__file__)) for m in (_cost, _egraph, _field, _ptx, _search)]


def names(suffix: str) -> list[str]:
    return [name for _, name, below, _ in blocks() if not below and name.endswith(suffix)]


def test_there_is_an_example_of_each_kind() -> None:
    written = [name for _, name, _, _ in blocks()]
    for expected in (
        "python/superopt/operators.py", "python/superopt/scalars.py", "transforms/registry.py",
        "transforms/optimizers.py", "test/dialects/softplus.mlir",
    ):  # fmt: skip
        assert expected in written


@pytest.mark.parametrize("name", names(".mlir"))
def test_lit_examples(copy: Path, name: str) -> None:
    test = copy / name
    runs = re.findall(r"^// RUN: (.*)$", test.read_text(), re.MULTILINE)
    assert runs
    environment = {**os.environ, "PATH": f"{copy / 'bin'}:{SCRIPTS}:{os.environ['PATH']}"}
    for run in runs:
        # bash has no `not`: a command that has to fail becomes one that has to succeed.
        named = run.replace("%s", str(test)).replace("%t", str(test.with_suffix(".tmp")))
        command = re.sub(r"\bnot (superopt-opt.*?)(?= \||$)", r"{ ! \1; }", named)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_pytest_examples(copy: Path) -> None:
    found = [n for n in names(".py") if n.startswith("test/unit/")]
    assert found
    program = _USE_COPY.format(path=str(copy / "python")) + (
        "import pytest\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-c', '/dev/null', *{found!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_of_the_example_are_documented(copy: Path) -> None:
    done = subprocess.run(
        [copy / "bin" / "superopt-opt", "--help"], capture_output=True, text=True, check=True
    )
    assert "--square-products" in done.stdout
    assert "How many products may be rewritten. (an integer; default: 1000)" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", [n for n in names(".py") if n.startswith("transforms/")])
def test_examples_keep_the_style(copy: Path, name: str) -> None:
    ruff = SCRIPTS / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    for command in (
        ["check", "--config", ROOT / "pyproject.toml"],
        ["format", "--check", "--config", ROOT / "pyproject.toml"],
    ):
        done = subprocess.run([ruff, *command, copy / name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
