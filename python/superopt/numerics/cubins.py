"""Launches a bundle's cubins, the very ones that were checked, through the CUDA driver. Needs torch, not Triton.

    import cubins
    cubins.use()          # before launch.py is imported: its `kernels` are the bundle's cubins then
    import launch

A kernel's parameters and threads are what its PTX states, its shared memory what `shapes.json` does (CUDA Driver
API, "Execution Control"). Not for kernels that need more than their arguments: memory for tensor descriptors,
clusters of blocks.
"""

import ctypes
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SHARED_BY_DEFAULT = 48 << 10  # bytes of dynamic shared memory that a kernel may have without asking
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# Triton appends two pointers, of which the kernels that are launched here need none.
UNUSED = 2
ALIGNMENT = 16  # bytes; the compiler was told that every tensor starts at a multiple
_WIDTHS = {"u64": ctypes.c_uint64, "b64": ctypes.c_uint64, "u32": ctypes.c_uint32, "b32": ctypes.c_uint32}
_NEEDS = (
    ("tensormap", "memory for tensor descriptors"),
    (".reqnctapercluster", "clusters"),
    (".explicitcluster", "clusters"),
)

_STARTS_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its value is a union of 64 bytes, of which a truth value takes the first four."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


Read = Callable[[str], bytes]
"""A file of the bundle, by its name."""


class CannotLaunch(Exception):
    """Why a cubin cannot be launched; its text is shown to the user."""

    @property
    def message(self) -> str:
        """The text."""
        return str(self)


