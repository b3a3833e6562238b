"""Triton IR as text: a reader, an evaluator over any domain, and the check of what `ptxas` gets.

parser    text -> functions, operations, regions
values    integers and pointers, which are concrete, and numbers of a domain
memory    device memory: bounds, races, barriers, initialisation
points    the fields, with constants as Triton holds them
batch     the instances that run side by side, and what their values hold
lines     the integers of a box of instances, from few of them
shapes    operations that arrange elements
accesses  loads and stores
evaluate  one launch, all program instances side by side
ran       what instances stored, for the check of the PTX
sampling  some blocks in place of all
check     a program against the TTIR of its kernels
artifact  the same for what goes into a bundle
"""

from __future__ import annotations

from superopt.verify.ttir.artifact import checked, verify_compiled
from superopt.verify.ttir.check import ArtifactRecord, KernelText, verify_ttir
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import parse

__all__ = [
    "ArtifactRecord",
    "Buffer",
    "KernelText",
    "checked",
    "launch",
    "parse",
    "verify_compiled",
    "verify_ttir",
]
