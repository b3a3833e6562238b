"""Bundles of two kernels and two targets, whose files were exchanged: none is believed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_bundle_guards import described, listed, verdict

from superopt.dialects.writer import to_text
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.bundle import write_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import bundle as verifier

TARGETS = ("sm_80", "sm_90")
ALL = ("ttir", "ptx", "cubin")
# Which files; of another Triton, whose PTX and cubins are not made again, each could matter by itself.
FILES = [("9.9", one) for one in (*((name,) for name in ALL), ALL[1:], ALL)] + [("", ALL)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """A program of two kernels with the same arguments, its bundle, and the kernels' names."""
    folder = tmp_path_factory.mktemp("made")
    a, b, o = (Value(TensorType((32, 32), "f32"), name) for name in "abo")
    graph = KernelGraph(
        "two",
        [a],
        [Node("matmul", (a, a), (b,)), Node("matmul", (b, b), (o,), {"transpose_b": True})],
        [o],
    )
    lowered = lower(graph)
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, TARGETS)
    program = folder / "two.mlir"
    program.write_text(to_text(graph))
    bundle = write_bundle(
        folder / "bundle",
        original=graph,
        lowered=lowered,
        compiled=compiled,
        emitted=emitted,
        original_mlir=to_text(graph),
        lowered_mlir=to_text(lowered),
    )
    return program, bundle, [kernel.name for kernel in emitted.kernels]


def exchange(folder: Path, first: str, second: str, renamed: tuple[str, str] | None) -> None:
    """Two files change places; their kernels' names too, if `renamed`."""
    one, two = folder / first, folder / second
    data = one.read_bytes(), two.read_bytes()
    if renamed is not None:
        mine, theirs = (name.encode() for name in renamed)
        data = data[0].replace(mine, theirs), data[1].replace(theirs, mine)
    one.write_bytes(data[1])
    two.write_bytes(data[0])


def test_the_bundle_is_believed(made: tuple[Path, Path, list[str]]) -> None:
    program, bundle, names = made
    assert len(set(names)) == 2
    grids = json.loads((bundle / "bundle.json").read_text())["grids"]
    assert grids[names[0]] == grids[names[1]]  # it is not the interfaces that are refused
    assert verdict(verifier, program, bundle) == ""


@pytest.mark.parametrize(("triton", "suffixes"), FILES)
@pytest.mark.parametrize("between", ["targets", "kernels", "renamed kernels"])
def test_exchanged_files_are_not_believed(
    made: tuple[Path, Path, list[str]], tmp_path: Path, between: str, triton: str, suffixes: tuple[str, ...]
) -> None:
    """Of another Triton, cubins that this ptxas makes otherwise are said not to be checked."""
    program, bundle, names = made
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    for suffix in suffixes:
        if between == "targets":
            first, second = (f"{target}/{names[0]}.{suffix}" for target in TARGETS)
        else:
            first, second = (f"sm_90/{name}.{suffix}" for name in names)
        if suffixes == ("ttir",) and (folder / first).read_bytes() == (folder / second).read_bytes():
            pytest.skip("the TTIR of both targets is the same")
        exchange(folder, first, second, (names[0], names[1]) if between == "renamed kernels" else None)
    if triton:
        described(triton, "triton")(folder)
    listed(folder)
    said = verdict(verifier, program, folder)
    if triton and (suffixes == ("cubin",) or between == "targets"):
        assert "unchecked: sm_90: cubins, made by Triton 9.9" in said or not said.startswith("unchecked")
    else:
        assert said
        assert not said.startswith("unchecked"), said
