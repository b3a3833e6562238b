"""How evaluators rank programs that were measured on the CPU, and what a model that learns saves.

python -m benchmarks.rungs [--seeds 30]
python -m benchmarks.rungs --compiled 24

Of each table of `benchmarks.tuning_tables` (a space of programs, measured whole):

analytic    rank correlation of the analytic model's seconds with the measured ones
left_out    of the learned model, fitted to the other tables alone: leave one program out
online      of the learned model after 48 random measurements of the table, on the rest: median over the seeds;
            and how often it said that the analytic model is better
within_5    evaluations until a program is within 5 % of the best, from the rules on: median and 90th percentile
            over the seeds, of the default strategy alone, and with the learned model choosing what is measured

With --compiled, so many programs of each table, evenly from the fastest to the slowest, are compiled for sm_90,
and priced by tiles, kernels and machine code (`tuning.evaluators`): rank correlations over these programs, and
`price_seconds`, the median processor seconds of an evaluation. Kernels of a GPU need not rank as code for a CPU
does: this says how far prices of a GPU carry over, and what each rung costs, not how well it predicts a GPU.

Results are kept in benchmarks/results/rungs.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.record import commit, keep, load
from benchmarks.tuning_tables import FOLDER, PROGRAMS, course, made

from superopt.cost import target
from superopt.cost.learned import boosted_trees, spearman
from superopt.program import KernelGraph
from superopt.transforms.schedule.fit import Compiler
from superopt.tuning import strategies
from superopt.tuning.evaluators import ByCode, ByKernels, ByTiles, Evaluation
from superopt.tuning.learned import Learned
from superopt.tuning.table import Table, read_table

MEASUREMENTS = 48


def measured(table: Table) -> list[tuple[KernelGraph, float]]:
    """The programs of a table that ran, and their seconds."""
    return [(p, e.seconds) for p, e in table.evaluations.items() if e.seconds is not None]


def ranked(table: Table, programs: Sequence[KernelGraph], price: Callable[[KernelGraph], float]) -> float:
    """The rank correlation of a price with the measured seconds."""
    return round(spearman([(table.evaluations[p].seconds or 0.0, price(p)) for p in programs]) or 0.0, 3)


def analytic(table: Table, program: KernelGraph) -> float:
    """The logarithm of the analytic model's seconds."""
    return table.features[program]["log_seconds"]


def left_out(tables: dict[str, Table], name: str) -> float:
    """The rank of a model that never saw the program."""
    rows = [
        (list(t.features[p].values()), math.log(s) - analytic(t, p))
        for other, t in tables.items()
        if other != name
        for p, s in measured(t)
    ]
    trees = boosted_trees([row for row, _ in rows], [off for _, off in rows])
    table = tables[name]

    def price(program: KernelGraph) -> float:
        return analytic(table, program) + float(trees.predict([list(table.features[program].values())])[0])

    return ranked(table, [p for p, _ in measured(table)], price)


def online(table: Table, seed: int) -> tuple[float, bool]:
    """The rank on what was not measured, and whether the correction was used."""
    programs = [p for p, _ in measured(table)]
    random.Random(seed).shuffle(programs)
    model = Learned(table.features.get)
    model.learn(programs[:MEASUREMENTS], table.evaluate(programs[:MEASUREMENTS]))
    rest = programs[MEASUREMENTS:]
    prices = {p: e.seconds or 0.0 for p, e in zip(rest, model.evaluate(rest), strict=True)}
    return ranked(table, rest, lambda p: prices[p]), model.used


def needed(table: Table, seed: int, screen: Learned | None) -> int:
    """Evaluations of the default strategy until one is within 5 % of the best."""
    seconds = course(table, strategies.names()[0], seed, 1.05, screen)
    return next(i + 1 for i, s in enumerate(seconds) if s <= 1.05 * table.best)


def percentiles(found: Sequence[int]) -> list[int]:
    """Median and 90th percentile."""
    ordered = sorted(found)
    return [statistics.median_high(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1]]


def row(tables: dict[str, Table], name: str, seeds: int) -> dict[str, Any]:
    """The figures of one table."""
    table = tables[name]
    learned = [online(table, seed) for seed in range(seeds)]
    return {
        "seeds": seeds,
        "commit": commit(),
        "programs": len(measured(table)),
        "analytic": ranked(table, [p for p, _ in measured(table)], lambda p: analytic(table, p)),
        "left_out": left_out(tables, name),
        "online": round(statistics.median(rank for rank, _ in learned), 3),
        "analytic_is_better": sum(not used for _, used in learned),
        "within_5": percentiles([needed(table, seed, None) for seed in range(seeds)]),
        "within_5_screened": percentiles(
            [needed(table, seed, Learned(table.features.get)) for seed in range(seeds)]
        ),
    }


def compiled(name: str, count: int) -> dict[str, Any]:
    """The rungs above the analytic one, on some programs of a table."""
    data = json.loads((FOLDER / f"{name}.json").read_bytes())
    programs, seconds = made(name, data), [row["seconds"] for row in data["programs"]]
    able = sorted((i for i in programs if seconds[i] is not None), key=lambda i: seconds[i])
    taken = [able[round(i * (len(able) - 1) / (count - 1))] for i in range(count)]
    compiler = Compiler(target("sm_90"))
    found: dict[str, list[Evaluation]] = {}
    for evaluator in (ByTiles(compiler.target), ByKernels(compiler), ByCode(compiler)):
        found[evaluator.name] = evaluator.evaluate([programs[i].program for i in taken])
    priced = [n for n in range(count) if all(e[n].seconds is not None for e in found.values())]
    ranks = {
        rung: spearman([(seconds[taken[n]], e[n].seconds or 0.0) for n in priced])
        for rung, e in found.items()
    }
    return {
        "compiled": count,
        "priced": len(priced),
        "compiled_commit": commit(),
        "rank": {rung: round(rank or 0.0, 3) for rung, rank in ranks.items()},
        "price_seconds": {rung: round(statistics.median(x.work for x in e), 4) for rung, e in found.items()},
    }


def main() -> None:
    """Rank, print, store."""
    parser = argparse.ArgumentParser(description="Evaluators against measured tables.")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--compiled", type=int, help="compile so many programs of each table instead")
    given = parser.parse_args()
    tables = {name: read_table(FOLDER / f"{name}.json") for name in PROGRAMS}
    rows = load("rungs")
    for name in given.programs.split(","):
        found = compiled(name, given.compiled) if given.compiled else row(tables, name, given.seeds)
        rows[name] = rows.get(name, {}) | found
        keep("rungs", rows, target="cpu")
        print(f"{name:16} {json.dumps(rows[name])}", flush=True)


if __name__ == "__main__":
    main()
