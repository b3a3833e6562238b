"""Tile widths of loop variables: the choices, the cheapest combination, and what a block can hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from superopt.cost.gpus import Target
from superopt.program import Compute, Load, Loop, Statement, TileProgram
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT

# Widths that a tile may have, from the least that a matrix product takes; each divides its extent where one does.
WIDTHS = tuple(SMALLEST_DOT << i for i in range(5))
# Widths that tiles may have, too, in kernels without products: along what is contiguous in memory (a loop over a
# long row waits in each of its trips), and along other dimensions (a row for each block).
WIDE, NARROW = (512, 1024, 2048, 4096), (1, 2, 4, 8)
# A loop of more trips than this is offered widths that reach past its end.
MANY_TRIPS = 16
# Widths at which costs are estimated before one is chosen, the best guess first.
_NOMINAL = (64, 128, 32, 16)
# Extents up to this are not cut, as a tile may hold them whole.
WHOLE = 64


def width_choices(extent: int, more: Sequence[int] = ()) -> list[int]:
    """The widths, `more` among them, that divide `extent`; where none does, the extent itself and those that
    reach past its end, as do wider ones of `more` where dividing ones take many trips (32,000 is 125 x 256).
    """
    widths = sorted((*more, *WIDTHS))
    if any(extent % w == 0 and w <= extent for w in WIDTHS):
        dividing = [w for w in widths if extent % w == 0 and w <= extent]
        many = extent > MANY_TRIPS * dividing[-1]
        return dividing + [w for w in widths if many and dividing[-1] < w < extent]
    return [extent, *(w for w in widths if w < extent and extent > WHOLE)]


def nominal_width(extent: int) -> int:
    """The width below `extent` at which costs are estimated before one is chosen: one that divides it, else the
    best guess; 0 where all are larger.
    """
    dividing = (w for w in _NOMINAL if extent % w == 0 and w < extent)
    return next(dividing, next((w for w in _NOMINAL if w < extent), 0))


def cheapest(choices: Sequence[Sequence[int]], cost: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """The cheapest combination: of all for two widths, else one or two at a time, until that no longer helps."""
    if len(choices) <= 2:
        return min(itertools.product(*choices), key=cost)
    longest = max(map(len, choices))
    starts = sorted((tuple(c[min(i, len(c) - 1)] for c in choices) for i in range(longest)), key=cost)
    return min((_descend(choices, start, cost) for start in starts[:2]), key=cost)


def _descend(
    choices: Sequence[Sequence[int]], best: tuple[int, ...], cost: Callable[[tuple[int, ...]], float]
) -> tuple[int, ...]:
    before = None
    while best != before:
        before = best
        for i, options in enumerate(choices):
            best = min(best, *((*best[:i], o, *best[i + 1 :]) for o in options), key=cost)
        if best == before:
            best = next((n for n in _neighbours(choices, best) if cost(n) < cost(best)), best)
    return best


def _neighbours(choices: Sequence[Sequence[int]], chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """`chosen` with two widths each exchanged for the next wider or narrower one."""
    for i, j in itertools.combinations(range(len(choices)), 2):
        for up, along in itertools.product((-1, 1), repeat=2):
            moved = list(chosen)
            for at, step in ((i, up), (j, along)):
                index = choices[at].index(chosen[at]) + step
                moved[at] = choices[at][index] if 0 <= index < len(choices[at]) else chosen[at]
            yield tuple(moved)


def fits(program: TileProgram, target: Target) -> bool:
    """Whether each tile stays in the registers of a block, and what a trip loads twice in its shared memory."""
    tiles = (s.result.type.elements for s in program.statements() if isinstance(s, Load | Compute))
    return max(tiles, default=0) <= target.registers and 2 * _loaded(program.body) <= target.shared_per_block


def _loaded(body: Sequence[Statement]) -> int:
    """The most bytes that one trip of a loop in `body`, or the statements outside loops, load."""
    here = [s.result.type.bytes for s in body if isinstance(s, Load) and s.buffer.in_memory]
    return max(sum(here), *(_loaded(s.body) for s in body if isinstance(s, Loop)), 0)
