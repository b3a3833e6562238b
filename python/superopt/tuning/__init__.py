"""The choices of several passes, searched together: what is best for one pass may spoil what a later one can do.

space.py        a program, and the passes whose decisions may be made otherwise; a question becomes a program
plan.py         which candidate each part of a program becomes, as decisions of a pass
evaluators.py   what a program costs: by its tiles, by its compiled kernels
by_cpu.py       what it takes on the CPU, measured
table.py        spaces that were measured whole, searched by looking seconds up
strategies/     which questions to ask next, a file each
learned.py      the analytic model, corrected by what a dearer evaluator said
confstore.py    choices that were good before
hidden.py       a space beyond 2^40, whose seconds a hidden model gives
log.py          the trials of a run, which it goes on from
pool.py         programs tuned in processes; ray_pool.py: on the machines of a Ray cluster
loop.py         questions, programs, prices: until the evaluations are spent
improve.py      the pipeline's result, tuned: what is found goes through the gates of every candidate

The method is that of XTAT (Phothilimthana et al., A Flexible Approach to Autotuning Multi-Pass Machine Learning
Compilers, PACT 2021): passes stay as they are, one changes a choice, those behind it repair theirs.
"""
