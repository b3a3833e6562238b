"""Clocks, temperature, power and driver, by NVML where `pynvml` is installed; no CUDA context."""

from __future__ import annotations

import importlib
from typing import Any


class Clocks:
    """Readings of one GPU; every method gives an empty result where NVML cannot be asked."""

    def __init__(self, index: int = 0) -> None:
        self._nvml: Any = None
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml = nvml
        except Exception:  # no package, no driver, no permission: NVML's errors lack a common base without it
            self._nvml = None

    def facts(self) -> dict[str, Any]:
        """What does not change: driver, name, largest clocks (MHz), memory peak (bytes per second)."""
        nvml = self._nvml
        if nvml is None:
            return {}
        found: dict[str, Any] = {}
        self._ask(found, "driver", lambda: _text(nvml.nvmlSystemGetDriverVersion()))
        self._ask(found, "name", lambda: _text(nvml.nvmlDeviceGetName(self._gpu)))
        self._ask(found, "sm_mhz_max", lambda: nvml.nvmlDeviceGetMaxClockInfo(self._gpu, nvml.NVML_CLOCK_SM))
        self._ask(
            found, "memory_mhz_max", lambda: nvml.nvmlDeviceGetMaxClockInfo(self._gpu, nvml.NVML_CLOCK_MEM)
        )
        self._ask(found, "memory_bus_bits", lambda: nvml.nvmlDeviceGetMemoryBusWidth(self._gpu))
        self._ask(found, "power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu) / 1000)
        return found

    def now(self) -> dict[str, Any]:
        """What changes: clocks (MHz), temperature (C), power (W), reasons for throttling (NVML's bits)."""
        nvml = self._nvml
        if nvml is None:
            return {}
        found: dict[str, Any] = {}
        self._ask(found, "sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(self._gpu, nvml.NVML_CLOCK_SM))
        self._ask(found, "memory_mhz", lambda: nvml.nvmlDeviceGetClockInfo(self._gpu, nvml.NVML_CLOCK_MEM))
        self._ask(
            found, "celsius", lambda: nvml.nvmlDeviceGetTemperature(self._gpu, nvml.NVML_TEMPERATURE_GPU)
        )
        self._ask(found, "watts", lambda: nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000)
        self._ask(found, "throttle", lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu)))
        return found

    def _ask(self, found: dict[str, Any], name: str, question: Any) -> None:
        try:
            found[name] = question()
        except Exception:  # one reading that this GPU does not give
            return


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
