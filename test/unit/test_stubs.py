"""The committed stubs of the native modules say what the modules have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "transforms" / "core"


@pytest.mark.parametrize("stub", sorted(CORE.glob("_*.pyi")), ids=lambda stub: stub.stem)
def test_the_stub_is_current(stub: Path, tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    fresh = tmp_path / stub.name
    command = [
        sys.executable,
        "-m",
        "nanobind.stubgen",
        "-q",
        "-m",
        f"superopt.transforms.core.{stub.stem}",
        "-o",
    ]
    subprocess.run([*command, str(fresh)], check=True)
    assert fresh.read_text() == stub.read_text(), "run: " + " ".join([*command, str(stub)])


def test_every_native_module_has_a_stub() -> None:
    made = (CORE / "CMakeLists.txt").read_text()
    extensions = set(re.findall(r"^superopt_extension\((\w+)", made, re.MULTILINE))
    assert "_cost" in extensions
    assert extensions == {stub.stem for stub in CORE.glob("_*.pyi")}
