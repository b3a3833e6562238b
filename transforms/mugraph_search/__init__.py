"""The muGraph search: fused kernels without predefined rules (Mirage, section 4).

optimizer.py       its options, and the entry that every caller uses
descend.py         repeats a search that does not finish in parts
plans.py           one search: takes a program over named axes, returns plans of the native core
exponentials.py    exponentials relative to a maximum that is hidden from the search
smt.py             the pruning question, answered by z3
build.py           a plan as a kernel graph with `custom` nodes: steps.py, axis_builder.py, rescale.py
mugraph_search.py  the pass
"""
