"""Kernel graphs over named axes: what partition and the muGraph search have in common.

unfold.py        a graph told without `concat` and `slice`
roles.py         an intermediate in two roles is computed in each
name_axes.py     every dimension gets an axis; views, casts and repeats vanish
axis_table.py    axes while they are named: found equal, split into parts
operations.py    nodes as operations over axes
axis_program.py  the program that results
merge.py         axes that always go together become one
"""
