"""The check of the PTX that is about to be written into a bundle, target by target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.program import KernelGraph
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import ArtifactRecord
from superopt.verify.ttir.ran import Ran

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram


def checked_ptx(
    records: dict[str, ArtifactRecord] | str,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: Sequence[Compiled],
    *,
    seed: int = 0,
    ran: Ran | None = None,
) -> dict[str, ArtifactRecord] | str:
    """The `records` of the TTIR with those of the PTX; unchanged where the TTIR could not be verified.

    `ran` are the instances that its check ran. Raises what `verify_ptx` raises.
    """
    if isinstance(records, str):
        return records
    found: dict[str, ArtifactRecord] = {}
    for target, record in records.items():
        kernels = [k for k in compiled if k.target == target]
        texts = [PtxText(k.ptx, k.shared_bytes) for k in kernels]
        ptx = verify_ptx(lowered, kernel_texts(emitted, kernels), texts, seed=seed, ran=ran)
        found[target] = record.model_copy(update={"ptx": ptx})
    return found
