"""Tile-level equality saturation (Trinity, ASPLOS 2026): the second optimizer, on the tile dialect.

The files in the order in which a program passes through them:

what goes in: a kernel graph as naive tile loops
    unmerge.py               a dimension that reshapes cut in three or more becomes one for each part
    cut_axes.py              which dimensions are one axis, and how each axis is cut
    terms.py                 the language: loops, stores, values and regions, apart from those of the tile level
    tile_values.py           the value of a node on one tile
    tile_loops.py            one statement for each node that is stored
    term_bundles.py          statements of one form as one statement over bundles of tensors
encode
    encode.py                terms to the native e-graph and back (`transforms/core/egraph`)
    print_egraph.py          an e-graph as a drawing or as data
saturate
    saturate.py              the rules, applied until a limit
extract
    optimizer.py             the options, and the entry that every caller uses
    search.py                `propose`: saturates each start, takes the best terms, ranks their kernels
    extracted.py             bundles opened, dead stores removed, one order of statements
back to kernels
    exposed.py, accesses.py  what statements read from before them; which loops are grid dimensions
    kernel_builder.py        one outermost statement as one tile program
    library.py               statements that are an operator of the library
    to_kernels.py            all statements as a kernel graph, tile widths by cost

The passes are `kernel_to_tile_loops.py` and `saturate_tiles.py`.
"""
