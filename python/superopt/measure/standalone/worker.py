"""Inside the process of one candidate: load it, check it, time a round when asked, check again.

Answers are plain dictionaries; an answer with "error" is the last one. Nothing here is shared with another
candidate, so whatever goes wrong costs one row.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checks import Expected, make_inputs
from .device import Device, Unavailable, find

# A round takes about this long, within these numbers of repetitions.
ROUND_SECONDS = 0.03
MOST_REPEATS = 200


class Rejected(Exception):
    """Why a candidate cannot be timed: (status of its row, text)."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Candidate:
    """One candidate on one device, with its inputs and what it should compute."""

    def __init__(self, request: dict[str, Any], device: Device | None = None) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.request, self.program, self.point = request, request["program"], request["point"]
        self.device = device or find(self.torch, request["device"])
        self.calls: dict[str, Callable[[], Any]] = {}
        self.outputs: Any = ()
        self.launch: Any = None
        self.prepared: dict[str, Any] = {}
        self.modes: dict[str, str] = {}

    def prepare(self) -> dict[str, Any]:
        """Load, compile, check on two sets of inputs, find out how long a call takes."""
        started = time.perf_counter()
        torch, where = self.torch, self.device.name
        folder = Path(self.request["folder"])
        constants = self._constants(folder, where)
        reference = _load(folder / self.program["reference"], "superopt_reference")
        self.inputs = make_inputs(torch, self.program, where, self.request["seed"])
        self.run = self._callable(folder / self.point["path"])
        self.own = {t.untyped_storage().data_ptr() for t in self.inputs}
        worst = 0.0
        for seed in (self.request["seed"], self.request["seed"] + 1):
            # The same memory with other numbers: what caches an answer by address is caught.
            for mine, new in zip(self.inputs, make_inputs(torch, self.program, where, seed), strict=True):
                mine.copy_(new)
            self.prepared = self._prepared()
            with torch.no_grad():
                self.expected = Expected(torch, reference, constants, self.program, self.inputs)
            self._poison()
            self._call()
            worst = max(worst, self._check())
        self.calls["plain"] = self._call
        self._capture()
        took = time.perf_counter() - started
        first = self.device.time(self.calls["plain"], self.request.get("warmup", 3), self._poison)
        return {
            "ratio": worst,
            "setup_seconds": took,
            "seconds": min(first),
            "modes": self.modes,
            "facts": self.facts(),
        }

    def facts(self) -> dict[str, Any]:
        """The device, and the versions that run on it."""
        versions = {"python": sys.version.split()[0], "torch": self.torch.__version__}
        with contextlib.suppress(ModuleNotFoundError):
            versions["triton"] = importlib.import_module("triton").__version__
        return {"device": self.device.facts(), "versions": versions}

    def round(self, mode: str, repeats: int) -> dict[str, Any]:
        """Time `repeats` calls; the output of the last one is checked, memory was overwritten before each."""
        if mode == "graph":
            self.outputs = self.recorded
        times = self.device.time(self.calls[mode], repeats, self._poison)
        return {"times": times, "ratio": self._check()}

    def _callable(self, folder: Path) -> Callable[..., Any]:
        sys.path.insert(0, str(folder))
        self.launch = launch = importlib.import_module("launch")
        # What has weights takes their memory once: later numbers come by the same memory.
        run = launch.bind(*self.inputs) if hasattr(launch, "bind") else launch.run
        # Of this process, which has one row: convolutions are timed in the first call, and the fastest stays.
        self.torch.backends.cudnn.benchmark = bool(self.point.get("cudnn_benchmark"))
        mode = self.point.get("compile")
        if mode is None:
            return run
        return self.torch.compile(run, dynamic=False, mode=None if mode == "default" else mode)

    def _prepared(self) -> dict[str, Any]:
        """What is made of the weights as they are now, once for all calls."""
        if not hasattr(self.launch, "prepare"):
            return {}
        weights = [self.inputs[i] for i in self.launch.WEIGHTS]
        with self.torch.no_grad():
            return {"prepared": self.launch.prepare(self.inputs[0].device, *weights)}

    def _constants(self, folder: Path, where: str) -> dict[str, Any]:
        path = folder / self.program["reference"]
        arrays = path.with_name("constants.npz")
        if not arrays.exists():
            return {}
        numpy: Any = importlib.import_module("numpy")
        loaded = numpy.load(arrays, allow_pickle=False)
        return {name: self.torch.from_numpy(loaded[name]).to(where) for name in loaded}

    def _call(self) -> None:
        with self.torch.no_grad():
            made: Any = self.run(*self.inputs, **self.prepared)
        self.outputs = (made,) if hasattr(made, "untyped_storage") else tuple(made)

    def _poison(self) -> None:
        """Overwrite the last outputs with NaN: what a call does not write cannot pass for its result.

        For integers it is the least one, for truth values the other one.
        """
        for t in self.outputs:
            if t.untyped_storage().data_ptr() in self.own:
                continue
            if t.is_floating_point():
                t.fill_(float("nan"))
            elif t.dtype == self.torch.bool:
                t.logical_not_()
            else:
                t.fill_(self.torch.iinfo(t.dtype).min)
        self.outputs = ()

    def _check(self) -> float:
        ratio = self.expected.ratio(self.outputs)
        if not ratio <= 1:
            raise Rejected("wrong", f"outputs are {ratio:.3g} times as far off as allowed")
        return ratio

    def _capture(self) -> None:
        self.modes["plain"] = ""
        try:
            replay, made = self.device.capture(lambda: (self._call(), self.outputs)[1])
        except Unavailable as error:
            self.modes["graph"] = str(error)
            return
        self.recorded = made

        def again() -> None:
            replay()
            self.outputs = self.recorded

        self.modes["graph"] = ""
        self.calls["graph"] = again


def repeats_for(seconds: float) -> int:
    """How many calls of this length make a round."""
    return max(3, min(MOST_REPEATS, int(ROUND_SECONDS / max(seconds, 1e-9))))


def answer(candidate: Candidate, question: dict[str, Any]) -> dict[str, Any]:
    """What the candidate answers; an "error" with the status of its row where it cannot."""
    try:
        if question["do"] == "facts":
            return candidate.facts()
        if question["do"] == "prepare":
            return candidate.prepare()
        return candidate.round(question["mode"], question["repeats"])
    except Rejected as error:
        return {"error": str(error), "status": error.status}
    except Unavailable as error:
        return {"error": str(error), "status": "unavailable"}
    except MemoryError:
        return {"error": "out of memory", "status": "failed"}
    except Exception as error:  # whatever a candidate raises is its row's result
        text = f"{type(error).__name__}: {error}".strip()
        return {"error": text[-2000:], "status": "failed"}


def serve(request: dict[str, Any], questions: Any, alive: Any, log: str) -> None:
    """The process: answer until the parent says stop, or is gone."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    threading.Thread(target=_watch, args=(alive,), daemon=True).start()
    candidate: Candidate | None = None
    while True:
        try:
            question = questions.recv()
        except EOFError:
            os._exit(1)
        if question["do"] == "stop":
            break
        try:
            candidate = candidate or Candidate(request)
        except Unavailable as error:
            questions.send({"error": str(error), "status": "unavailable"})
            break
        except Exception as error:
            questions.send({"error": f"{type(error).__name__}: {error}", "status": "failed"})
            break
        reply = answer(candidate, question)
        questions.send(reply)
        if "error" in reply:
            break
    os._exit(0)  # no clean-up that a broken device could hang in


def _watch(alive: Any) -> None:
    """End with the parent, whatever this process is doing."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


def _load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Rejected("failed", f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
