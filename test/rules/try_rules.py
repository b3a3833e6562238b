"""What rules make of programs of tile loops written by hand.

    python test/rules/try_rules.py test/rules/loop-fusion.loops --rules=loop-fusion

A file holds declarations, then programs, each behind a line `--- title`. Of each it is said how often the rules
fired and were refused, and what is equal by them is printed, executed on random numbers with random widths of
tiles, and compared: it must compute what the first does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from execute_terms import Unbound, execute
from parse_terms import parse_terms

from superopt.errors import BadInput, SuperoptError
from superopt.transforms.tile_saturation.encode import Encoder
from superopt.transforms.tile_saturation.terms import StatementTerm, TermProgram, TermTensor, render

SAMPLES = 64
"""Programs drawn from a class; so small a class is seen whole."""


@dataclass(frozen=True)
class Trial:
    """One program of a file, and what became of it."""

    title: str
    fired: int
    refused: int
    others: tuple[tuple[StatementTerm, ...], ...]
    """Equal programs besides the one that was written."""
    wrong: int
    """How many of them compute something else."""


def trials(text: str, rules: Sequence[str], file: str = "loops") -> list[Trial]:
    """Apply the rules to every program of the text; raises BadInput for what is none."""
    return [trial(title, program, rules) for title, program in programs(text, file)]


def programs(text: str, file: str = "loops") -> list[tuple[str, TermProgram]]:
    """The programs of the text, with their titles."""
    head, *rest = re.split(r"^--- *(.*)\n", text, flags=re.MULTILINE)
    line = head.count("\n") + 1
    out: list[tuple[str, TermProgram]] = []
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        blank = "\n" * (line - head.count("\n"))
        out.append((title, parse_terms(head + blank + body, file)))
        line += body.count("\n") + 1
    if not out:
        raise BadInput(f"expected programs behind lines '--- title' in '{file}', got none")
    return out


def trial(title: str, program: TermProgram, rules: Sequence[str], without: str = "") -> Trial:
    """Apply the rules to one program, where it is asked for `without` a guard."""
    encoder = Encoder(program)
    graph = encoder.graph
    if without:
        graph.weaken(without)
    graph.saturate(list(rules), 6, 2_000, 1 << 28, 10.0)
    counts = [(refused, fired) for name, _, refused, fired in graph.statistics if name in rules]
    seen: dict[str, tuple[StatementTerm, ...]] = {}
    for seed in range(SAMPLES):
        body = encoder.decode(graph.sample(encoder.root, seed))
        seen.setdefault(render(body), body)
    seen.pop(render(program.body), None)
    others = tuple(seen[text] for text in sorted(seen))
    wrong = sum(not all(same(program, body, seed) for seed in range(3)) for body in others)
    return Trial(title, sum(f for _, f in counts), sum(r for r, _ in counts), others, wrong)


def same(program: TermProgram, body: Sequence[StatementTerm], seed: int) -> bool:
    """Whether both leave the same numbers everywhere."""
    rng = np.random.default_rng(seed)
    widths = {
        v: int(rng.choice([w for w in range(1, v.end + 1) if v.end % w == 0]))
        for v in program.vars
        if not v.step
    }
    memory: dict[TermTensor, Any] = {t: rng.uniform(0.5, 1.5, t.shape) for t in program.tensors}
    other = {t: x.copy() for t, x in memory.items()}
    execute(program.body, memory, widths)
    try:
        execute(body, other, widths)
    except (Unbound, ValueError):  # a variable outside its loop, shapes that do not fit
        return False
    return all(np.allclose(memory[t], other[t], rtol=1e-6, atol=1e-9) for t in memory)


def main() -> int:
    """Print what the rules make of each program; 1 where a program is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rules", required=True, help="names of rules, separated by commas")
    arguments = parser.parse_args()
    try:
        found = trials(arguments.file.read_text(), arguments.rules.split(","), str(arguments.file))
    except OSError as error:
        print(f"error: cannot read '{arguments.file}': {error.strerror}", file=sys.stderr)
        return 1
    except (SuperoptError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for t in found:
        print(f"--- {t.title}: fired {t.fired}, refused {t.refused}, {len(t.others)} more, {t.wrong} wrong")
        print("or\n".join(render(body) for body in t.others), end="")
    return int(any(t.wrong for t in found))


if __name__ == "__main__":
    sys.exit(main())
