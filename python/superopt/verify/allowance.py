"""What the check of a whole bundle may take, whatever it holds: kernels by themselves are bounded elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from superopt.errors import BadInput

# Elements of integers of TTIR, 4 ns each: an hour. The kernels of the largest layers take some minutes.
MOST_WORK = 1 << 40
# What an operation of a thread of PTX, and a second, are in these.
OF_PTX, A_SECOND = 4, 250_000_000
# How often that a folder of bundles may take it, however many it has.
OF_FOLDERS = 4


class Allowance:
    """What is left of the work that the check of a bundle may take."""

    def __init__(self, most: int) -> None:
        self.left = self.most = most

    def spend(self, work: int, where: str) -> None:
        """Raises BadInput where more is taken than there was."""
        self.left -= work
        if self.left < 0:
            raise BadInput(
                f"expected a bundle whose check takes at most {self.most:,} operations in all, got one that "
                f"takes more: {where}"
            )


_ALLOWANCE: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowed(most: int | None = None) -> Generator[Allowance]:
    """All that is checked inside shares one allowance (`MOST_WORK`), which is a part of the one around it."""
    around = _ALLOWANCE.get()
    made = Allowance(MOST_WORK if most is None else most)
    made.left = min(made.left, around.left if around is not None else made.left)
    given, token = made.left, _ALLOWANCE.set(made)
    try:
        yield made
    finally:
        _ALLOWANCE.reset(token)
        if around is not None:
            around.left -= given - made.left


@contextmanager
def timed(where: str) -> Generator[None]:
    """Spend what is done inside by the clock, as what is bounded in seconds: compilers."""
    start = time.monotonic()
    yield
    spend(int((time.monotonic() - start) * A_SECOND), where)


def spend(work: int, where: str) -> None:
    """Take work from the allowance that there is, if any; raises as `Allowance.spend`."""
    if (allowance := _ALLOWANCE.get()) is not None:
        allowance.spend(work, where)
