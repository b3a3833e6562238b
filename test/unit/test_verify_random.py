"""Two hundred pairs of equal programs, all accepted; two hundred that differ in one thing, all rejected."""

from __future__ import annotations

from collections import Counter

from random_programs import agreement, equal_pairs, wrong_pairs

from superopt.program import KernelGraph
from superopt.spec import check_kernel
from superopt.verify import certify


def test_equal_programs_are_accepted() -> None:
    operators: Counter[str] = Counter()
    bounded = 0
    for i, (first, second) in enumerate(equal_pairs(200, seed=1)):
        check_kernel(second)
        assert agreement(first, second), f"pair {i}: the rewrite is wrong"
        verdict = certify(first, second)
        assert verdict.equivalent, f"pair {i}: {verdict.counterexample}"
        assert verdict.certificate
        bounded += verdict.certificate.delta is not None
        operators.update(n.op for n in second.nodes)
    # The pairs are worth something: block graphs among them, and most with a bound.
    assert operators["custom"] > 50
    assert bounded > 150


def test_wrong_programs_are_rejected() -> None:
    changed: Counter[str] = Counter()
    for i, (first, second, what) in enumerate(wrong_pairs(200, seed=2)):
        verdict = certify(first, second)
        assert not verdict.equivalent, f"pair {i} ({what}) was accepted"
        _replays(first, second, verdict.counterexample)
        changed[what.split(": ")[1].split(" ")[0]] += 1
    kinds = ["operator", "operand", "constant", "imap", "fmap", "omap", "accumulator"]
    assert changed.keys() >= set(kinds), changed


def _replays(first: KernelGraph, second: KernelGraph, counterexample: object) -> None:
    assert str(certify(first, second).counterexample) == str(counterexample)
