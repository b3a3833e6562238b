"""Targets are listed from their files: one more file is one more target, wherever targets are named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import RMSNORM_LINEAR_CUSTOM

from superopt.cost import gpus, target, target_names
from superopt.dialects.reader import read
from superopt.driver.main import run
from superopt.errors import BadOption, IllegalProgram
from superopt.spec import check_kernel
from superopt.transforms.lower.block_to_tile import BlockToTile

SHIPPED = Path(str(gpus.FOLDER))
A6000: dict[str, Any] = {
    **json.loads((SHIPPED / "sm_80.json").read_text()),
    "name": "rtx_a6000", "gpu": "RTX A6000", "capability": 86,
    "multiprocessors": 84, "shared_per_block": 101376, "shared_per_multiprocessor": 102400, "most_warps": 48,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of targets, to which a test may add."""
    for file in SHIPPED.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(gpus, "FOLDER", tmp_path)
    gpus.known_targets.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    gpus.known_targets.cache_clear()


def add(folder: Path, data: dict[str, Any], name: str = "") -> None:
    (folder / f"{name or data['name']}.json").write_text(json.dumps(data))
    gpus.known_targets.cache_clear()


def test_a_file_is_all_that_a_new_target_needs(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    add(folder, A6000)
    assert target_names() == ["sm_80", "rtx_a6000", "sm_90", "h200", "sm_100"]  # the oldest first
    assert target("rtx_a6000").numbers().multiprocessors == 84
    names = "sm_80, rtx_a6000, sm_90, h200, sm_100"
    with pytest.raises(BadOption, match=f"expected a target of {names}, .*, got 'sm_70'"):
        target("sm_70")
    with pytest.raises(BadOption, match=names):
        BlockToTile(target="sm_70")

    assert run(["--help"]) == 0
    said = re.sub(r"\s+", " ", capfd.readouterr().out)
    assert "target of --emit: sm_80|rtx_a6000|sm_90|h200|sm_100" in said
    passes = said.count("one of sm_80|rtx_a6000|sm_90|h200|sm_100")
    assert passes > 5

    program = tmp_path_factory.mktemp("program") / "program.mlir"
    program.write_text(RMSNORM_LINEAR_CUSTOM)
    assert run([str(program), "--emit=ptx", "--target=rtx_a6000"]) == 0
    assert ".target sm_86" in capfd.readouterr().out


def test_the_checks_of_programs_follow_the_largest_target(folder: Path) -> None:
    graph = read(RMSNORM_LINEAR_CUSTOM)
    check_kernel(graph)
    for file in folder.glob("*.json"):
        file.unlink()
    add(folder, {**A6000, "shared_per_block": 1024})
    with pytest.raises(IllegalProgram, match="expected at most 1024 bytes of shared memory"):
        check_kernel(graph)


def test_a_file_that_is_no_target_says_what_it_lacks(folder: Path) -> None:
    for data, name, message in (
        (
            {k: v for k, v in A6000.items() if k != "registers"},
            "rtx_a6000",
            r"rtx_a6000\.json.*without registers",
        ),
        ({**A6000, "tensor_cores": 4}, "rtx_a6000", r"rtx_a6000\.json.*with tensor_cores"),
        (A6000, "a6000", r"a6000\.json: expected the name 'a6000', got 'rtx_a6000'"),
    ):
        add(folder, data, name)
        with pytest.raises(BadOption, match=message):
            target_names()
        (folder / f"{name}.json").unlink()
