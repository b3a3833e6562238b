"""Attack on the certifier: pairs of programs, equal by construction or a near miss, judged by an oracle of their own.

    python test/attack/attack.py --count=20000 --seed=0 --json=benchmarks/results/attack.json [--state=FILE]

A pair that the certifier accepts and the oracle finds different, or undefined, is *wrong and accepted*; one that the
certifier accepts and the independent checker finds different is a *contradiction*. Each is a fault of the verifier,
and the exit code is 1. A pair that is equal and refused is listed by class. With --state a run that was stopped goes
on where it was.

The certifier takes other paths for large programs. Most pairs are small, and tested with limits so low that they count
as large; those of class "... (large)" are large indeed, and the oracle judges their twin, the same pair at small extents.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent))

import levels
from about import about
from oracle import decide
from pairs import FAMILIES, LARGE, Draw, Pair, with_twin

from superopt.errors import SuperoptError
from superopt.verify import certifier, certify, one_point
from superopt.verify.checker import compare
from superopt.verify.hashing import canonical_text

assert levels  # registers all classes
CHUNK = 100
LARGE_EVERY = 1000  # one pair in so many is large: some seconds each

# Most of whose equal pairs are so by what max, min, roots and signs of real numbers are: congruence does not show it.
IDENTITIES = ("maxima", "signs and roots")

# Fates that are a fault of the verifier, whose pairs the table lists.
FAULTS = ("wrong and accepted", "contradictions", "crashes")

# Limits of the certifier beyond which it takes other paths, and what leads small programs there.
PATHS: dict[str, dict[str, int]] = {
    "formal at full extents": {},
    "reduced extents": {"FORMAL_WORK": 0},
    "two blocks": {"FORMAL_WORK": 0, "BLOCKS_WORK": 0},
    "pieces": {"FORMAL_WORK": 1, "BLOCKS_WORK": 1, "PIECE_WORK": 1},
    "random order": {"FORMAL_WORK": 0, "LATTICE_WORK": 0},
    "large tensors": {"FORMAL_WORK": 0, "BLOCKS_ELEMENTS": 0},
}


@dataclass(frozen=True)
class Trial:
    """One pair: its class and name, the path that the certifier took, what all said of it."""

    number: int
    family: str
    name: str
    path: str
    claim: str
    oracle: str
    accepted: bool
    checker: str
    key: str
    note: str = ""

    @property
    def fate(self) -> str:
        """What became of it."""
        if self.note.startswith("crash"):
            return "crash"
        if self.accepted and self.checker == "different" and self.oracle in ("equal", "domains", "undecided"):
            return "contradiction"
        if self.oracle == "undecided":
            return "undecided"
        if self.oracle == "equal":
            return "equal, accepted" if self.accepted else "equal, refused"
        if self.oracle == "domains":
            return "other domain, accepted" if self.accepted else "other domain, refused"
        return "wrong and accepted" if self.accepted else f"{self.oracle}, refused"


def _module_of(limit: str) -> ModuleType:
    return one_point if hasattr(one_point, limit) else certifier


@contextmanager
def limits(path: str) -> Generator[None]:
    """The certifier's limits as `path` needs them."""
    before = {name: getattr(_module_of(name), name) for name in PATHS[path]}
    try:
        for name, value in PATHS[path].items():
            setattr(_module_of(name), name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(_module_of(name), name, value)


def drawn(number: int, seed: int) -> tuple[str, str, Pair]:
    """Pair `number` of a campaign: its class, the path to take, and the programs, whose texts differ."""
    names = sorted(FAMILIES)
    for attempt in range(100):
        rng = random.Random(f"{seed} {number} {attempt}")
        if number % LARGE_EVERY == LARGE_EVERY - 1:
            name = sorted(LARGE)[number // LARGE_EVERY % len(LARGE)]
            pair = with_twin(rng.choice(LARGE[name]), (seed, number, attempt))
            name, path = f"{name} (large)", next(iter(PATHS))
        else:
            name, path = names[number % len(names)], rng.choice(list(PATHS))
            pair = rng.choice(FAMILIES[name])(Draw(rng))
        if canonical_text(pair.first) != canonical_text(pair.second):
            return name, path, pair
    raise AssertionError("programs of a pair are the same text each time")


def trial(number: int, seed: int) -> Trial:
    """Draw a pair and have it judged."""
    family, path, pair = drawn(number, seed)
    texts = [canonical_text(g) for g in (pair.first, pair.second)]
    key = hashlib.sha256("\n".join([path, *texts]).encode()).hexdigest()[:16]
    note, accepted, checker = "", False, "not asked"
    try:
        with limits(path):
            accepted = certify(pair.first, pair.second).equivalent
        if (accepted or number // len(FAMILIES) % 4 == 0) and pair.twin is None:
            found = compare(texts[0], texts[1], seed=number, elements=3, budget=300_000)
            checker = "different" if found.different else "the same" if found.elements else "undecided"
    except SuperoptError as error:
        note = f"refused: {error.message}"
    except Exception as error:  # what escapes is a fault of ours, and is reported as one
        note = f"crash: {type(error).__name__}: {error}"
    judged = pair.twin or (pair.first, pair.second)
    found = decide(*judged, pair.claim, number)
    if accepted and found.answer != "equal":
        found = decide(*judged, pair.claim, number, careful=True)
    return Trial(
        number, family, pair.name, path, pair.claim, found.answer, accepted, checker, key,
        note or (found.where if found.answer != "equal" else ""),
    )  # fmt: skip


def _chunk(numbers: Sequence[int], seed: int) -> list[dict[str, Any]]:
    os.environ["SUPEROPT_STORE"] = "none"
    return [asdict(trial(n, seed)) for n in numbers]


def campaign(
    count: int, seed: int, *, processes: int = 2, state: Path | None = None, only: str = ""
) -> tuple[list[Trial], float]:
    """`count` trials, and the processor seconds that they took; those in `state` are not made again."""
    known = _known(state, seed)
    chunks = [range(i, min(i + CHUNK, count)) for i in range(0, count, CHUNK)]
    wanted = [[n for n in c if n not in known and only in _family(n)] for c in chunks]
    wanted = [c for c in wanted if c]
    started = time.process_time()
    seconds = 0.0
    if processes == 1:
        for part in wanted:
            _keep(state, seed, known, _chunk(part, seed))
        seconds = time.process_time() - started
    else:
        with ProcessPoolExecutor(processes) as pool:
            for rows in pool.map(_chunk, wanted, [seed] * len(wanted)):
                _keep(state, seed, known, rows)
        used = os.times()
        seconds = used.children_user + used.children_system
    return [known[n] for n in sorted(known) if n < count and only in known[n].family], seconds


def _family(number: int) -> str:
    if number % LARGE_EVERY == LARGE_EVERY - 1:
        return f"{sorted(LARGE)[number // LARGE_EVERY % len(LARGE)]} (large)"
    return sorted(FAMILIES)[number % len(FAMILIES)]


def _known(state: Path | None, seed: int) -> dict[int, Trial]:
    if state is None or not state.exists():
        return {}
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    return {r["trial"]["number"]: Trial(**r["trial"]) for r in rows if r["seed"] == seed}


def _keep(state: Path | None, seed: int, known: dict[int, Trial], rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        known[row["number"]] = Trial(**row)
        if state is not None:
            with state.open("a") as file:
                file.write(json.dumps({"seed": seed, "trial": row}) + "\n")


def table(trials: Sequence[Trial]) -> dict[str, Any]:
    """Counts by class and by path; what was wrong and accepted, and what was equal and refused, by name."""
    by_class: dict[str, Counter[str]] = defaultdict(Counter)
    by_path: dict[str, Counter[str]] = defaultdict(Counter)
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    checker: Counter[str] = Counter()
    for t in trials:
        by_class[t.family][t.fate] += 1
        by_path[t.path][t.fate] += 1
        if t.fate == "equal, refused":
            refused[t.family][t.name] += 1
        if t.checker != "not asked" and t.oracle != "undecided":
            checker[f"{'equal' if t.oracle == 'equal' else 'different'}: {t.checker}"] += 1
    total = Counter(t.fate for t in trials)

    def percent(fates: Counter[str]) -> float:
        return round(
            100 * fates["equal, refused"] / max(1, fates["equal, accepted"] + fates["equal, refused"]), 2
        )

    return {
        "pairs": len(trials),
        "distinct": len({t.key for t in trials}),
        "fates": dict(sorted(total.items())),
        "equal and refused, percent": percent(total),
        "outside of identities of maxima and roots": percent(
            Counter(t.fate for t in trials if t.family not in IDENTITIES)
        ),
        "classes": {k: dict(sorted(v.items())) for k, v in sorted(by_class.items())},
        "paths": {k: dict(sorted(v.items())) for k, v in by_path.items()},
        "equal and refused": {k: dict(v.most_common()) for k, v in sorted(refused.items())},
        "independent checker": dict(sorted(checker.items())),
        "wrong and accepted": [_line(t) for t in trials if t.fate == "wrong and accepted"],
        "contradictions": [_line(t) for t in trials if t.fate == "contradiction"],
        "crashes": [_line(t) for t in trials if t.fate == "crash"],
    }


def _line(t: Trial) -> str:
    return f"{t.number} {t.family}: {t.name}, {t.path}: {t.note}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Attack on the certifier.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--state", type=Path, help="trials made so far, to go on from")
    parser.add_argument("--only", default="", help="classes whose name contains this")
    args = parser.parse_args()
    trials, seconds = campaign(
        args.count, args.seed, processes=args.processes, state=args.state, only=args.only
    )
    found = table(trials)
    record = {**about(), "seed": args.seed, "cpu seconds": round(seconds, 1), **found}
    text = json.dumps(record, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 1 if any(found[fault] for fault in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
