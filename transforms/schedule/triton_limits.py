"""Limits of Triton on every GPU; the limits of a GPU are in its file in `cost/targets/`."""

from __future__ import annotations

# Least rows, columns and depth of a `tl.dot`.
SMALLEST_DOT = 16
# Most elements of one tensor.
MOST_ELEMENTS = 1 << 20
