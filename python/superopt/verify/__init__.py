"""Certifies that two programs are equivalent: `certify` returns a verdict, `check_each` raises.

Shares nothing with the searches that propose programs, since it judges their results.
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
    """Load on first use: numpy and pydantic are slow to import."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
