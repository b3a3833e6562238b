"""What an expert would write for an ordinary program: its kernels, priced as those of a library are.

A kernel of an expert reads each operand from device memory once and writes each result once, at tiles that suit
the GPU: products and attention as `superopt.cost.library` runs them (the fastest of its tiles and splits),
kernels of rows and elements by their bytes. All but the first start early (`superopt.early`), as ours do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from superopt.cost import Target, Traffic, kernel_seconds
from superopt.cost.library import Share, attention_cost, product_cost
from superopt.program import DTYPE_BYTES

Kernels: TypeAlias = tuple[float, ...]
"""The seconds of each."""
# What a block of a kernel of rows or elements takes: few enough that small tensors keep a GPU busy.
BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Expert:
    """The kernels that an expert can choose from, on a GPU, for tensors of a dtype."""

    target: Target
    dtype: str

    def best(self, *ways: Kernels) -> Kernels:
        """The fastest of some ways."""
        return min(ways, key=self.seconds)

    def seconds(self, kernels: Kernels) -> float:
        """What kernels take one after the other, where each starts while the one before it still runs."""
        return sum(kernels) - self.target.early_seconds * (len(kernels) - 1)

    def product(self, rows: int, columns: int, depth: int, *, more: int = 0, vector: float = 0.0) -> Kernels:
        """A product whose epilogue reads `more` elements, and which computes so many `vector` flops beside it.

        Where the depth is split over blocks, none of them has the sums that an epilogue needs: a kernel of its
        own applies it then, as cuBLAS and Inductor have it.
        """
        size = DTYPE_BYTES[self.dtype]
        split = (product_cost(self.target, rows, columns, depth, dtype=self.dtype).seconds,)
        if not more and not vector:
            return split
        extra = Traffic(dram_bytes=more * size, l2_bytes=more * size, vector_flops=vector)
        whole = product_cost(self.target, rows, columns, depth, dtype=self.dtype, extra=extra).seconds
        return self.best((whole,), split + self.elementwise(rows * columns, 1, 1))

    def gated(self, rows: int, inner: int, depth: int) -> Kernels:
        """Both halves of a gate in one product, of which half the columns are written."""
        size = DTYPE_BYTES[self.dtype]
        saved = Traffic(dram_bytes=-rows * inner * size, l2_bytes=-rows * inner * size)
        return (product_cost(self.target, rows, 2 * inner, depth, dtype=self.dtype, extra=saved).seconds,)

    def attention(
        self, heads: int, rows: int, keys: int, width: int, *, key_heads: int = 0, share: Share | float = 1.0
    ) -> Kernels:
        """FlashAttention, or FlashDecoding where that is faster; `share` of the tiles of scores is computed."""
        parts = attention_cost(
            self.target,
            heads,
            rows,
            keys,
            width,
            dtype=self.dtype,
            key_heads=key_heads or heads,
            share=share,
        )
        return tuple(p.seconds for p in parts)

    def rows(self, rows: int, columns: int, read: int, written: int) -> Kernels:
        """One kernel that reads and writes so many matrices; a block has whole rows."""
        return self._moved((read + written) * rows * columns, min(rows, 1 << 30))

    def elementwise(self, elements: int, read: int, written: int) -> Kernels:
        """One kernel of so many elements each way."""
        return self._moved((read + written) * elements, 1 << 30)

    def _moved(self, elements: int, most_blocks: int) -> Kernels:
        size = elements * DTYPE_BYTES[self.dtype]
        blocks = max(1, min(most_blocks, math.ceil(size / BLOCK_BYTES)))
        return (kernel_seconds(Traffic(dram_bytes=size, l2_bytes=size, blocks=blocks), self.target),)
