"""Tile-level equality saturation (Trinity, ASPLOS 2026): the second optimizer, on the tile dialect.

loops.py                 programs of tile loops as terms, printed and executed
axes.py                  which dimensions of a kernel graph are one axis, and how it is cut
tile_loops.py            kernel graph -> naive tile loops
encode.py                tile loops <-> the native e-graph
to_kernels.py            an extracted term -> kernels as tile programs
saturate_tiles.py        the pass and `propose`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.transforms.tile_saturation.search import SearchOptions, SearchResult, propose

__all__ = ["SearchOptions", "SearchResult", "propose"]


def __getattr__(name: str) -> object:
    """The names of `__all__`, imported when asked for."""
    if name not in __all__:
        raise AttributeError(name)
    from superopt.transforms.tile_saturation import search

    return getattr(search, name)
