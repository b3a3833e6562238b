"""docs/trust.md says what the committed results say; run as a program, this writes its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "trust.md"
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- (\w+): written from benchmarks/results -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *([str(c) for c in row] for row in rows)]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def summary() -> str:
    """One row for each campaign."""
    fuzz, kills, mutation, cost = (load(n) for n in ("fuzz", "kills", "mutation", "verification"))
    attack, relation, agreement = (load(n) for n in ("attack", "relation", "agreement"))
    asked, targets = agreement["counts"], ("sm_80", "sm_90", "sm_100")
    unverified = sum(n for what, n in asked.items() if what.startswith("PTX") and "unverified" in what)
    planted = {what.partition(": ")[2]: n for what, n in asked.items() if what.startswith("fault in PTX")}
    missed = {
        k: sum(f"planted fault passes {k}" in d for d in agreement["different"])
        for k in ("the TTIR", "in the")
    }
    told = asked["faults in programs"] - max(missed.values())
    found = sum(planted.get(fate, 0) for fate in ("refused", "illegal", "different"))
    judged = attack["fates"]
    fates: dict[str, int] = {}
    for name, count in mutation["fates"].items():
        fate = name.partition(": ")[2]
        fates[fate] = fates.get(fate, 0) + count
    killed = sum(n for fate, n in fates.items() if fate.startswith("killed"))
    crashes = sum(n for a, n in fuzz["answers"].items() if a.startswith("crash"))
    programs = cost["programs"]
    wrong = len(mutation["wrong and accepted"])
    tamper, ingest, ptx = (load(n) for n in ("tamper", "ingest", "mutation_ptx"))
    equal = [ingest[kind].get("equal", 0) for kind in ("linalg", "torch")]
    silent = sum(len(ingest[f"{kind} differences"]) for kind in ("linalg", "torch"))
    dead = sum(ptx["fates"].get(fate, 0) for fate in ("different", "illegal", "refused"))
    rows: list[tuple[str, str, str, str, dict[str, Any]]] = [
        ("faults injected into the benchmarks' finished programs",
         f"{mutation['mutants']:,} mutants of {mutation['subjects']} programs",
         f"{killed:,} killed, {fates.get('equivalent', 0)} judged equivalent, **{wrong} wrong and accepted**",
         "make mutate", mutation),
        ("faults injected into the PTX of their kernels", f"{ptx['mutants']:,} mutants of {len(ptx['kernels'])} kernels",
         f"{dead:,} killed, {ptx['mutants'] - dead - len(ptx['wrong'])} shown to change nothing, "
         f"**{len(ptx['wrong'])} wrong and accepted**", "make mutate-ptx", ptx),
        ("pairs of equal or nearly equal programs, judged by an independent oracle",
         f"{attack['pairs']:,} of {len(attack['classes'])} classes",
         f"**{judged.get('wrong and accepted', 0)} wrong and accepted**, {len(attack['contradictions'])} accepted that the "
         f"independent checker finds different; {judged['equal, accepted']:,} equal and accepted, "
         f"{judged['equal, refused']} equal and refused ("
         f"{sum(attack['classes'][c].get('equal, refused', 0) for c in ('maxima', 'signs and roots'))} of them need "
         f"identities of maxima and roots); {judged['undecided']} undecided", "make attack", attack),
        ("programs in linalg and PyTorch, read and executed, against another execution of their source",
         f"{ingest['count']} of each", f"**{silent} silent differences**; {equal[0]} and {equal[1]} equal, the others remarked on "
         "or refused", "make ingest", ingest),
        ("bundles, their folders and records, edited", str(tamper["tamperings"]),
         f"**{len(tamper['believed'])} believed**; {tamper['answers']['refused']} refused, the others reported as not checked",
         "make tamper", tamper),
        ("regions in which programs are said to differ, compared element by element",
         f"{relation['corrupted']:,} corrupted programs and {relation['sources']:,} that rules made",
         f"**{len(relation['wrong'])} regions wrong**, {sum(relation['abstained'].values())} left undecided; "
         f"{relation['positions']:,} elements differ in {relation['differing']:,} programs, {relation['equal']:,} are equal",
         "make relation", relation),
        ("random kernels in f16, bf16 and f32: their PTX, their TTIR and the program over the fields, Triton's "
         "interpreter and numpy on numbers",
         f"{agreement['kernels']} kernels of {agreement['programs']} programs, {len(targets)} targets",
         f"**{len(agreement['different'])} disagree**; the PTX of {sum(asked[f'PTX {t}: agrees'] for t in targets)} stores what "
         f"the TTIR stores, that of {unverified} is unverified; of faults planted, TTIR and interpreter each tell {told} of "
         f"{asked['faults in programs']} in programs, and the check of PTX {found} of {sum(planted.values())} in PTX, where "
         "the others change nothing that is stored", "make agree", agreement),
        ("kills of whole runs at random moments",
         f"{kills['kills']} (" + ", ".join(f"{n} {s}" for s, n in sorted(kills["sent"].items())) + ")",
         f"**{len(kills['losses'])} losses**; {kills['entries']} store entries, all whole; {kills['completed']} runs "
         f"repeated, {kills['resumed']} of them resumed from the store", "make kills", kills),
        ("fuzzing of `superopt-opt` and `superopt-verify`", f"{fuzz['runs']:,} inputs, {fuzz['seconds'] / 3600:.1f} h",
         f"**{len(fuzz['findings'])} findings**; LLVM crashed on {crashes}, which the tools report with a message",
         "make fuzz", fuzz),
        ("certificates, given to the independent checker", str(len(programs)),
         f"{sum(r['holds'] for r in programs.values())} hold; {sum(r['elements'] for r in programs.values())} elements "
         "recomputed", "python -m benchmarks.verification", cost),
    ]  # fmt: skip
    return table(
        ["what was tried", "how often", "result", "day", "commit", "run it"],
        [[*said, r["date"], r.get("commit", ""), f"`{run}`"] for *said, run, r in rows],
    )


def mutants() -> str:
    """Mutants by level and fate."""
    fates = load("mutation")["fates"]
    columns = [
        "killed by the rules of the level", "killed by the verifier", "killed by lowering",
        "killed by the numeric gate", "equivalent", "wrong and accepted",
    ]  # fmt: skip
    levels = [("kernel", "kernel"), ("block", "block, thread"), ("tile", "tile"), ("ttir", "TTIR")]
    return table(
        ["level", *columns],
        [[label, *(fates.get(f"{level}: {c}", 0) for c in columns)] for level, label in levels],
    )


def costs() -> str:
    """CPU seconds that verification takes."""
    rows: list[list[object]] = []
    ratios = load("verification_before")["programs"]
    for name, r in load("verification")["programs"].items():
        bound = "none" if r["delta"] is None else f"{r['delta']:.0e}"
        rows.append([
            name, f"{r['search']:.2f}", f"{r['certificates']:.2f}", f"{r['ttir']:.2f}", f"{r['numerics']:.2f}",
            f"{r['cpu_seconds']:.2f}", f"{r['checker']:.2f}", r["guarantee"], bound, r["normal_form"] or "no",
            f"{ratios[name]['ratio']:.2f}",
        ])  # fmt: skip
    head = ["program", "search", "certificates", "TTIR", "numeric gate", "whole run", "checker afterwards", "guarantee",
            "delta", "normal form", "of before"]  # fmt: skip
    return table(head, rows)


def kernels() -> str:
    """CPU seconds for each kernel of the benchmarks' winners, by the check."""
    data = load("ptx")
    programs = [r for r in data["programs"].values() if "targets" in r]

    def once(step: str, gpu: str) -> float:
        """Seconds of what is made once for a program, for each of its kernels."""
        made = [r for r in programs if f"{step}_seconds" in r and "kernels" in r["targets"][gpu]]
        return sum(r[f"{step}_seconds"] for r in made) / sum(len(r["targets"][gpu]["kernels"]) for r in made)

    rows: list[list[object]] = []
    for gpu in ("sm_80", "sm_90", "sm_100"):
        made = data["summary"][gpu]
        seconds = [once(step, gpu) for step in ("certificate", "gate")]
        seconds += [made[f"{step}_seconds"] / made["kernels"] for step in ("ttir", "ptx", "count")]
        verdicts = [made[v] for v in ("kernels", "verified", "unverified", "illegal", "different")]
        rows.append([gpu, *verdicts, *(f"{s:.2f}" for s in seconds)])
    head = ["target", "kernels", "PTX verified", "unverified", "illegal", "different", "certificate",
            "numeric gate", "TTIR", "PTX", "counts"]  # fmt: skip
    gates = {name: r["gate"] for name, r in data["programs"].items() if "gate" in r}
    others = [f"{name} ({said.partition('; ')[0]})" for name, said in gates.items() if said != "passed"]
    tried = [f"{name} ({len(r['refused'])})" for name, r in data["programs"].items() if "refused" in r]
    note = (
        f"The gate was measured on {len(gates)} of {len(programs)} programs and rejects {len(others)}: "
        f"{'; '.join(others) or 'none'}. It rejected candidates that promised more of {', '.join(tried) or 'none'}."
    )
    return table(head, rows) + f"\n{note}\n"


