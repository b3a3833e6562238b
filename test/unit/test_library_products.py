"""Matrix products that a library runs faster are left to it: which, how they are priced, run, proved and replayed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from benchmarks.mugraph.programs import program

from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import UnsupportedProgram
from superopt.pipeline import Superoptimize, replay, superoptimize
from superopt.program import KernelGraph
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower

H100 = cost.target("sm_90")


def bilinear() -> KernelGraph:
    """A product whose depth a library splits over blocks; what follows is one kernel of ours."""
    return program("bilinear_form")


def test_a_product_is_left_to_the_library_and_the_whole_is_priced_proved_and_replayed() -> None:
    settings = Superoptimize(budget=20, store=None)
    made = superoptimize(bilinear(), settings, Diagnostics())
    report = made.report
    assert report.improved
    assert [k.name for k in report.others] == ["matmul"]
    assert "torch.matmul(x0, x1)" in made.emitted.launcher_source
    parts = [k.predicted_seconds for k in (*report.kernels, *report.others)]
    assert report.predicted_seconds == pytest.approx(sum(parts), rel=0.01)
    assert report.predicted_seconds <= 1.01 * report.baseline_seconds
    again = replay(bilinear(), made.schedule, Diagnostics())
    assert again.emitted == made.emitted
    own = superoptimize(bilinear(), dataclasses.replace(settings, against="operators"), Diagnostics())
    assert not own.report.others
    assert not own.schedule.library


def products(turned: bool, shape: str = "512x512") -> KernelGraph:
    flags = "{transpose_a = true, transpose_b = true}" if turned else ""
    return read(f"""
func.func @f(%x: tensor<{shape}xf16>, %w: tensor<{shape}xf16>) -> tensor<{shape}xf16> {{
  %a = "kernel.matmul"(%x, %w) {flags} : (tensor<{shape}xf16>, tensor<{shape}xf16>) -> tensor<{shape}xf16>
  return %a : tensor<{shape}xf16>
}}""")


@pytest.mark.parametrize("turned", [False, True])
def test_what_the_launcher_calls_computes_the_product(turned: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    emitted = emit_program(lower(products(turned, "2x8x8"), library=(0,)))
    assert not emitted.kernels
    space: dict[str, object] = {}
    exec(emitted.launcher_source.replace("import kernels\n", ""), space)
    x, w = torch.randn(2, 2, 8, 8).half()
    left, right = (x.mT, w.mT) if turned else (x, w)
    wanted = torch.matmul(left.double(), right.double())
    (got,) = space["run"](x, w)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    assert torch.allclose(torch.as_tensor(got, dtype=torch.float64), wanted, atol=2e-2)


def test_only_products_of_whole_tensors_that_a_library_runs_faster_are_left_to_it() -> None:
    text = """
func.func @f(%x: tensor<64x4096xf16>, %w: tensor<4096x8192xf16>) -> tensor<64x4096xf16> {
  %c = "kernel.slice"(%w) {offsets = array<i64: 0, 0>, sizes = array<i64: 4096, 4096>, strides = array<i64: 1, 1>} : (tensor<4096x8192xf16>) -> tensor<4096x4096xf16>
  %a = "kernel.matmul"(%x, %c) : (tensor<64x4096xf16>, tensor<4096x4096xf16>) -> tensor<64x4096xf16>
  return %a : tensor<64x4096xf16>
}"""
    assert cost.left_to_library(bilinear(), H100) == (0,)
    assert cost.left_to_library(read(text), H100) == ()
    assert cost.left_to_library(products(turned=False, shape="32x32"), H100) == ()


@pytest.mark.parametrize("place", [1, 7, -1])
def test_what_is_not_a_product_is_not_left_to_a_library(place: int) -> None:
    with pytest.raises(
        UnsupportedProgram, match=f"expected the place of a matrix product for a library, got {place}"
    ):
        lower(bilinear(), library=(place,))
