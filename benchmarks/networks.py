"""The networks of two papers on derived expressions through the whole flow, as a user's modules.

    python -m benchmarks.networks                        every network, kept in benchmarks/results/networks.json
    python -m benchmarks.networks --programs dcgan       some of them
    python -m benchmarks.networks --table                put what is kept into docs/benchmarking.md

Each goes through `superopt.optimize` in a process of its own, with its certificate and its bundle, whose kernels
then run on this machine (compiled for the CPU, from their tile programs) beside the module in fp64 and in f16,
whose products are rounded once, as by matrix units.
`seconds` are of the clock on the wall, `cpu_seconds` those of all processes. Rows of an earlier run are kept;
`--again` repeats them.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.campaign import ROOT, Campaign, without_places
from benchmarks.verification_before import commit

NAMES = (
    "resnet18", "csrnet", "inception_v3", "bert", "resnet3d18", "infogan", "dcgan", "srcnn", "gcn", "longformer"
)  # fmt: skip


def measure(name: str, gpu: str, budget: float) -> dict[str, Any]:
    """The row of a network."""
    from benchmarks.expressions import modules

    module, inputs = getattr(modules, name)()
    return measured(module, inputs, gpu, budget)


def measured(
    module: Any, inputs: tuple[Any, ...], gpu: str, budget: float, against: str = "operators"
) -> dict[str, Any]:
    """The row of a module in f16; against the best that a user has, products may be left to a library."""
    import torch

    import superopt
    from superopt.transforms.ingest.against_module import products_in_f32

    start, worked = time.monotonic(), _worked()
    found = superopt.optimize(
        module, inputs, target=gpu, budget=budget, against=against, allow="congruence-without-bound",
        store=None, interpret="cpu",
    )  # fmt: skip
    seconds, worked = time.monotonic() - start, _worked() - worked
    report = found.report
    row: dict[str, Any] = {
        "commit": commit(ROOT),
        "budget": budget,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(worked, 1),
        "extern": sum(n.op == "extern" for n in superopt.from_torch(module, inputs).graph.nodes),
        "improved": report.improved,
        "us": round(_least(report) * 1e6, 1),
        "operators_us": round(report.input_predicted_seconds * 1e6, 1),
        "inductor_us": round(report.baseline_seconds * 1e6, 1),
        "kernels": len(report.kernels),
        "optimizers": sorted({c.optimizer for c in report.candidates if c.outcome == "chosen"}),
        "guarantee": report.guarantee,
        "remarks": [without_places(r) for r in report.remarks],
    }
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "bundle")
        row["bundle_files"] = len(list((Path(folder) / "bundle").iterdir()))
    start = time.monotonic()
    with torch.no_grad():
        wanted = _results(module.double()(*(x.double() for x in inputs)))
        with products_in_f32(inputs):
            eager = _results(module.half()(*inputs))
        ours = _results(found(*inputs))
    row["error"], row["eager_error"] = _error(ours, wanted), _error(eager, wanted)
    row["run_seconds"] = round(time.monotonic() - start, 1)
    return row


def _least(report: Any) -> float:
    """What is delivered takes, or the best of what was found for the whole where the input is kept."""
    found = [c.compiled_seconds or c.predicted_seconds for c in report.candidates if c.segment is None]
    return report.predicted_seconds if report.improved or not found else min(found)


def _results(made: Any) -> list[Any]:
    return [*cast("tuple[Any, ...]", made)] if isinstance(made, tuple) else [made]


def _error(found: list[Any], wanted: list[Any]) -> float:
    """The largest deviation of a result, as a share of its largest number."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def _worked() -> float:
    """Processor seconds of this process and its children, those that still run among them."""
    spent = os.times()
    seconds, ticks = sum(spent[:4]), os.sysconf("SC_CLK_TCK")
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        for thread in Path(f"/proc/{process}/task").glob("*"):
            children = [int(c) for c in (thread / "children").read_text().split()]
            waiting += children
            for child in children:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / ticks
    return seconds


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown."""
    columns = (
        "network",
        "s",
        "CPU s",
        "one by one, us",
        "delivered, us",
        "kernels",
        "Inductor, us",
        "guarantee",
        "error",
        "eager's",
        "code",
    )
    lines = [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
    ]
    for name, r in rows.items():
        if "failed" in r:
            lines.append(f"| {name} | {r['failed']} |" + " |" * (len(columns) - 2))
            continue
        kept = "" if r["improved"] else " (kept)"
        lines.append(
            f"| {name} | {r['seconds']} | {r['cpu_seconds']} | {r['operators_us']} | {r['us']}{kept} "
            f"| {r['kernels']} | {r['inductor_us']} | {r['guarantee']} "
            f"| {r['error']:.1e} | {r['eager_error']:.1e} | {r['commit']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    campaign = Campaign("networks", NAMES, measure, table, limit=540)
    campaign.run(campaign.parser(__doc__).parse_args())
