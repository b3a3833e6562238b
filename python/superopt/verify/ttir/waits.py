"""Whether a kernel waits for the one before it, beside which it may start, before it touches memory."""

from __future__ import annotations

from superopt.errors import IllegalProgram
from superopt.verify.ttir.parser import ASSEMBLY, Function

WAIT = "griddepcontrol.wait; // dummy $0"
KNOWN = frozenset({WAIT, "griddepcontrol.launch_dependents; // dummy $0"})
"""Assembly in TTIR: it waits for the kernel before, or lets the next one start, which changes nothing here."""
OPERATIONS = ("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents")
"""The same from Triton 3.9 on."""

# What may come before the wait: none of these touches memory.
_HARMLESS = ("arith.", "tt.get_program_id", "tt.get_num_programs", "tt.make_range", "tt.splat")


def check_wait(kernel: Function) -> None:
    """Raise IllegalProgram unless all instances wait before anything that may touch memory."""
    for op in kernel.body.ops:
        if op.name == OPERATIONS[0] or (op.name == ASSEMBLY and op.literal == WAIT):
            return
        if not op.name.startswith(_HARMLESS):
            break
    raise IllegalProgram(
        f"kernel '{kernel.name}' may start while the one before it runs: expected its TTIR to wait for that one "
        "before it touches memory, got none that does"
    )
