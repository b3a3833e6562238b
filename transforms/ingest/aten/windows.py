"""Convolutions and pooling of PyTorch, as nests over windows."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from superopt.program import Attr, Value
from superopt.transforms.ingest.aten.table import Args, fill, handles, value_of
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.torch_dialect import TorchReader


def _each(numbers: Any, rank: int) -> tuple[int, ...]:
    """One number for each spatial dimension, where one may stand for all."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return tuple(listed * rank if len(listed) == 1 else listed)


def _batched(r: TorchReader, x: Value, rank: int) -> Value:
    """`x` as (n, c, spatial...), with n = 1 where it lacks a batch."""
    return x if len(x.shape) == rank + 2 else r.build.reshape(x, (1, *x.shape))


def _like(r: TorchReader, y: Value, x: Value, rank: int) -> Value:
    """`y` without the batch of 1, where `x` lacks one."""
    return y if len(x.shape) == rank + 2 else r.build.reshape(y, y.shape[1:])


# --- convolutions ---------------------------------------------------------------------------------------


@handles("convolution", "_convolution")
def _convolution(r: TorchReader, args: Args) -> Value:
    """(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)

    A tuple as padding has the numbers before and those after.
    """
    x, weight = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
    transposed, groups = args[6], args[8]
    rank = len(weight.shape) - 2
    strides, dilations, extra = (_each(args[i], rank) for i in (3, 5, 7))
    pads = cast("tuple[Any, Any]", args[4]) if isinstance(args[4], tuple) else (args[4], args[4])
    low, high = (_each(p, rank) for p in pads)
    windows: dict[str, Attr] = {
        "strides": strides,
        "dilations": dilations,
        "low": low,
        "high": high,
        "groups": groups,
    }
    source = _batched(r, x, rank)
    if transposed:
        y = r.build.emit("conv_transpose", source, weight, **windows, extra=extra)
    else:
        y = r.build.emit("conv", source, weight, **windows)
    if args[2] is not None:
        bias = r.tensor(args[2], r.element)
        y = r.build.emit("add", y, r.build.reshape(bias, (*bias.shape, *(1,) * rank)))
    return _like(r, y, x, rank)


