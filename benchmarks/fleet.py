"""A fleet of workers, simulated: nothing here ran on more than one machine.

python -m benchmarks.fleet --models [--layers 4] [--width 256]
python -m benchmarks.fleet

With --models: ten models of Hugging Face in small configurations are imported, all of one width, and cut into
segments; segments of one hash are the same program and tuned once (`run/propose.py`, the store). `parts` are all
of them, `within` those that are left once each model shares among its layers, `between` once models share, too.
Kept in benchmarks/results/shared.json.

Without: jobs, each one program to tune, on 10 to 1,000 workers. What a job takes is drawn from processor seconds
that were measured: search and evaluations of the programs in tuning.json, proofs of those in ptx.json, and
compilation by the price of the "kernels" rung in rungs.json. Workers fail (an exponential time to failure), and
are replaced; their job starts again elsewhere, as `tuning/pool.py` has it. A straggler takes several times as
long; with `twice`, a job that took a multiple of the median is begun once more, and the first to end counts: the
tool does not do that yet, and the difference says whether it should. Kept in benchmarks/results/fleet.json,
labelled as simulated.
"""

# pyright: reportUnknownMemberType=false
# transformers is partly typed.

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.record import commit, keep, load

# Families of models, and what of their configuration is not the default of `_model`.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 896},
    "mistral": {"num_key_value_heads": 2, "intermediate_size": 896},
    "qwen2": {"num_key_value_heads": 2, "intermediate_size": 896},
    "qwen3": {"num_key_value_heads": 2, "intermediate_size": 768, "head_dim": 64},
    "gemma": {"num_key_value_heads": 1, "intermediate_size": 1024, "head_dim": 64},
    "phi": {"intermediate_size": 1024},
    "gpt2": {"n_inner": 1024},
    "gpt_neox": {"intermediate_size": 1024},
    "bert": {"intermediate_size": 1024},
    "roberta": {"intermediate_size": 1024},
}
TOKENS = 16

# --- what is shared ----------------------------------------------------------------------------------------


def hashes(name: str, layers: int, width: int) -> list[str]:
    """The hashes of a model's segments, in order."""
    from superopt.run.propose import parts
    from superopt.verify import program_hash

    return [program_hash(part.graph) for part in parts(_model(name, layers, width)) if not part.whole]


def _model(name: str, layers: int, width: int) -> Any:
    import torch
    from transformers import AutoConfig, AutoModel

    from superopt.transforms.ingest import from_torch

    config: Any = AutoConfig.for_model(
        name, hidden_size=width, num_attention_heads=width // 64, num_hidden_layers=layers, vocab_size=512,
        max_position_embeddings=64, **MODELS[name],
    )  # fmt: skip
    config._attn_implementation, config.use_cache = "eager", False

    class Hidden(torch.nn.Module):
        """What the last layer gives."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.model: Any = AutoModel.from_config(config).eval()

        def forward(self, tokens: Any) -> Any:
            return self.model(input_ids=tokens)[0]

    return from_torch(Hidden(), (torch.arange(TOKENS)[None] + 3,)).graph


def shared(found: dict[str, list[str]]) -> dict[str, dict[str, int]]:
    """How many segments each model has, and how many of them nobody had before; models in order."""
    rows: dict[str, dict[str, int]] = {}
    known = set[str]()
    for name, segments in found.items():
        own = set(segments)
        rows[name] = {"parts": len(segments), "within": len(own), "between": len(own - known)}
        known |= own
    return rows


# --- the fleet ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fleet:
    """Workers, and what befalls them; times in seconds, of `slow` a share of jobs."""

    workers: int
    failure: float = 3600.0
    replaced: float = 60.0
    slow: float = 0.02
    slower: float = 10.0
    # After so many medians, a job is begun once more.
    patience: float = 3.0
    twice: bool = True


@dataclass(order=True)
class _Event:
    time: float
    number: int
    job: int = field(compare=False)
    worker: int = field(compare=False)
    what: str = field(compare=False)
    begun: float = field(compare=False)


def simulated(fleet: Fleet, jobs: Sequence[float], seed: int) -> dict[str, float]:
    """Wall seconds until all jobs have an answer, and what of the workers' time went to answers that count."""
    rng, numbers = random.Random(seed), itertools.count()
    median = statistics.median(jobs)
    waiting, late = list(range(len(jobs)))[::-1], list[int]()
    running: dict[int, int] = dict.fromkeys(range(len(jobs)), 0)
    done, events, lost, useful = set[int](), list[_Event](), 0, 0.0
    idle, now, copies = list(range(fleet.workers)), 0.0, 0

    def begin(job: int, worker: int) -> None:
        takes = jobs[job] * (fleet.slower if rng.random() < fleet.slow else 1.0)
        fails = rng.expovariate(1 / fleet.failure)
        what = "failed" if fails < takes else "ended"
        running[job] += 1
        heapq.heappush(events, _Event(now + min(fails, takes), next(numbers), job, worker, what, now))
        if fleet.twice and running[job] == 1:
            at = now + fleet.patience * median
            heapq.heappush(events, _Event(at, next(numbers), job, worker, "late", now))

    while len(done) < len(jobs):
        while idle and (waiting or late):
            job = waiting.pop() if waiting else late.pop()
            if job not in done:
                begin(job, idle.pop())
        event = heapq.heappop(events)
        now = event.time
        if event.what == "late":
            if event.job not in done and running[event.job] == 1:
                late.append(event.job)
                copies += 1
        elif event.what == "replaced":
            idle.append(event.worker)
        elif event.what == "failed":
            running[event.job] -= 1
            lost += 1
            if event.job not in done and not running[event.job]:
                waiting.append(event.job)
            at = now + fleet.replaced
            heapq.heappush(events, _Event(at, next(numbers), event.job, event.worker, "replaced", now))
        else:
            running[event.job] -= 1
            idle.append(event.worker)
            if event.job not in done:
                done.add(event.job)
                useful += jobs[event.job]
    return {
        "wall_seconds": round(now, 1),
        "efficiency": round(useful / (fleet.workers * now), 3),
        "failures": lost,
        "begun_again": copies,
    }


