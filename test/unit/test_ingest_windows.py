"""Convolutions and pooling of PyTorch: both entrances against eager, and against each other; nothing is opaque."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# A table of lambdas on tensors.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ingest_support import ops, run_imported
from torch_support import Fn, rand, torch

from superopt.transforms.ingest import from_torch
from superopt.verify import certify

F: Any = torch.nn.functional

pytestmark = pytest.mark.torch

LINE, IMAGE, SOLID = rand(2, 4, 9), rand(2, 4, 7, 6), rand(1, 4, 5, 5, 4)

ROWS, BAND = rand(2, 24, 6), torch.arange(24)[:, None] + 2 * torch.arange(5)


def chunks(x: Any) -> Any:
    """Eight rows every four, as Longformer takes them (transformers, `_chunk`)."""
    b, n, e = x.shape
    return x.contiguous().as_strided((b, n // 4 - 1, 8, e), (n * e, 4 * e, e, 1))


# name: (function, inputs, operators of the torch entrance but for reshapes and constants)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), (LINE, rand(6, 4, 3)), ["conv"]),
    "conv2d_bias": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (IMAGE, rand(6, 4, 3, 3), rand(6)),
                    ["conv", "add", "relu"]),
    "conv2d_one_image": (lambda x, w: F.conv2d(x[0], w, stride=(2, 1)), (IMAGE, rand(6, 4, 3, 2)), ["slice", "conv"]),
    "conv2d_pointwise": (
        lambda x, w, b: F.conv2d(x, w, b).relu(),
        (IMAGE, rand(6, 4, 1, 1), rand(6)),
        ["matmul", "add", "relu"],
    ),
    "conv2d_pointwise_strided": (lambda x, w: F.conv2d(x, w, stride=2), (IMAGE, rand(6, 4, 1, 1)), ["conv"]),
    "conv2d_dilated": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), (IMAGE, rand(5, 4, 3, 3)), ["conv"]),
    "conv2d_grouped": (lambda x, w: F.conv2d(x, w, padding=(1, 0), groups=2), (IMAGE, rand(6, 2, 3, 3)), ["conv"]),
    "conv2d_depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (IMAGE, rand(4, 1, 3, 3)), ["conv"]),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, rand(6, 4, 3, 3)), ["conv"]),
    "conv2d_same_even": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, rand(6, 4, 2, 3)), ["conv"]),
    "conv2d_twice": (lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=1).relu(), v), (IMAGE, rand(4, 4, 3, 3), rand(3, 4, 3, 3)),
                     ["conv", "relu", "conv"]),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1, stride=(1, 2, 1)), (SOLID, rand(3, 4, 3, 3, 2)), ["conv"]),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=3, output_padding=1), (LINE, rand(4, 3, 3)),
                         ["conv_transpose"]),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1), (IMAGE, rand(4, 3, 4, 4), rand(3)),
                         ["conv_transpose", "add"]),
    "conv_transpose2d_dense": (lambda x, w: F.conv_transpose2d(x, w, padding=1), (IMAGE, rand(4, 3, 3, 3)),
                               ["conv_transpose"]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE - 5,), ["pool_max"]),
    "max_pool2d_ceil": (lambda x: F.max_pool2d(x, 3, 2, 0, 1, True), (IMAGE,), ["pool_max"]),
    "max_pool2d_dilated": (lambda x: F.max_pool2d(x, 2, 1, 0, 2), (IMAGE,), ["pool_max"]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (LINE,), ["pool_max"]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, 1), (SOLID,), ["pool_max"]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,), ["pool_sum", "div"]),
    "avg_pool2d_without_pads": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,), ["pool_sum", "div"]),
    "avg_pool2d_ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,), ["pool_sum", "div"]),
    "avg_pool2d_ceil_without_pads": (lambda x: F.avg_pool2d(x, (2, 3), 2, (1, 0), True, False), (IMAGE,), ["pool_sum", "div"]),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,), ["pool_sum", "div"]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2), (LINE,), ["pool_sum", "div"]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x[:, :, :6], (3, 2)), (IMAGE,), ["slice", "reduce_mean"]),
    "batch_norm": (lambda x, w, m, v: F.batch_norm(F.conv2d(x, w), m, v).relu(),
                   (IMAGE, rand(4, 4, 3, 3), rand(4), rand(4).abs() + 0.1), ["conv", "sub", "add", "rsqrt", "mul", "relu"]),
}  # fmt: skip


def close(ours: list[Any], eager: Any) -> float:
    assert [tuple(o.shape) for o in ours] == [tuple(eager.shape)]
    return float((ours[0] - eager.double()).abs().max() / eager.abs().max().clamp(1))


@pytest.mark.parametrize("name", CASES)
def test_against_eager_and_each_other(name: str) -> None:
    function, inputs, expected = CASES[name]
    module = Fn(function).eval()
    eager = module(*inputs)
    by_torch = from_torch(module, inputs)
    assert by_torch.externs == 0, by_torch.diagnostics.messages
    assert [op for op in ops(by_torch.graph) if op not in ("reshape", "constant")] == expected
    assert close(run_imported(by_torch, inputs), eager) < 2e-5
    by_linalg = from_torch(module, inputs, via="linalg")
    assert by_linalg.externs == 0, by_linalg.diagnostics.messages
    assert close(run_imported(by_linalg, inputs), eager) < 2e-5
    verdict = certify(by_torch.graph, by_linalg.graph)
    assert verdict.equivalent, verdict.counterexample


# Attention in a window, as PyTorch programs say it; linalg says the gathers by indices that are computed.
BANDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "unfold": (lambda q, k: torch.einsum("bmk,bmkw->bmw", q, F.pad(k, (0, 0, 4, 4)).unfold(1, 9, 1)[..., ::2]), (ROWS, ROWS + 1),
               ["concat", *["slice"] * 9, "concat", "transpose", "slice", "matmul"]),
    "places of a band": (lambda q, k: torch.einsum("bmk,bmwk->bmw", q, F.pad(k, (0, 0, 4, 4))[:, BAND]), (ROWS, ROWS + 1),
                         ["concat", *["slice"] * 5, "concat", "matmul"]),
    "chunks that overlap": (lambda q, k: torch.einsum("bcxd,bcyd->bcxy", chunks(q), chunks(k)), (ROWS, ROWS + 1),
                            ["slice", "slice", "concat", "slice", "slice", "concat", "matmul"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BANDS)
def test_rows_of_a_band_are_slices(name: str) -> None:
    function, inputs, expected = BANDS[name]
    module = Fn(function).eval()
    imported = from_torch(module, inputs)
    assert imported.externs == 0, imported.diagnostics.messages
    assert [op for op in ops(imported.graph) if op not in ("reshape", "constant")] == expected
    assert close(run_imported(imported, inputs), module(*inputs)) < 2e-5


def test_pads_of_linalg_become_those_of_the_convolution() -> None:
    function, inputs, _ = CASES["conv2d_grouped"]
    graph = from_torch(Fn(function), inputs, via="linalg").graph
    (conv,) = [n for n in graph.nodes if n.op == "conv"]
    assert (conv.attrs["low"], conv.attrs["high"], conv.attrs["groups"]) == ((1, 0), (1, 0), 2)
    assert "concat" not in ops(graph)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: F.max_pool2d(x, 2, return_indices=True)[1].to(x.dtype), (IMAGE,)),
        (lambda x: F.adaptive_avg_pool2d(x, (4, 4)), (IMAGE,)),
    ],
    ids=["indices", "blocks that overlap"],
)
def test_what_windows_cannot_say_stays_opaque(function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    imported = from_torch(Fn(function), inputs)
    assert imported.externs >= 1
    assert close(run_imported(imported, inputs), function(*inputs)) < 2e-5


@pytest.mark.parametrize(
    ("shape", "scale"), [((2, 3, 5), 3), ((1, 3, 6, 5), 2), ((2, 3, 2, 2, 2), (1, 2, 3))]
)
def test_nearest_upsampling_is_a_broadcast(shape: tuple[int, ...], scale: Any) -> None:
    x = rand(*shape)
    module = torch.nn.Upsample(scale_factor=scale)
    imported = from_torch(module, (x,))
    assert imported.externs == 0
    assert [n.op for n in imported.graph.nodes] == ["reshape", "broadcast", "reshape"]
    (ours,) = run_imported(imported, (x,))
    assert torch.equal(ours, module(x).double())


@pytest.mark.parametrize("scale", [1.5, 0.5])
def test_other_scales_stay_opaque(scale: float) -> None:
    """Rounding of places is PyTorch's own."""
    assert from_torch(torch.nn.Upsample(scale_factor=scale), (rand(1, 3, 6, 4),)).externs == 1


