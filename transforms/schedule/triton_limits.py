"""What Triton takes, whatever the GPU; what a GPU takes is in its file in `cost/targets/`."""

from __future__ import annotations

# Rows, columns and depth of a `tl.dot` at least.
SMALLEST_DOT = 16
# Elements of one tensor at most.
MOST_ELEMENTS = 1 << 20
