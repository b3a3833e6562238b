"""How much work a run may do, and how much is left for searches, checks and other schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from superopt import clock
from superopt.diagnostics import counted

# Shares of the budget: what searches may take, and what may be spent before no other schedule is tried.
SEARCHES, SCHEDULES = 0.5, 0.7


@dataclass
class Budget:
    """Seconds of work (`superopt.clock`) of one run.

    `searched` is what searches took, `checks` what each proof took, `missed` what was left out when it ran out.
    """

    seconds: float
    started: float = field(default_factory=clock.now)
    searched: float = 0.0
    checks: list[float] = field(default_factory=list[float])
    missed: Counter[str] = field(default_factory=Counter[str])

    @property
    def spent(self) -> float:
        """Seconds that the run has worked."""
        return clock.now() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self.spent

    @property
    def searches_left(self) -> float:
        """Seconds that searches may still take; proofs and compilation get the rest."""
        return max(self.seconds * SEARCHES - self.searched, 0.0)

    @property
    def schedules_end(self) -> bool:
        """Whether to stop compiling other candidates, and other schedules of a kernel."""
        return self.left < (1 - SCHEDULES) * self.seconds

    def late_for_another(self) -> bool:
        """Whether a proof that takes as long as the longest one so far would overrun."""
        return self.left < max(self.checks, default=0.0)

    def late_for_the_whole(self) -> bool:
        """Whether one as long as all of them would overrun: checking their results together takes that long."""
        return bool(self.checks) and self.left < sum(self.checks)

    def said(self) -> str:
        """What was left out as the budget ran out; empty where nothing was."""
        missed = ((count, *what.partition(" ")) for what, count in sorted(self.missed.items()) if count)
        left_out = ", ".join(f"{counted(count, noun)} {left}" for count, noun, _, left in missed)
        return f"the budget of {self.seconds:g} s ran out: {left_out}" if left_out else ""
