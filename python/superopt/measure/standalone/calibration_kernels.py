# pyright: basic, reportGeneralTypeIssues=false
"""The kernels that `calibrate.py` times: one that does nothing, and one that copies rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def null():
    """Nothing."""


@triton.jit
def copy(x_ptr, y_ptr, count, words: tl.constexpr, rows: tl.constexpr):
    """Each block copies `count` rows of `words` 16-bit words, every other one of its part."""
    start = tl.program_id(0).to(tl.int64) * count * 2 * words
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, words)[None, :]
    for first in tl.range(0, count, rows, num_stages=4):
        at = start + (first + row) * (2 * words) + column
        inside = (first + row < count) & (column < words)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)
