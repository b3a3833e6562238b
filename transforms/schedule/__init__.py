"""Schedules: every choice of tile extents, splits and launches, before and after compilation.

tiles.py     default tile extents of library operators, and the depth of a trip of a product
widths.py    tile widths that loop variables may have, and the cheapest of them
triton_limits.py  limits of Triton on every GPU
launch.py    default warps and pipeline stages of a kernel, and the other choices
resize.py    a block graph with other grid and loop extents
retile.py    a tile program with other tile extents
splits.py    a program with other numbers of blocks for a reduction
tilings.py   the other tile extents and splits, fastest predicted first
fit.py       compiles, and chooses other schedules where kernels spill or do not fit
kept.py      why a kernel keeps bank conflicts or sectors beyond need: what else was tried
"""
