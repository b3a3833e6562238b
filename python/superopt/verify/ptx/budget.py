"""What the check of a kernel's PTX may take, in work: whether it is verified does not depend on the machine."""

from __future__ import annotations

from superopt.errors import UnsupportedProgram
from superopt.verify import allowance

# Operations of threads, terms of products, elements of the TTIR: some minutes. The core has the same limit.
MOST_WORK = 1 << 34


class Budget:
    """What is left of the work that one kernel may take."""

    def __init__(self, most: int = MOST_WORK) -> None:
        self.left = min(most, MOST_WORK)

    def spend(self, work: int, what: str) -> None:
        """Raises UnsupportedProgram where `what` takes more than is left."""
        if work > self.left:
            raise UnsupportedProgram(
                f"{what}: expected work that its check may take, got {work:,} more operations "
                f"where {self.left:,} were left"
            )
        self.took(work, what)

    def took(self, work: int, what: str) -> None:
        """Of what is left, what `what` was found to take; raises as `superopt.verify.allowance.spend`."""
        self.left -= work
        allowance.spend(allowance.OF_PTX * work, what)
