"""Kernels of libraries: matrix products as cuBLAS runs them, attention as FlashAttention does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from superopt.cost.gpus import Target
from superopt.cost.model import KernelCost, kernel_cost
from superopt.cost.traffic import Traffic, kernel_seconds
from superopt.operators import Move, is_constant, is_contraction, move_of, nest_of
from superopt.program import DTYPE_BYTES, KernelGraph, Node, producers
from superopt.transforms.core import _cost

# Rows and columns of the tiles that cuBLAS has kernels for, and the depth of one trip.
TILES = (
    (128, 256),
    (256, 128),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 32),
    (32, 64),
    (16, 64),
    (16, 32),
)
TILES_F32 = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (16, 32))
DEPTHS, DEPTH_F32 = (64, 128), 16
# A product is left to a library where that takes at most this share of the time.
LEAST_GAIN = 0.95
# Bytes of the tiles of a trip that are under way at once.
STAGES = 3
# The part of the scores that is computed with tiles of so many rows and keys.
Share: TypeAlias = Callable[[int, int], float]


def product_cost(
    target: Target,
    rows: int,
    columns: int,
    depth: int,
    *,
    batch: int = 1,
    dtype: str = "f16",
    operands: tuple[int, int] | None = None,
    split: bool = True,
    extra: Traffic | None = None,
) -> KernelCost:
    """A matrix product as a library runs it: the fastest of its tiles and splits.

    `operands` are the bytes of both where they are fewer than the extents say (one matrix for all of a batch).
    `extra` is what an epilogue adds; with it, as without `split`, the depth is not split over blocks.
    """
    size = DTYPE_BYTES[dtype]
    a, b = operands or (batch * rows * depth * size, batch * depth * columns * size)
    out = batch * rows * columns * size
    best, traffic = math.inf, Traffic()
    numbers = target.numbers()
    for tile_rows, tile_columns in TILES_F32 if dtype == "f32" else TILES:
        if (tile_rows > 64 and tile_rows >= 2 * rows) or (tile_columns > 32 and tile_columns >= 2 * columns):
            continue
        down, across = -(-rows // tile_rows), -(-columns // tile_columns)
        for step in (DEPTH_F32,) if dtype == "f32" else DEPTHS:
            shared = STAGES * (tile_rows + tile_columns) * step * size
            if shared > target.shared_per_block:
                continue
            for parts in _splits(depth, step) if split and extra is None else (1,):
                trips = -(-depth // (step * parts))
                kernel = _cost.KernelTraffic()
                kernel.blocks, kernel.loop_trips = batch * down * across * parts, trips
                kernel.shared_bytes = shared
                kernel.product(numbers, tile_rows, tile_columns, step, kernel.blocks * trips, size)
                kernel.move(numbers, a, batch * rows * depth * size * across, step * size)
                # Two blocks of a cluster, one above the other, fetch the columns that they share once.
                pairs = -(-down // 2) if target.has_copy_engine else down
                kernel.move(numbers, b, batch * depth * columns * size * pairs, step * size)
                kernel.move(numbers, out, out, tile_columns * size)
                if parts > 1:  # partial sums in fp32 pass through L2
                    kernel.l2_bytes += 2 * 4 * batch * rows * columns * parts
                if extra is not None:
                    kernel.dram_bytes += extra.dram_bytes
                    kernel.l2_bytes += extra.l2_bytes
                    kernel.vector_flops += extra.vector_flops
                    kernel.special_operations += extra.special_operations
                if (seconds := _cost.kernel_seconds(numbers, kernel)) < best:
                    best, traffic = seconds, Traffic.of(kernel)
    return KernelCost("matmul", best, traffic)


def contraction_cost(
    node: Node, target: Target, *, operands: tuple[int, int] | None = None, extra: Traffic | None = None
) -> KernelCost:
    """A node that sums products, a matrix product or a convolution, as a library runs it."""
    nest = nest_of(node)
    assert nest is not None
    many, rows, columns, depth = nest.product
    weights = node.operands[1]
    if is_contraction(node) and many > 1 and math.prod(weights.shape[:-2]) == 1:
        rows, many = rows * many, 1  # one matrix for all of the batch
    operands = operands or (node.operands[0].type.bytes, weights.type.bytes)
    dtype = node.operands[0].dtype
    return product_cost(target, rows, columns, depth, batch=many, dtype=dtype, operands=operands, extra=extra)


def left_to_library(graph: KernelGraph, target: Target) -> tuple[int, ...]:
    """The matrix products, by their places in `graph`, that a library runs faster than a kernel of ours.

    Not those of constants and slices, which kernels read where they are.
    """
    made = producers(graph.nodes)

    def whole(node: Node) -> bool:
        before = [made[v] for v in node.operands if v in made]
        return not any(is_constant(n) or move_of(n) is Move.SLICE for n in before)

    return tuple(
        i
        for i, node in enumerate(graph.nodes)
        if is_contraction(node) and whole(node)
        if contraction_cost(node, target).seconds < LEAST_GAIN * kernel_cost(node, target).seconds
    )


def _splits(depth: int, step: int) -> list[int]:
    most = max(depth // (4 * step), 1)
    return [1 << i for i in range(most.bit_length()) if 1 << i <= min(most, 64)]


def attention_cost(
    target: Target,
    heads: int,
    rows: int,
    keys: int,
    width: int,
    *,
    dtype: str = "f16",
    value_width: int | None = None,
    key_heads: int | None = None,
    extra_bytes: int = 0,
    share: Share | float = 1,
    early: bool = False,
) -> tuple[KernelCost, ...]:
    """Attention of `rows` queries for each of `heads` as a library runs it: one kernel, or two with split keys.

    With fewer `key_heads`, the queries of the heads that share keys may be packed as rows of one head. `share`
    is the part of the scores that is computed (about a half where they are causal), or gives it for tiles of so
    many rows and keys, which are computed whole. With `early`, what joins split keys starts while the parts are
    computed, as in FlashInfer.
    """
    best: tuple[KernelCost, ...] = ()
    groups = {(heads, rows), (key_heads or heads, rows * heads // (key_heads or heads))}
    for blocks, packed in sorted(groups):
        for block in (16, 32, 64, 128):
            if block > 16 and block >= 2 * packed:
                continue
            for part in (32, 64, 128):
                for split in _powers(max(keys // part, 1)):
                    if split > 1 and keys // split < part:
                        continue
                    computed = share(block, part) if callable(share) else share
                    made = _attention(
                        target, blocks, packed, keys, width, value_width or width, key_heads or heads, dtype,
                        block, part, split, extra_bytes, computed, early,
                    )  # fmt: skip
                    if made and (not best or sum(k.seconds for k in made) < sum(k.seconds for k in best)):
                        best = made
    return best


def _attention(
    target: Target, heads: int, rows: int, keys: int, width: int, value_width: int, key_heads: int, dtype: str,
    block: int, part: int, split: int, extra: int, share: float, early: bool,
) -> tuple[KernelCost, ...]:  # fmt: skip
    size, numbers = DTYPE_BYTES[dtype], target.numbers()
    down, trips = -(-rows // block), -(-keys // (part * split))
    kernel = _cost.KernelTraffic()
    kernel.blocks, kernel.loop_trips = heads * down * split, max(round(trips * share), 1)
    kernel.shared_bytes = (block * width + 2 * part * (width + value_width)) * size
    if kernel.shared_bytes > target.shared_per_block:
        return ()
    tiles = kernel.blocks * trips * share
    kernel.product(numbers, block, part, width, tiles, size)
    kernel.product(numbers, block, value_width, part, tiles, size)
    # Scale, maximum, difference and sum of each score; its exponential; the sums so far are scaled again.
    kernel.vector_flops += tiles * (5 * block * part + 2 * block * value_width)
    kernel.special_operations += tiles * block * part
    kv, q = key_heads * keys * (width + value_width) * size, heads * rows * (width + value_width) * size
    kernel.move(numbers, kv, heads * keys * (width + value_width) * size * down * share, width * size)
    kernel.move(numbers, q, q, width * size)
    kernel.move(numbers, max(extra, 1), extra, part * size)
    partial = 4 * heads * split * rows * (value_width + 2) if split > 1 else 0
    kernel.l2_bytes += partial
    made = [KernelCost("attention", _cost.kernel_seconds(numbers, kernel), Traffic.of(kernel))]
    if split > 1:
        join = Traffic(
            0, partial, vector_flops=partial / 2, blocks=max(heads * rows, 1), loop_trips=-(-split // 16)
        )
        hidden = target.early_seconds if early else 0.0
        made.append(KernelCost("join", kernel_seconds(join, target) - hidden, join))
    return tuple(made)


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(min(most, 128).bit_length())]
