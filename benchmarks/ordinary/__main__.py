"""What is delivered for ordinary programs, beside what an expert would write: one model for both.

    python -m benchmarks.ordinary                        every program, kept in benchmarks/results/ordinary.json
    python -m benchmarks.ordinary --programs geglu       some of them
    python -m benchmarks.ordinary --table                put what is kept into docs/benchmarking.md
    python -m benchmarks.ordinary --experts              price what experts write again, beside what is kept

Each PyTorch module is imported and goes through the whole flow in a process of its own, proofs included. Rows of
an earlier run are kept, so that an interrupted run goes on; `--again` repeats them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.campaign import Campaign
from benchmarks.ordinary.experts import Expert
from benchmarks.ordinary.programs import PROGRAMS, Program
from benchmarks.prices import priced
from benchmarks.record import load

# What an expert is allowed to be better by.
CLOSE = 1.05
# Why an expert is better by more: what no kernel of ours does, or what the search does not find in its budget.
_LIBRARY = "by the model, cuBLAS's kernels of products with an epilogue are faster than ours"
_EARLY = "a product is PyTorch's: nothing starts early beside it, as an expert's second kernel does"
WHY = {
    "attention_1500_alibi": "the bias is loaded: rounded to f16 it is no band, which kernels compute; of one "
    "kernel the tiles promise 41.7 us, what is compiled before the budget ends takes 74.5",
    "attention_layer_197": _LIBRARY,
    "attention_layer_577": _LIBRARY,
    "layernorm_linear_197": "in one kernel every block reads its rows once more, which the expert's figure "
    "leaves out: 12.0 us by its tiles",
    "mlp_gelu_1500": _LIBRARY,
    "mlp_gelu_197": _EARLY,
    "moe_gate_sigmoid": _EARLY,
    "swiglu_6913_b7": _EARLY,
    "moe_gate_mixtral": "top-k is PyTorch's: no operator of the table gives indices",
    "norm_qkv": "the norm has a kernel of its own: applied behind the products, f16 loses tiny numbers",
}


def measure(program: Program, gpu: str, budget: float) -> dict[str, Any]:
    """One row: as `priced`, with what an expert takes."""
    from superopt.transforms.ingest import from_torch

    return {**priced(lambda: from_torch(*program.module()).graph, gpu, budget), **_of_expert(program, gpu)}


def _of_expert(program: Program, gpu: str) -> dict[str, Any]:
    from superopt.cost import target

    expert = Expert(target(gpu), program.dtype)
    kernels = program.expert(expert)
    return {"expert_us": round(expert.seconds(kernels) * 1e6, 2), "expert_kernels": len(kernels)}


def seconds(row: dict[str, Any]) -> float:
    """What a user gets, in microseconds: where the input is returned, the best that there was."""
    return row["delivered_us"] if row["improved"] else row["best_us"]


def table(rows: dict[str, Any]) -> str:
    """The rows as Markdown, and how many are as fast as an expert's."""
    made = {name: row for name, row in rows.items() if "failed" not in row}
    close = [name for name, row in made.items() if seconds(row) <= CLOSE * row["expert_us"]]
    lines = [
        f"{len(made)} of {len(PROGRAMS)} programs, {len(close)} of them within 5 % of what an expert would "
        "write, or faster.",
        "",
        "| program | dtype | delivered | kernels | best a user has | an expert | kernels | to the expert | CPU s "
        "| code | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(rows.items()):
        if "failed" in row:
            lines.append(f"| {name} | {PROGRAMS[name].dtype} | | | | | | | | | {row['failed']} |")
            continue
        cells = [
            name,
            PROGRAMS[name].dtype,
            f"{row['delivered_us']} us" if row["improved"] else "the input",
            str(row["kernels"]) if row["improved"] else "",
            f"{row['best_us']} us ({row['best']})",
            f"{row['expert_us']} us",
            str(row["expert_kernels"]),
            f"{row['expert_us'] / seconds(row):.2f}",
            f"{row['cpu_seconds']:.0f}",
            row["commit"],
            "" if name in close else "; ".join([*([WHY[name]] if name in WHY else []), *row["remarks"]]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


CAMPAIGN = Campaign(
    "ordinary",
    list(PROGRAMS),
    lambda name, gpu, budget: measure(PROGRAMS[name], gpu, budget),
    table,
    limit=600.0,
)


def main() -> None:
    """Measure, print, store."""
    parser = CAMPAIGN.parser(__doc__)
    parser.add_argument("--experts", action="store_true", help="price experts' kernels of what is kept again")
    arguments = parser.parse_args()
    if arguments.experts:
        rows = load("ordinary")
        for name in arguments.programs.split(","):
            if "failed" not in (row := rows.get(name, {"failed": "not measured"})):
                row.update(_of_expert(PROGRAMS[name], arguments.target))
        CAMPAIGN.keep(rows, arguments)
        arguments.table = True
    CAMPAIGN.run(arguments)


if __name__ == "__main__":
    main()