def numerics() -> str:
    """The worst errors over the distributions, and what the gate says."""
    data = load("numerics")
    rows: list[list[object]] = []
    for name, by in data["programs"].items():
        cells: list[object] = [name]
        for dtype in ("f16", "bf16"):
            found = by[dtype].values()
            cells += [worst([r[k] for r in found]) for k in ("eager", "ours")]
        cells.append(worst([r["fp32"] for d in by.values() for r in d.values()]))
        ratio = [r["of_tolerance"] for d in by.values() for r in d.values()]
        cells.append("rejected" if None in ratio or max(ratio) > 1 else f"{max(ratio):.2f}")
        rows.append(cells)
    head = ["program", "eager f16", "ours f16", "eager bf16", "ours bf16", "fp32", "of the tolerance"]
    return table(head, rows)


def without_maximum() -> str:
    """On which inputs programs without the subtraction of the maximum are rejected."""
    rows: list[list[object]] = []
    for name, by in load("numerics")["without_maximum"].items():
        cells: list[object] = [name]
        for dtype in ("f16", "bf16"):
            bad = [d for d, r in by[dtype].items() if r["of_tolerance"] is None or r["of_tolerance"] > 1]
            cells.append(", ".join(bad) or "none")
        rows.append(cells)
    return table(["program", "rejected in f16 on", "rejected in bf16 on"], rows)


