"""The shape of a program's kernels: tile sizes, splits, launches, decided by what the compiler says of them.

choose.py    compiles, and takes others where kernels spill or do not fit
tilings.py   which other tiles and splits there are, fastest predicted first
retile.py    a tile program with other tile sizes
splits.py    a program with other numbers of blocks for a reduction
"""

from __future__ import annotations

from superopt.shaping.choose import Shaped, as_scheduled, shape

__all__ = ["Shaped", "as_scheduled", "shape"]
