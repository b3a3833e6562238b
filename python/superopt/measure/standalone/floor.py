"""The time below which a measurement cannot be true: compulsory bytes and flops at the peaks of the device.

Only what no program can avoid counts: every input that is used is read once (the L2 cache was flushed
before), and outputs are written as far as they exceed what L2 may still hold at the end. Flops are those of
the row's own matrix products where they are known, as an algebraic rewrite may need fewer than the program
has.
"""

from __future__ import annotations

from typing import Any

# Dense 16-bit flops of one multiprocessor in one clock, by compute capability times ten.
_TENSOR_FLOPS_PER_CLOCK = {80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192}
# Where the memory's clock and width cannot be read: a little above the fastest board of each generation.
_MEMORY_PEAK = {80: 2.1e12, 86: 1.1e12, 89: 1.1e12, 90: 5.0e12, 100: 8.2e12, 103: 8.2e12}
_UNKNOWN_MEMORY_PEAK = 1e13


def floor_seconds(program: dict[str, Any], point: dict[str, Any], device: dict[str, Any]) -> float:
    """Lower bound of one run of `point` on `device` (facts of `device.py`), in seconds; 0 if none is known."""
    if device.get("kind") != "cuda":
        return 0.0
    capability = int(device["capability"])
    peak = float(device.get("memory_bytes_per_second") or 0) or _MEMORY_PEAK.get(
        capability, _UNKNOWN_MEMORY_PEAK
    )
    written = max(program["written_bytes"] - float(device.get("l2_bytes") or 0), 0)
    bound = (program["read_bytes"] + written) / peak
    if peak_flops := peak_matrix_flops(device):
        bound = max(bound, float(point.get("matrix_flops", 0)) / peak_flops)
    return bound


def peak_matrix_flops(device: dict[str, Any]) -> float:
    """Dense 16-bit flops per second of all matrix units at the largest clock; 0 where that is not known."""
    rate = _TENSOR_FLOPS_PER_CLOCK.get(int(device.get("capability") or 0), 0)
    return rate * int(device.get("multiprocessors") or 0) * float(device.get("clock_hz") or 0)
