"""The measure step: all that a prepared folder needs to be measured, with torch and triton and nothing else.

    run.py        the command line, and the order in which rows are tuned and timed
    session.py    one program: workers side by side, interleaved rounds, verdicts
    processes.py  a process for each candidate, that may crash or hang alone
    worker.py     inside such a process: load, check, time, check again
    widening.py   what the interpreter lacks
    device.py     CUDA events with a flushed L2, CUDA graphs; or Triton's interpreter
    checks.py     inputs, and the allowed errors of outputs
    floor.py      the time below which a measurement cannot be true
    intervals.py  medians and their intervals
    tune.py       which parameter points to measure: exhaustive, random, by the model, optuna
    clocks.py     clocks, temperature and driver, where NVML can be asked
    results.py    the results file: whole after every step, resumed from

`superopt-bench prepare` copies this package as `superopt_measure` next to a `measure.py`; it imports nothing of
superopt, so that what runs elsewhere is what is tested here.
"""
