"""The driver below its command line: pipelines, expected diagnostics, sources, outputs; and what import costs."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.dialects import base, mlir
from superopt.driver import command_line, expected, output, pipeline
from superopt.driver.main import run
from superopt.driver.pipeline import Step
from superopt.errors import BadInput, BadOption, Location
from superopt.inputs import source
from superopt.inputs.source import Message, Source

ROOT = Path(__file__).parents[2]

names = st.sampled_from(["canonicalize", "cse", "inline", "a-b", "x.y"])
anchors = st.lists(st.sampled_from(["func.func", "gpu.module", "any"]), max_size=3).map(
    lambda inner: ("builtin.module", *inner)
)
options = st.sampled_from(["", "a=1", "a=1 b={c d}", "list=1,2"])


@given(st.lists(st.builds(Step, names, options, anchors), max_size=6))
def test_pipeline_is_read_back(steps: list[Step]) -> None:
    assert pipeline.parse(pipeline.spell(steps)) == steps


@pytest.mark.parametrize("store", ["x{", "}x", "a b", "it's", "{a}", '"'])
def test_braces_in_quotes_close_nothing(store: str) -> None:
    from superopt.pipeline import Superoptimize

    step = Step("superoptimize", implementation=Superoptimize(store=store))
    (again,) = pipeline.parse(pipeline.spell([step]))
    assert again.implementation == step.implementation


def test_pipeline_locates_passes() -> None:
    steps = pipeline.parse("builtin.module( cse,\tfunc.func(inline) )")
    assert [(s.name, s.anchors, s.location.column) for s in steps] == [
        ("cse", ("builtin.module",), 17),
        ("inline", ("builtin.module", "func.func"), 32),
    ]


def test_order_of_flags_is_the_pipeline() -> None:
    settings = command_line.parse(["--inline", "x.mlir", "-cse=a=1", "--ingest-linalg", "--inline"])
    assert settings.passes == (("inline", ""), ("cse", "a=1"), ("ingest-linalg", ""), ("inline", ""))
    assert settings.input == "x.mlir"


def test_flags_of_passes_that_only_mlir_knows_keep_their_place() -> None:
    settings = command_line.parse(["--cse", "--linalg-specialize-generic-ops", "--inline"])
    assert [name for name, _ in settings.passes] == ["cse", "linalg-specialize-generic-ops", "inline"]


def error(text: str, line: int, severity: str = "error") -> Message:
    return Message(severity, text, Location("x", line, 1))


@pytest.mark.parametrize(
    ("text", "messages", "wrong"),
    [
        ("// expected-error {{bad}}", [error("a bad thing", 1)], []),
        ("// expected-error {{bad}}", [error("a bad thing", 2)], ["unexpected error", "was not produced"]),
        ("// expected-error {{bad}}", [error("a bad thing", 1, "remark")], ["unexpected remark", "was not"]),
        ("// expected-error @+2 {{bad}}", [error("bad", 3)], []),
        ("\n\n// expected-warning @-2 {{bad}}", [error("bad", 1, "warning")], []),
        ("// expected-error @below {{bad}}\n// expected-error @below {{bad}}\nx", [error("bad", 3)] * 2, []),
        ("x\n// expected-error @above {{bad}}", [error("bad", 1)], []),
        ("// expected-error @unknown {{bad}}", [error("bad", 99)], []),
        ("// expected-error 2 {{bad}}", [error("bad", 1)], ["was not produced"]),
        ("// expected-error-re {{b{{a+}}d.}}", [error("baaad.", 1)], []),
        ("// expected-error-re {{b{{a+}}d.}}", [error("baaadx", 1)], ["unexpected", "was not"]),
        ("// expected-error {{b.d}}", [error("bad", 1)], ["unexpected", "was not"]),
        ("", [error("bad", 1)], ["unexpected error: bad"]),
    ],
)
def test_expected_diagnostics(text: str, messages: list[Message], wrong: list[str]) -> None:
    found = expected.failures(Source("x", text), messages)
    assert len(found) == len(wrong)
    for line, part in zip(found, wrong, strict=True):
        assert part in line


def test_text_from_other_systems() -> None:
    assert source.from_bytes(b"\xef\xbb\xbfa\r\nb\r\n", "x").text == "a\nb\n"


def test_chunks_keep_line_numbers() -> None:
    chunks = source.split(Source("x", "a\n// -----\nb\n// ----- more\nc"))
    assert [c.text for c in chunks] == ["a\n", "\n\nb\n", "\n\n\n\nc"]
    assert chunks[2].line(5) == "c"


@pytest.mark.parametrize("brackets", ["()", "[]", "{}", "<>"])
def test_nesting(brackets: str) -> None:
    opening, closing = brackets
    deepest = source.MAX_NESTING
    source.check_nesting(Source("x", opening * deepest + closing * deepest))
    flat = f"{opening}{closing} -> d0 >= 1\n" * 2000
    source.check_nesting(Source("x", flat))
    with pytest.raises(BadInput, match="nested brackets") as caught:
        source.check_nesting(Source("x", flat + opening * (deepest + 1)))
    assert caught.value.location == Location("x", 2001, deepest + 1)


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    target.chmod(0o640)
    output.write(str(target), "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(BadInput, match="cannot write: No space left on device"):
        output.write(str(target), "newer")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target], "no temporary file stays"


def test_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    output.write(str(tmp_path / "link"), "new")
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_write_to_a_device() -> None:
    output.check_writable("/dev/null")
    output.write("/dev/null", "gone")


def test_a_bundle_may_make_folders(tmp_path: Path) -> None:
    output.check_writable(str(tmp_path / "a" / "b"), folder=True)
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is not a folder"):
        output.check_writable(str(tmp_path / "file" / "b"), folder=True)


def test_an_unwritable_output_is_found_before_the_input_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["missing.mlir", "-o", str(tmp_path / "no" / "x")]) == 1
    assert "cannot write" in capfd.readouterr().err


def test_wrong_native_option_is_found_before_the_work(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadOption):
        command_line.parse(["--no-such-pass"])
    assert capfd.readouterr().err == "", "what MLIR says of it is not shown twice"


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        # The passes' options come from dataclasses next to their code, which computes with numpy.
        (
            "from superopt.driver.main import run; assert run(['--help']) == 0",
            {"superopt", "numpy", "threadpoolctl"},
        ),
        ("import superopt", {"superopt"}),
    ],
)
def test_what_is_imported_at_once_is_little(program: str, packages: set[str]) -> None:
    """What an import or `--help` waits for; their seconds depend on how busy a machine is."""
    code = (
        f"import sys; before = set(sys.modules); {program}\n"
        "made = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(made - set(sys.stdlib_module_names)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert set(run.stderr.split()) - {"typing_extensions"} == packages


def two_programs() -> Any:
    """The records of two programs, as far as a summary reads them."""
    return {side: SimpleNamespace(sha256=side) for side in ("first", "second")}


def test_the_summary_names_the_bound_and_its_extents() -> None:
    from superopt.driver import emission
    from superopt.verify.certificate import Certificate

    report = SimpleNamespace(
        kernels=[SimpleNamespace(spilled_bytes=0)],
        each_call=[1],
        prepared="",
        others=[],
        improved=True,
        predicted_seconds=1e-6,
        baseline="a library",
        baseline_seconds=1.5e-6,
        input_predicted_seconds=2e-6,
        target="sm_90",
        guarantee="congruence",
    )
    for delta, extents, bound in (
        (None, "full", "no bound at full extents"),
        (1e-12, "reduced", "delta 1.0e-12 at reduced extents"),
    ):
        certificate = Certificate.model_construct(delta=delta, delta_extents=extents, **two_programs())
        summary = emission.summary(
            cast(Any, SimpleNamespace(report=report, certificate=certificate, buckets=()))
        )
        assert summary == (
            "1 kernel; 1.0 us predicted on sm_90, 1.5 us for the best a user has (a library), "
            f"2.0 us operator by operator; congruence, {bound}"
        )


def test_the_summary_says_what_spills_and_when_the_input_is_returned() -> None:
    from superopt.driver import emission
    from superopt.verify.certificate import Certificate

    kernels = [SimpleNamespace(spilled_bytes=n) for n in (40, None, 8)]
    report = SimpleNamespace(
        kernels=kernels, each_call=kernels, prepared="prepared once", others=[1], improved=False, predicted_seconds=3e-6, baseline="a library", baseline_seconds=1.5e-6,
        input_predicted_seconds=2e-6, target="sm_90", guarantee="bound",
    )  # fmt: skip
    certificate = Certificate.model_construct(delta=None, delta_extents="full", **two_programs())
    summary = emission.summary(cast(Any, SimpleNamespace(report=report, certificate=certificate, buckets=())))
    assert "; the input is returned, whose kernels here are not what a library runs: keep that;" in summary
    assert summary.startswith("3 kernels and 1 call of PyTorch; ")
    assert "; prepared once; 48 bytes of registers spilled;" in summary


PIPELINE = "builtin.module(func.func(canonicalize),canonicalize,func.func(cse,canonicalize),cse)"


def test_files_of_a_tree_are_called_as_mlir_calls_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.mlir").write_text(
        "func.func @f(%x: i32) -> i32 {\n  return %x : i32\n}\n"
        "func.func @g(%x: i32) -> i32 {\n  return %x : i32\n}\n"
    )
    context = base.context()
    context.enable_multithreading(False)
    module = mlir.ir.Module.parse((tmp_path / "x.mlir").read_text(), context)
    manager = mlir.passmanager.PassManager.parse(PIPELINE, context)
    manager.enable_ir_printing(print_after_all=True, tree_printing_dir_path=str(tmp_path / "theirs"))
    manager.enable_timing()
    manager.run(module.operation)
    del manager  # it writes the times
    arguments = [str(tmp_path / "x.mlir"), f"--pass-pipeline={PIPELINE}", "-o", str(tmp_path / "y.mlir")]
    printed = ["--mlir-print-ir-after-all", f"--mlir-print-ir-tree-dir={tmp_path / 'ours'}", "--mlir-timing"]
    theirs = capfd.readouterr().err
    assert run([*arguments, *printed]) == 0
    ours = capfd.readouterr().err
    files = [
        {str(p.relative_to(tmp_path / by)) for p in (tmp_path / by).rglob("*.mlir")}
        for by in ("theirs", "ours")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 8

    def nesting(report: str) -> list[int]:
        rows = re.findall(r"%\)( +)(?!\(A\)|Parser|Output|Rest|Total)\S", report)
        return [len(indent) for indent in rows if indent]

    assert [n for n in nesting(theirs) if n < 6] == nesting(ours)