@pytest.mark.parametrize("via", ["torch", "linalg"])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("x", "amounts"), [(LINE, (3, 0)), (IMAGE, (1, 2, 3, 1)), (IMAGE, (0, 0, 0, 2))])
def test_borders_made_of_elements_are_slices(via: Any, mode: str, x: Any, amounts: tuple[int, ...]) -> None:
    imported = from_torch(Fn(lambda x: F.pad(x, amounts, mode=mode)), (x,), via=via)
    assert imported.externs == 0, imported.diagnostics.messages
    assert set(ops(imported.graph)) <= {"slice", "concat", "broadcast", "reshape"}
    (ours,) = run_imported(imported, (x,))
    assert torch.equal(ours, F.pad(x, amounts, mode=mode).double())


def test_a_convolution_with_a_mirrored_border_has_nothing_opaque() -> None:
    module = torch.nn.Conv2d(4, 5, 3, padding=2, padding_mode="reflect")
    imported = from_torch(module, (IMAGE,))
    assert imported.externs == 0
    assert "conv" in ops(imported.graph)
    assert close(run_imported(imported, (IMAGE,)), module(IMAGE).detach()) < 2e-5


@pytest.mark.parametrize(("mode", "amounts"), [("reflect", (9, 9)), ("circular", (-1, 2))])
def test_a_wide_mirror_and_what_is_cut_off_stay_opaque(mode: str, amounts: tuple[int, ...]) -> None:
    x = rand(2, 3, 12)
    imported = from_torch(Fn(lambda x: F.pad(x, amounts, mode=mode)), (x,))
    assert imported.externs == 1
    assert close(run_imported(imported, (x,)), F.pad(x, amounts, mode=mode)) == 0
