"""What was checked on the PTX of a target's kernels."""

from __future__ import annotations

from superopt.diagnostics import counted
from superopt.verify.certificate import Record
from superopt.verify.maxima import Maxima, said_of


class PtxKernelRecord(Record):
    """What was checked on one kernel: how many of its blocks ran, and the rules of order that its text needs.

    `addressed` blocks do what one of those does, with other elements (`superopt.verify.ptx.grid`): where they are
    fewer than all, the kernel is not verified. `templates` are library functions found in its text.
    `maxima` says how maxima and minima were compared. `unverified` is the reason why it was not checked; empty
    where it was.
    """

    name: str
    ptx_sha256: str
    blocks: int
    addressed: int
    evaluated: int
    templates: list[str]
    ordering: list[str]
    maxima: Maxima
    unverified: str


class PtxRecord(Record):
    """States that the PTX of the kernels stores what their TTIR stores, without races, for one target."""

    kernels: list[PtxKernelRecord]

    @property
    def verified(self) -> bool:
        """Whether every kernel was checked."""
        return not any(k.unverified for k in self.kernels)

    @property
    def summary(self) -> str:
        """A summary in one line."""
        good = [k for k in self.kernels if not k.unverified]
        blocks = sum(k.evaluated for k in good)
        every = sum(k.blocks for k in good)
        addressed = sum(k.addressed for k in good)
        of = f"{blocks} of {every}" if blocks < every else f"all {every}"
        all_of = f"{addressed} of {every}" if addressed < every else f"all {every}"
        number = len(self.kernels)
        done = f"PTX of {len(good)} of {counted(number, 'kernel')}: values and order of {of} blocks"
        if blocks < every:
            done += f", and of {all_of} by their addresses"
        done += said_of(k.maxima for k in good)
        reasons = sorted({k.unverified for k in self.kernels if k.unverified})
        return "; ".join([done, *reasons])