@handles("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(r: TorchReader, args: Args) -> Value:
    """(x, weight, bias, stride, padding, dilation, groups); the padding may be "same" or "valid"."""
    x, weight, bias, strides, pads, dilations, groups = args
    if isinstance(pads, str):
        sizes = r.shape_of(weight)[2:]
        same = pads == "same"
        spans = [d * (k - 1) * same for k, d in zip(sizes, _each(dilations, len(sizes)), strict=True)]
        pads = tuple(span // 2 for span in spans), tuple(span - span // 2 for span in spans)
    return _convolution(r, [x, weight, bias, strides, pads, dilations, False, 0, groups])


@handles("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(r: TorchReader, args: Args) -> Value:
    """(x, weight, bias, stride, padding, output_padding, groups, dilation)"""
    x, weight, bias, strides, pads, extra, groups, dilations = args
    return _convolution(r, [x, weight, bias, strides, pads, dilations, True, extra, groups])


# --- pooling --------------------------------------------------------------------------------------------


def _far(extent: int, size: int, stride: int, dilation: int, pad: int, *, ceil: bool) -> int:
    """The padding behind an extent: with `ceil`, as much as the last window that starts before it needs."""
    if not ceil:
        return pad
    span = dilation * (size - 1) + 1
    count = math.ceil((extent + 2 * pad - span) / stride) + 1
    if (count - 1) * stride >= extent + pad:
        count -= 1
    return max((count - 1) * stride + span - extent - pad, 0)


def _pool(
    r: TorchReader,
    op: str,
    x: Value,
    sizes: Any,
    strides: Any,
    pads: Any,
    dilations: Any,
    *,
    rank: int,
    ceil: bool,
) -> tuple[Value, dict[str, tuple[int, ...]]]:
    sizes = _each(sizes, rank)
    strides = _each(strides, rank) if strides else sizes
    low, dilations = _each(pads, rank), _each(dilations, rank)
    columns = zip(x.shape[-rank:], sizes, strides, dilations, low, strict=True)
    high = tuple(_far(*column, ceil=ceil) for column in columns)
    windows = {"sizes": sizes, "strides": strides, "dilations": dilations, "low": low, "high": high}
    made = r.build.emit(op, _batched(r, x, rank), **windows)
    return _like(r, made, x, rank), windows


def _largest(r: TorchReader, args: Args, rank: int) -> Value:
    """(x, kernel_size, stride, padding, dilation, ceil_mode)"""
    sizes, strides, pads, dilations, ceil = args[1:6]
    made, _ = _pool(
        r, "pool_max", value_of(r, args[0]), sizes, strides, pads, dilations, rank=rank, ceil=ceil
    )
    return made


def _largest_with_index(r: TorchReader, args: Args, rank: int) -> tuple[Any, Any]:
    """The values, and their indices as a separate operation, which is dropped unless used."""
    return _largest(r, args, rank), r.pooled_index(args, rank)


def _average(r: TorchReader, args: Args, rank: int) -> Value:
    """(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)"""
    sizes, strides, pads, ceil, count_pads = args[1:6]
    divisor = args[6] if len(args) > 6 else None
    x = r.build.cast(value_of(r, args[0]), "f32")  # PyTorch sums in f32
    total, windows = _pool(r, "pool_sum", x, sizes, strides, pads, 1, rank=rank, ceil=ceil)
    counts = [
        _counted(n, e, k, s, p, pads=count_pads)
        for n, e, k, s, p in zip(
            total.shape[-rank:],
            x.shape[-rank:],
            windows["sizes"],
            windows["strides"],
            windows["low"],
            strict=True,
        )
    ]
    if divisor is not None:
        made = r.build.emit("div", total, fill(r, divisor, total))
    else:
        every = np.ones(())
        for count in counts:
            every = np.multiply.outer(every, count)
        made = r.build.emit("div", total, r.build.constant(every, "f32"))
    return r.build.cast(made, r.element)


def _counted(
    count: int, extent: int, size: int, stride: int, pad: int, *, pads: bool
) -> np.ndarray[Any, Any]:
    """How many elements along one dimension PyTorch counts in each window: padding too, with `pads`."""
    first = np.arange(count) * stride - pad
    last = np.minimum(first + size, extent + pad)
    return last - first if pads else np.minimum(last, extent) - np.maximum(first, 0)


def _register(rank: int) -> None:
    handles(f"max_pool{rank}d")(lambda r, args: _largest(r, args, rank))
    handles(f"max_pool{rank}d_with_indices")(lambda r, args: _largest_with_index(r, args, rank))
    handles(f"avg_pool{rank}d")(lambda r, args: _average(r, args, rank))
    handles(f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d")(
        lambda r, args: _adaptive(r, args, rank)
    )


for _rank in (1, 2, 3):
    _register(_rank)


def _adaptive(r: TorchReader, args: Args, rank: int) -> Value:
    """The mean of blocks side by side, where the sizes divide the extents."""
    x, sizes = r.build.cast(value_of(r, args[0]), "f32"), _each(args[1], rank)
    extents = x.shape[-rank:]
    if any(e % n for e, n in zip(extents, sizes, strict=True)):
        raise NotExpressible(f"adaptive pooling of {list(extents)} to {list(sizes)}, which overlaps")
    lead = x.shape[:-rank]
    cut = [f for e, n in zip(extents, sizes, strict=True) for f in (n, e // n)]
    blocks = r.build.reshape(x, (*lead, *cut))
    mean = r.build.reduce("mean", blocks, [len(lead) + 2 * i + 1 for i in range(rank)])
    return r.build.cast(r.build.reshape(mean, (*lead, *sizes)), r.element)


# --- larger images ------------------------------------------------------------------------------------------


@handles("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _upsample_nearest(r: TorchReader, args: Args) -> Value:
    """(x, sizes, scales): each element of an image as often, along each dimension, as the result is larger."""
    x, sizes = value_of(r, args[0]), args[1]
    spatial, scales = x.shape[2:], [float(s) for s in args[2] or ()]
    times = [n / e for n, e in zip(sizes, spatial, strict=True)] if sizes is not None else scales
    if len(times) != len(spatial) or any(t < 1 or t != int(t) for t in times) or (scales and scales != times):
        raise NotExpressible("a result that is not a whole number of times as large")
    apart, wide = [*x.shape[:2]], [*x.shape[:2]]
    for extent, count in zip(spatial, map(int, times), strict=True):
        apart, wide = [*apart, extent, 1], [*wide, extent, count]
    spread = r.build.broadcast(r.build.reshape(x, apart), wide)
    return r.build.reshape(spread, (*x.shape[:2], *(e * int(t) for e, t in zip(spatial, times, strict=True))))
