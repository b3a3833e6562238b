"""Kernel graphs over named axes: what partition and the muGraph search have in common.

unfold.py        a graph without `concat` and `slice`
roles.py         computes an intermediate in two roles once for each
name_axes.py     every dimension gets an axis; views, casts and repeats vanish
axis_table.py    axes during naming: unified, and split into parts
operations.py    nodes as operations over axes
axis_program.py  the program that results
merge.py         merges axes that always occur together
"""
