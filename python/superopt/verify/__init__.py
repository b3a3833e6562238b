"""Certifies that two programs are equivalent: `certify` gives a verdict, `check_each` raises.

Nothing here is shared with the searches that propose programs: this is what their results are tried by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.verify.certificate import Certificate, Counterexample
    from superopt.verify.certifier import Verdict, certify, certify_lowered, check_each
    from superopt.verify.hashing import program_hash

__all__ = [
    "Certificate",
    "Counterexample",
    "Verdict",
    "certify",
    "certify_lowered",
    "check_each",
    "program_hash",
]

_MODULES = {
    "Certificate": "certificate", "Counterexample": "certificate", "Verdict": "certifier",
    "certify": "certifier", "certify_lowered": "certifier", "check_each": "certifier", "program_hash": "hashing",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load on first use: the import time of numpy and pydantic is not everybody's to pay."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
