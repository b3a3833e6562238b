"""Schedules: every choice of tile extents, splits and launches, before the compiler has spoken and after.

tiles.py     tile extents that a library operator starts with, and the depth of a trip of a product
widths.py    tile widths that loop variables may have, and the cheapest of them
triton_limits.py  what Triton takes, whatever the GPU
launch.py    warps and pipeline stages that a kernel starts with, and those that it may have
retile.py    a tile program with other tile extents
splits.py    a program with other numbers of blocks for a reduction
tilings.py   which other tile extents and splits there are, fastest predicted first
fit.py       compiles, and takes other schedules where kernels spill or do not fit
"""
