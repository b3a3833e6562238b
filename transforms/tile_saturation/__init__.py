"""Tile-level equality saturation (Trinity, ASPLOS 2026): the second optimizer, on the tile dialect.

The files in the order in which a program passes through them:

what goes in: a kernel graph as naive tile loops
    constants.py             constants of many numbers are inputs there, and constants again in the kernels
    kept_dims.py             sums in the form of the maxima beside them
    unmerge.py               splits a dimension that reshapes cut in three or more into its parts
    cut_axes.py              which dimensions share an axis, and how each axis is cut
    terms.py                 the language: loops, stores, values and regions (not those of the tile level)
    tile_values.py           the value of a node on one tile
    tile_loops.py            one statement for each node that is stored
    term_bundles.py          merges statements of one form into one over bundles of tensors
encode
    encode.py                translates terms to the native e-graph and back (`transforms/core/egraph`)
    print_egraph.py          prints an e-graph as a drawing or as data
saturate
    saturate.py              applies the rules until a limit
extract
    optimizer.py             the options, and the entry that every caller uses
    search.py                `propose`: saturates each start, takes the best terms, ranks their kernels
    extracted.py             opens bundles, removes dead stores, chooses one order of statements
back to kernels
    exposed.py, accesses.py  upward exposed reads of statements; which loops are grid dimensions
    kernel_builder.py        one outermost statement as one tile program
    library.py               statements that match a library operator
    to_kernels.py            all statements as a kernel graph, tile widths by cost

The passes are `kernel_to_tile_loops.py` and `saturate_tiles.py`.
"""
