"""Writes `mugraph/README.md`, the tables of the search's results, from the JSON files of the benchmarks.

python -m benchmarks.search_page
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.mugraph.programs import BLOCKS, FOLDER, OWN, names
from benchmarks.record import RESULTS
from benchmarks.search_ablation import PAPER_MINUTES

PAGE = FOLDER / "README.md"
# What the plans for our own programs do, in words; written by hand.
FINDINGS = FOLDER / "own_findings.md"
INTRODUCTION = """\
<!-- written by `python -m benchmarks.search_page` from benchmarks/results; do not edit -->
# The muGraph search on Mirage's programs

`programs.py` names the programs, `modules.py` defines them as PyTorch modules, and `references.py` holds what
experts write for them, in superopt's own IR: FlashAttention-2, FlashDecoding, and the graphs of figures 4c, 8, 9b
and 10b of Mirage's paper (OSDI'25). References have the tile sizes and splits with the lowest predicted cost.

    make bench-search                        every program, from its .mlir file to the certified plan
    python -m benchmarks.search_ablation     what each technique that reduces the space contributes
    python -m benchmarks.search_page         writes this page

Microseconds are predictions of the cost model, not measurements, since there was no GPU. Seconds are those of one
process, on a machine shared with other work. `first / all` is the time to the first plan and to the end of the
search, in processor seconds (rows of searches that still budgeted wall time have wall seconds); `plan` is the
time from the file to the certified plan.
"""


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}" if x < 10 else f"{x:.1f}"


def _best_reference(at: dict[str, Any]) -> str:
    found = sorted((us, label) for label, us in at["references_us"].items())
    return f"{found[0][0]} ({found[0][1]})" if found else "-"


def _row(name: str, row: dict[str, Any]) -> list[object]:
    if "failed" in row:
        return [name, *["-"] * 9, row["failed"][:60]]
    at, other, proof = row["sm_90"], row["sm_80"], row.get("certificate", {})
    delta = proof.get("delta")
    said = f"{proof['guarantee']}, {'no delta' if delta is None else f'{delta:.0e}'}" if proof else "none"
    if proof and not proof.get("tested_at_full_extents", True):
        said += " (reduced)"
    seconds = at["seconds"]
    return [
        name,
        at["input_us"],
        _best_reference(at),
        at["best_us"] or "-",
        "-" if at["custom"] is None else at["custom"],
        f"{other['best_us'] or '-'} / {_best_reference(other)}",
        f"{_number(seconds.get('first'))} / {_number(seconds.get('all'))}{'' if at['complete'] else ' +'}",
        f"{_number(row['plan_seconds'])} / {_number(row['plan_cpu_seconds'])}",
        row["peak_mb"],
        at["states"],
        said,
    ]


def _programs(rows: dict[str, Any], chosen: Iterable[str]) -> str:
    head = ["program", "input us", "best by hand us", "found us", "custom", "sm_80 found / by hand us",
            "first / all s", "plan wall / CPU s", "MB", "states", "certificate"]  # fmt: skip
    return table(head, [_row(n, rows[n]) for n in chosen if n in rows])


def _commits(rows: dict[str, Any]) -> str:
    counts = Counter(row.get("search_commit", "unknown") for row in rows.values())
    return "Rows by the commit of the search: " + ", ".join(f"{n} of {c}" for c, n in counts.items()) + "."


def _verdict(rows: dict[str, Any]) -> str:
    better, equal, worse = list[str](), list[str](), list[str]()
    for name in names():
        at = rows.get(name, {}).get("sm_90")
        if at and at["references_us"]:
            hand, ours = min(at["references_us"].values()), at["best_us"] or at["input_us"]
            (better if ours < 0.995 * hand else equal if ours < 1.005 * hand else worse).append(name)
    text = f"Against the best reference, on sm_90: faster on {len(better)}, equal on {len(equal)}"
    return f"{text}, slower on {len(worse)}" + (f" ({', '.join(worse)})." if worse else ".")


def _winners(rows: dict[str, Any]) -> str:
    lines: list[list[object]] = []
    for name, row in rows.items():
        if "failed" in row:
            lines.append([name, row["failed"][:60], "", "", "", ""])
            continue
        compiled = [
            f"no: {c[:40]}"
            if isinstance(c, str)
            else f"{max(c['registers'])} / {sum(c['spilled_bytes'])}{_marks(c)}"
            for c in row["compiled"].values()
        ]
        error = row["interpreter"]["error"]
        replayed = "holds" if not row["replay"] else "; ".join(row["replay"])
        lines.append([name, *compiled, "-" if error is None else f"{error:.0e}", replayed])
    head = [
        "program",
        "sm_80: registers / spilled bytes",
        "sm_90",
        "sm_100",
        "error in the interpreter",
        "certificate",
    ]
    return table(head, lines)


def _marks(compiled: dict[str, Any]) -> str:
    marks = ("*" if "shape" in compiled else "") + ("+" if "searched_for" in compiled else "")
    return f" {marks}" if marks else ""


def _ablation(rows: dict[str, Any]) -> str:
    parts: list[str] = []
    for name, variants in rows.items():
        sizes = sorted({int(n) for row in variants.values() for n in row})
        body = [[variant, *(_cell(row.get(str(n))) for n in sizes)] for variant, row in variants.items()]
        parts.append(f"`{name}`:\n\n" + table(["technique", *sizes], body))
    return "\n\n".join(parts)


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    if entry["seconds"] is None:
        return "did not end"
    states = entry["values"] + entry["states"]
    ended = "" if entry["complete"] else " +"
    return f"{_number(entry['seconds'])} s{ended}, {states} states, {entry['best_us'] or '-'} us"


def _budgets(rows: dict[str, Any]) -> str:
    """The budgets that rows were searched with, and how many with each."""
    counts = Counter(row["budget"] for row in rows.values())
    return ", ".join(f"{budget:g} s ({number} programs)" for budget, number in sorted(counts.items()))


def page() -> str:
    """The page's text."""
    search = json.loads((RESULTS / "search.json").read_text())
    rows = search["programs"]
    parts = [
        INTRODUCTION,
        f"{search['date']}, {search['machine']['cores']} cores; budget for each search: {_budgets(rows)}.\n",
        "## The benchmarks\n",
        "`+`: a limit ended the search. `(reduced)`: certified at reduced extents only, because of its size. A "
        "certificate says `bound` or `congruence` (docs/verification.md), and its delta. `custom` counts the "
        "custom kernels of the plan.\n",
        _commits(rows) + " " + _verdict(rows) + "\n",
        _programs(rows, names()) + "\n",
        "## Larger\n",
        _programs(rows, BLOCKS) + "\n",
        "## Ten programs of other kinds\n",
        _programs(rows, OWN) + "\n",
        FINDINGS.read_text(),
    ]
    winners = RESULTS / "winners.json"
    if winners.exists():
        parts += [
            "## The winners, compiled and run\n",
            "By `python -m benchmarks.winners`: the winners, compiled as they are delivered, without a GPU.\n"
            "A star marks kernels that spilled as first lowered, and got other launches, tiles or splits. A\n"
            "plus means that the winner for sm_90 does not fit or spills there, and a search for that GPU\n"
            "replaced it. The interpreter runs at the extents to which the certifier reduces the program;\n"
            "errors are relative to the largest value, against fp64. Certificates are replayed. The table\n"
            "omits programs that were not run.\n",
            _winners(json.loads(winners.read_text())["programs"]) + "\n",
        ]
    ablation = RESULTS / "search_ablation.json"
    if ablation.exists():
        paper = ", ".join(f"{n}: {times[0]:g} min" for n, times in PAPER_MINUTES.items())
        parts += [
            "## Operators in a block, and pruning\n",
            "CPU seconds, values and states, and the best plan on sm_90, by the largest number of operators in a "
            "block (24 by default). `+`: a limit ended the search, on a machine shared with other work. With "
            "`graphs` and `none` a value has at most as many operators as a block, so small blocks leave a small "
            f"space. The paper's Table 5, for grouped-query attention with everything on: {paper}.\n",
            _ablation(json.loads(ablation.read_text())["programs"]) + "\n",
        ]
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