def worst(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return "not finite" if len(known) < len(values) else f"{max(known):.1e}"


PARTS = {f.__name__: f for f in (summary, mutants, costs, kernels, numerics, without_maximum)}


def page(text: str) -> str:
    """The page with its tables as the results have them now."""
    return BLOCK.sub(lambda m: m[1] + PARTS[m[2]]() + m[3], text)


def test_the_page_is_current():
    text = DOC.read_text()
    assert {m[2] for m in BLOCK.finditer(text)} == set(PARTS)
    assert text == page(text), "run `python test/unit/test_trust.py`"


def test_nothing_wrong_was_accepted_and_nothing_lost():
    assert load("mutation")["wrong and accepted"] == []
    assert load("mutation")["mutants"] >= 2000
    assert load("attack")["wrong and accepted"] == load("attack")["contradictions"] == []
    assert load("agreement")["different"] == []
    assert load("agreement")["kernels"] >= 200
    assert load("kills")["losses"] == []
    assert load("fuzz")["findings"] == []
    assert load("fuzz")["seconds"] >= 3600
    assert load("tamper")["believed"] == load("mutation_ptx")["wrong"] == []
    assert not load("mutation_ptx")["fates"].get("unexplained")
    assert load("ingest")["linalg differences"] == []
    assert all(r["holds"] for r in load("verification")["programs"].values())


def test_programs_without_the_maximum_are_rejected_by_measurement():
    for name, by in load("numerics")["without_maximum"].items():
        ratios = [r["of_tolerance"] for d in by.values() for r in d.values()]
        assert None in ratios or max(ratios) > 1, name


if __name__ == "__main__":
    DOC.write_text(page(DOC.read_text()))
