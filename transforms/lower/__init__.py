"""Lowering: library operators and block graphs become tile programs.

transposes       --choose-layouts--> maps         the storage order of values between kernels; by the search
reductions       --join-parts------> iterators    sums of parts that the next kernel joins itself; by the search
kernel operators --kernel-to-tile--> tiled        a default schedule, derived from the operator's loop nest
block graphs     --block-to-tile---> tiled        grid, loops, accumulators and maps, as loops and windows
moves            --fold-moves------> tiled        loads that begin at a slice, or turn what they load
twins            --merge-twins-----> tiled        one kernel for those that do the same to other tensors
operators of a block --fuse-thread-graphs--> fused    steps that stay in registers
"""

from __future__ import annotations

from superopt.transforms.lower.lower import lower

__all__ = ["lower"]
