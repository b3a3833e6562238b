"""The parts of one run of the optimizer; `superopt.pipeline` is the flow through them.

settings.py   what a user may set, and the checks of it
context.py    what every step knows: settings, target, report, store, budget
budget.py     how much work searches, checks and other schedules may take
propose.py    the parts of a program, and what each optimizer proposes for them
check.py      the gates that a candidate passes before it may be delivered
choose.py     the best candidate that passes, for a part, for the whole, or the input
outcome.py    what is handed over: programs, proof, report, schedule
reuse.py      what earlier runs found
"""
