"""Measuring: what is prepared without a GPU, measured with one, tuned, stored and reported.

space.py       the parameter points of a lowered program, filtered by the compiler, ranked by the model, proved
attention.py   where a program holds attention, so that libraries can be asked for it
modules.py     PyTorch modules as rows to compare with
baselines.py   the rows to compare with, as sources
prepare.py     programs -> a folder that is measured elsewhere
standalone/    the measure step itself; copied into that folder, imports nothing of superopt
tuned.py       what was measured to be best, in the store
report.py      results -> tables and plots, HTML and Markdown
"""
