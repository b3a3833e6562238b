"""The muGraph search: fused kernels that no rule named in advance (Mirage, section 4).

optimizer.py       its options, and the entry that every caller uses
descend.py         a search that does not end is done again in parts
plans.py           one search: a program over named axes in, plans of the native core out
exponentials.py    exponentials relative to a maximum that the search never sees
smt.py             the pruning question put to z3
build.py           a plan as a kernel graph with `custom` nodes: steps.py, axis_builder.py, rescale.py
mugraph_search.py  the pass
"""