def measured_jobs() -> list[float]:
    """Processor seconds of tuning a program, of each that all stages were measured of."""
    tuning, proofs = load("tuning"), load("ptx")
    prices = [row["price_seconds"]["kernels"] for row in load("rungs").values() if "price_seconds" in row]
    compiled = statistics.median(prices) if prices else 1.0
    found: list[float] = []
    for name, row in tuning.items():
        proof = proofs.get(name, {})
        if "certificate_seconds" not in proof:
            continue
        at = proof["targets"]["sm_90"]
        proved = proof["certificate_seconds"] + at.get("ttir_seconds", 0.0)
        proved += sum(kernel["ptx_seconds"] for kernel in at.get("kernels", []))
        # Four kinds of runs, from each of the seeds; one program in eight is compiled.
        priced = row["tune_cpu_seconds"] / (4 * row["seeds"]) + row["evaluations"] / 8 * compiled
        found.append(row["search_cpu_seconds"] + priced + proved)
    return found


def main() -> None:
    """Simulate, print, store."""
    parser = argparse.ArgumentParser(description="A simulated fleet, and what models share.")
    parser.add_argument("--models", action="store_true", help="import ten models and count what they share")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.models:
        found: dict[str, list[str]] = {}
        for name in MODELS:
            found[name] = hashes(name, given.layers, given.width)
            rows = shared(found)
            keep("shared", rows, commit=commit(), layers=given.layers, width=given.width)
            print(f"{name}: {rows[name]}", flush=True)
        return
    measured = measured_jobs()
    rng = random.Random(0)
    jobs = [rng.choice(measured) for _ in range(given.jobs)]
    rows: dict[str, Any] = {}
    for workers, twice in itertools.product((10, 30, 100, 300, 1000), (True, False)):
        fleet = Fleet(workers, twice=twice)
        runs = [simulated(fleet, jobs, seed) for seed in range(given.seeds)]
        medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        rows.setdefault(str(workers), {})["twice" if twice else "once"] = medians
        print(workers, "twice" if twice else "once", json.dumps(medians), flush=True)
    middle = round(statistics.median(measured), 2)
    keep(
        "fleet",
        rows,
        simulated=True,
        commit=commit(),
        jobs=given.jobs,
        programs_measured=len(measured),
        job_cpu_seconds=[round(min(measured), 2), middle, round(max(measured), 2)],
        fleet={k: v for k, v in asdict(Fleet(1)).items() if k not in ("workers", "twice")},
    )


if __name__ == "__main__":
    main()
