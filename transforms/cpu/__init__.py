"""Tile programs, compiled for the CPU: what is emitted as Triton elsewhere, in memory and on one thread.

source.py     a tile program -> MLIR: the same grid, loops, tiles and masks, as loops over elements
operators.py  what a statement computes: elements that are read where they are needed, tiles where they are kept
products.py   products of tiles, in vectors
writer.py     lines, names, and memory that tiles share
engine.py     MLIR -> functions of this process, by the lowering and the execution engine of the bindings

It is there to run programs where no GPU is, and to measure a space of programs: no product. One thread, and no
cache hints, warps, stages or descriptors: programs that differ in these alone are the same here.
"""