class Driver:
    """Calls of the CUDA driver, each checked."""

    def __init__(self) -> None:
        try:
            self.library: Any = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise CannotLaunch("expected the CUDA driver (libcuda.so.1), got none") from None
        self.call("cuInit", 0)
        self.contexts: dict[int, ctypes.c_void_p] = {}  # by device

    def call(self, name: str, *arguments: Any) -> None:
        """One function; raises CannotLaunch with the driver's words."""
        if code := getattr(self.library, name)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"an unknown error").decode()
            raise CannotLaunch(f"expected {name} to succeed, got {code}: {said}")

    def __enter__(self) -> "Driver":
        """With the context that torch uses on its current device."""
        torch: Any = sys.modules["torch"]
        device = torch.cuda.current_device()
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts[device] = context
        self.call("cuCtxPushCurrent_v2", self.contexts[device])
        return self

    def __exit__(self, *_: object) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def function(self, cubin: bytes, name: str, shared_bytes: int) -> ctypes.c_void_p:
        """A kernel that may have this much shared memory; its module stays loaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > SHARED_BY_DEFAULT:
            self.call("cuFuncSetAttribute", function, MOST_SHARED, shared_bytes)
        return function


class Kernel:
    """One cubin; `kernel[grid](*arguments)` launches it on torch's current stream, as Triton's kernels do."""

    def __init__(self, driver: Any, name: str, cubin: bytes, ptx: str, shared_bytes: int) -> None:
        self.driver, self.name, self.cubin, self.shared_bytes = driver, name, cubin, shared_bytes
        ptx = re.sub(r'"[^"\n]*"|//[^\n]*', "", ptx)  # what it says in comments was not checked
        entry = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)(.*?)\{{", ptx, re.DOTALL)
        threads = re.search(r"\.reqntid\s+(\d+)", entry[2]) if entry else None
        if entry is None or threads is None:
            raise CannotLaunch(f"expected the PTX of kernel '{name}', got another")
        for mark, what in _NEEDS:
            if mark in ptx:
                raise CannotLaunch(
                    f"kernel '{name}': expected one that needs its arguments alone, got {what}"
                )
        self.threads = int(threads[1])
        self.waits = "griddepcontrol.wait" in ptx
        self.parameters: list[str] = re.findall(r"\.param\s+\.(\w+)", entry[1])
        self.functions: dict[int, ctypes.c_void_p] = {}  # by device

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*arguments: Any, launch_pdl: bool = False, **_: Any) -> None:
            self.launch(tuple(grid), arguments, early=launch_pdl)

        return launch

    def launch(self, grid: tuple[int, ...], arguments: Sequence[Any], *, early: bool = False) -> None:
        """Launch the kernel; `arguments` are tensors, and an extent where it takes one.

        An `early` one may start while the kernel before it still runs, whose end it must wait for itself.
        """
        torch: Any = sys.modules["torch"]
        held = self.packed(arguments)
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(h) for h in held))
        device = torch.cuda.current_device()
        with self.driver as driver:
            if device not in self.functions:
                self.functions[device] = driver.function(self.cubin, self.name, self.shared_bytes)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            attribute = _Attribute(_STARTS_EARLY, b"", (ctypes.c_int * 16)(1))
            sizes = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(self.threads, 1, 1), self.shared_bytes
            count = int(early and self.waits)
            config = _Config(*sizes, stream, ctypes.pointer(attribute), count)
            driver.call("cuLaunchKernelEx", ctypes.byref(config), self.functions[device], pointers, None)

    def packed(self, arguments: Sequence[Any]) -> list[Any]:
        """The values of all parameters, each as wide as the PTX states it."""
        if len(arguments) != len(self.parameters) - UNUSED:
            wanted = len(self.parameters) - UNUSED
            raise CannotLaunch(f"kernel '{self.name}': expected {wanted} arguments, got {len(arguments)}")
        held: list[Any] = []
        for kind, argument in zip(self.parameters, [*arguments, *[0] * UNUSED], strict=True):
            value = argument if isinstance(argument, int) else argument.data_ptr()
            if not isinstance(argument, int) and (kind not in ("u64", "b64") or value % ALIGNMENT):
                raise CannotLaunch(
                    f"kernel '{self.name}': expected tensors that start at multiples of {ALIGNMENT} bytes, "
                    f"got one at {value} for a parameter of {kind}"
                )
            held.append(_WIDTHS[kind](value))
        return held


def target_of(capability: tuple[int, int], targets: Sequence[str]) -> str:
    """The target whose cubins a device runs; raises CannotLaunch where there is none.

    Those of sm_90 and sm_100 are for these alone, as they use what others lack; those of sm_80 run on 8.x (CUDA
    C++ Programming Guide, "Binary Compatibility").
    """
    major, minor = capability
    for target in (f"sm_{major}{minor}", *(["sm_80"] if major == 8 else [])):
        if target in targets:
            return target
    raise CannotLaunch(f"expected a bundle for sm_{major}{minor}, got one for {', '.join(targets)}")


def kernels(
    read: Read, described: Mapping[str, Any], capability: tuple[int, int], driver: Any
) -> types.ModuleType:
    """A module in the place of a bundle's `kernels.py`: its cubins for a device of this compute capability."""
    target = target_of(capability, described["targets"])
    facts = json.loads(read("shapes.json"))["compiled"]
    # With a specification: whoever asks whether there is a package of this name gets an answer, not an error.
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("kernels", None))
    for name in described["grids"]:
        cubin, ptx = read(f"{target}/{name}.cubin"), read(f"{target}/{name}.ptx").decode()
        shared = int(facts[f"{target}/{name}"]["shared_bytes"])
        setattr(module, name, Kernel(driver, name, cubin, ptx, shared))
    return module


def use(folder: Any = None) -> None:
    """From now on, `import kernels` gives the cubins of the bundle in `folder`, by default that of this file."""
    torch: Any = importlib.import_module("torch")

    place = Path(folder) if folder else Path(__file__).resolve().parent
    described = json.loads((place / "bundle.json").read_text())

    def read(name: str) -> bytes:
        data = (place / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != described["files"][name]:
            raise CannotLaunch(f"expected the file '{name}' as it was written, got another: {place}")
        return data

    capability: tuple[int, int] = torch.cuda.get_device_capability()
    sys.modules["kernels"] = kernels(read, described, capability, Driver())
