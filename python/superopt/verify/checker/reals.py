"""What the independent checker knows of real numbers beyond a field's axioms."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.verify.checker.algebra import Element


class Reals:
    """What holds for real numbers beyond a field's axioms, by value; docs/verification.md argues for each rule.

    squares, exponentials    what a value is the square or exponential of; `roots`: the root itself, and of what
    waiting                  for a number whose root is taken, the square of that; for the square of |x|, x^2
    replaced                 those of `waiting` that are replaced wherever they occur
    factors, logarithms      of products; and of numbers, both in the order that they were computed
    """

    def __init__(self) -> None:
        self.squares: dict[int, Element] = {}
        self.exponentials: dict[int, Element] = {}
        self.roots: dict[int, tuple[Element, Element]] = {}
        self.back: dict[int, Element] = {}
        self.waiting: dict[int, Element] = {}
        self.replaced: dict[int, Element] = {}
        self.not_negative: set[int] = set()
        self.factors: dict[int, tuple[Element, Element]] = {}
        self.logarithms: list[tuple[Element, Element]] = []
        self.depth = 0
        self.inside = False
        self.found: list[tuple[str, Element, bool]] = []

    def taken(self, what: str, x: Element, *, needed: bool) -> None:
        """Note a root, a logarithm or a quotient of a number, and whether that may be undefined."""
        self.found.append((what, x, needed))

    def forget(self) -> list[tuple[str, Element, bool]]:
        """The conditions of the program that was evaluated last; those of another one follow."""
        found, self.found = self.found, []
        return found

    def renewed(self) -> bool:
        """Replace what became known; False where that is nothing."""
        before, self.replaced = len(self.replaced), dict(self.waiting)
        return len(self.replaced) > before

    @contextmanager
    def plainly(self) -> Generator[None]:
        """Within it, these rules are not used."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    @staticmethod
    def sum(a: Element, b: Element) -> tuple[int, bool, bool]:
        """`least`, `plain` and `thin` of a sum."""
        least = max(a.least, b.least) if a.least and b.least else 0
        return least, a.plain and b.plain, bool(least) and not (a.vanishing or b.vanishing)

    def widen(self) -> None:
        """Find roots anew: one of a multiple is none of its own any more."""
        for table in (self.roots, self.back, self.waiting, self.replaced):
            table.clear()

    @contextmanager
    def deeper(self) -> Generator[None]:
        """Within it, the factors of a number whose factors were taken."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
