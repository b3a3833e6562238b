"""Launching a bundle's cubins: what the CUDA driver is given, read back by a driver that has no GPU.

Sizes and order of parameters, threads and names are read from the cubins themselves (their `.nv.info` sections),
which ptxas wrote; nothing here shares code with what is tested.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loaded_modules import forget_modules
from programs import ATTENTION_ONLINE

from superopt.dialects.reader import read
from superopt.numerics import cubins, runner
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit import write_bundle
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower

torch: Any = pytest.importorskip("torch")
TARGETS = ("sm_80", "sm_90")
PARAMETER, THREADS = 0x17, 0x10  # EIATTR_KPARAM_INFO, EIATTR_REQNTID


def attributes(cubin: bytes, kernel: str) -> Iterator[tuple[int, bytes]]:
    """The entries of a kernel's `.nv.info` section."""
    (start,), (size, count, names) = (
        struct.unpack_from("<Q", cubin, 40),
        struct.unpack_from("<HHH", cubin, 58),
    )
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    strings = sections[names][4]
    for name, _, _, _, offset, length in sections:
        end = cubin.index(b"\0", strings + name)
        if cubin[strings + name : end].decode() != f".nv.info.{kernel}":
            continue
        at = offset
        while at < offset + length:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form == 4:
                yield attribute, cubin[at : at + value]
                at += value


class Cuda:
    """`libcuda.so.1` without a GPU: notes what it is called with."""

    def __init__(self) -> None:
        self.modules: list[bytes] = []
        self.launches: list[dict[str, Any]] = []
        self.shared: dict[int, int] = {}
        self.functions: list[tuple[bytes, str]] = []
        self.calls: dict[str, Callable[..., None]] = {
            "cuInit": self.init,
            "cuGetErrorString": self.error_string,
            "cuDevicePrimaryCtxRetain": self.retain,
            "cuCtxPushCurrent_v2": self.push,
            "cuCtxPopCurrent_v2": self.pop,
            "cuModuleLoadData": self.load,
            "cuModuleGetFunction": self.find,
            "cuFuncSetAttribute": self.set_attribute,
            "cuLaunchKernelEx": self.launch,
        }
        self.pushed = 0
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> int:
            if self.fails == name:
                return 201
            self.calls[name](*given)
            return 0

        return call

    def init(self, flags: int) -> None:
        assert flags == 0

    def error_string(self, code: int, text: Any) -> None:
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"invalid device context"

    def retain(self, context: Any, device: int) -> None:
        context._obj.value = 77 + device

    def push(self, context: Any) -> None:
        assert context.value == 77
        self.pushed += 1

    def pop(self, context: Any) -> None:
        self.pushed -= 1

    def load(self, module: Any, cubin: bytes) -> None:
        assert self.pushed == 1
        self.modules.append(cubin)
        module._obj.value = len(self.modules)

    def find(self, function: Any, module: Any, name: bytes) -> None:
        cubin = self.modules[int(module.value) - 1]
        assert list(attributes(cubin, name.decode()))
        self.functions.append((cubin, name.decode()))
        function._obj.value = len(self.functions)

    def set_attribute(self, function: Any, attribute: int, value: int) -> None:
        assert attribute == 8
        self.shared[function.value] = value

    def launch(self, config: Any, function: Any, pointers: Any, extra: Any) -> None:
        assert self.pushed == 1
        assert extra is None
        # CUlaunchConfig and CUlaunchAttribute, as cuda.h lays them out.
        raw = ctypes.string_at(ctypes.addressof(config._obj), 56)
        *sizes, shared, stream, first, count = struct.unpack("<7I4xQQI4x", raw)
        noted = [struct.unpack("<i4xi", ctypes.string_at(first + 72 * i, 12)) for i in range(count)]
        assert noted in ([], [(6, 1)])
        cubin, name = self.functions[int(function.value) - 1]
        found = [struct.unpack("<IHHI", data) for a, data in attributes(cubin, name) if a == PARAMETER]
        (threads,) = (struct.unpack("<III", data) for a, data in attributes(cubin, name) if a == THREADS)
        assert tuple(sizes[3:]) == threads
        assert shared <= max(self.shared.get(function.value, 0), 48 << 10)
        widths = [size >> 18 for _, _, _, size in sorted(found, key=lambda p: p[1])]
        values = [
            int.from_bytes(ctypes.string_at(pointers[i], width), "little") for i, width in enumerate(widths)
        ]
        self.launches.append(
            {
                "name": name,
                "grid": tuple(sizes[:3]),
                "shared": shared,
                "stream": stream,
                "early": bool(noted),
                "values": values,
            }
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A driver in the place of CUDA's, and a torch that sees a device of compute capability 9.0."""
    made = Cuda()

    def opened(_: str) -> Cuda:
        return made

    monkeypatch.setattr(ctypes, "CDLL", opened)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    forget_modules(monkeypatch, *("kernels", "launch", "reference", "checking", "cubins"))
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails
    return made


def two_kernels() -> KernelGraph:
    """A product and a sum of its rows: a kernel with much shared memory, and one with little."""
    a, b = Value(TensorType((512, 512), "f16"), "a"), Value(TensorType((512, 512), "f16"), "b")
    c, o = Value(TensorType((512, 512), "f16"), "c"), Value(TensorType((512,), "f16"), "o")
    nodes = [Node("matmul", (a, b), (c,)), Node("reduce_sum", (c,), (o,), attrs={"dims": (1,)})]
    return KernelGraph("two", [a, b], nodes, [o])


def save(folder: Path, graph: KernelGraph) -> Path:
    lowered = lower(graph)
    made = compile_all(emit_program(lowered).kernels, TARGETS)
    return write_bundle(folder, original=graph, lowered=lowered, compiled=made, artifact="not asked for")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {
        n: save(folder / n, g) for n, g in (("attention", read(ATTENTION_ONLINE)), ("two", two_kernels()))
    }


@pytest.mark.parametrize("name", ["attention", "two"])
def test_a_bundle_launches_its_cubins(
    name: str, bundles: dict[str, Path], cuda: Cuda, monkeypatch: pytest.MonkeyPatch
):
    folder = bundles[name]
    described = json.loads((folder / "bundle.json").read_text())
    facts = json.loads((folder / "shapes.json").read_text())
    made_here: list[Any] = []
    plain = torch.empty

    def empty(*given: Any, **options: Any) -> Any:
        made_here.append(plain(*given, **options))
        return made_here[-1]

    monkeypatch.setattr(torch, "empty", empty)
    cubins.use(folder)
    assert importlib.util.find_spec("kernels")  # others ask for packages of this name: transformers does
    launch = runner.load_module("launch", folder / "launch.py", (folder / "launch.py").read_bytes())
    dtypes = {"f16": torch.float16, "f32": torch.float32}
    inputs = [torch.zeros(i["shape"], dtype=dtypes[i["dtype"]]) for i in described["inputs"]]
    outputs = launch.run(*inputs)
    assert [tuple(o.shape) for o in outputs] == [tuple(o["shape"]) for o in described["outputs"]]
    assert [n["name"] for n in cuda.launches] == list(described["grids"])
    known = {t.data_ptr() for t in [*inputs, *made_here]}
    for made, kernel in zip(cuda.launches, facts["kernels"], strict=True):
        assert made["grid"] == tuple(kernel["grid"])
        assert made["stream"] == 5
        assert not made["early"]  # the tensors are not on a GPU
        assert made["shared"] == facts["compiled"][f"sm_90/{made['name']}"]["shared_bytes"]
        *tensors, one, other = made["values"]
        assert (one, other) == (0, 0)
        assert len(tensors) == len(kernel["parameters"])
        assert set(tensors) <= known
    first, last = cuda.launches[0]["values"][:-2], cuda.launches[-1]["values"][:-2]
    assert inputs[0].data_ptr() in first
    assert last[-1] == outputs[0].data_ptr()
    cubin = (folder / "sm_90" / f"{cuda.launches[0]['name']}.cubin").read_bytes()
    assert cuda.modules[0] == cubin
    launch.run(*inputs)
    assert len(cuda.modules) == len(described["grids"])  # each once
    assert cuda.pushed == 0


def test_a_kernel_starts_early_if_it_waits(bundles: dict[str, Path], cuda: Cuda):
    """The launch says so of the second kernel, whose cubin waits for the first; of one that does not, never."""
    folder = bundles["two"]
    _, name = json.loads((folder / "bundle.json").read_text())["grids"]
    for target, waits in (("sm_80", False), ("sm_90", True)):
        cubin, ptx = ((folder / target / f"{name}.{k}").read_bytes() for k in ("cubin", "ptx"))
        kernel = cubins.Kernel(cubins.Driver(), name, cubin, ptx.decode(), 0)
        tensors = [torch.zeros(4) for _ in range(len(kernel.parameters) - 2)]
        kernel[(1, 1, 1)](*tensors, launch_pdl=True)
        kernel[(1, 1, 1)](*tensors, launch_pdl=False)
        assert [n["early"] for n in cuda.launches[-2:]] == [waits, False]


def test_what_comments_say_launches_nothing(bundles: dict[str, Path], cuda: Cuda):
    """The check of the PTX does not read them: another kernel may stand there, or a wait that nobody executes."""
    folder = bundles["two"]
    _, name = json.loads((folder / "bundle.json").read_text())["grids"]
    cubin, ptx = ((folder / "sm_80" / f"{name}.{k}").read_bytes() for k in ("cubin", "ptx"))
    said = f"// .entry {name}(.param .u32 x) .reqntid 32 {{ griddepcontrol.wait; }}\n" + ptx.decode()
    said += '\t.file 2 "tensormap"\n'
    kernel, other = (cubins.Kernel(cubins.Driver(), name, cubin, text, 0) for text in (ptx.decode(), said))
    assert (other.threads, other.parameters, other.waits) == (kernel.threads, kernel.parameters, False)


def test_run_py_checks_cubins(
    bundles: dict[str, Path], cuda: Cuda, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """With --kernels=cubin, `run.py` needs no Triton; outputs that no kernel wrote are out of tolerance."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to", _stay(torch.Tensor.to))
    code = runner.main([f"--bundle={bundles['attention']}", "--kernels=cubin", "--check"])
    assert "OUT OF TOLERANCE" in capfd.readouterr().out
    assert code == 1
    assert cuda.launches


def _stay(to: Any) -> Any:
    """`Tensor.to` that knows no device but the CPU."""

    def moved(tensor: Any, where: Any, *more: Any) -> Any:
        return to(tensor, "cpu" if where == "cuda" else where, *more)

    return moved


def test_what_cannot_be_launched(
    bundles: dict[str, Path], cuda: Cuda, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    folder = bundles["attention"]
    (name,) = json.loads((folder / "bundle.json").read_text())["grids"]
    ptx, cubin = (
        (folder / "sm_90" / f"{name}.ptx").read_text(),
        (folder / "sm_90" / f"{name}.cubin").read_bytes(),
    )

    def kernel(text: str) -> cubins.Kernel:
        return cubins.Kernel(cubins.Driver(), name, cubin, text, 0)

    good = kernel(ptx)
    tensors = [torch.zeros(64) for _ in range(len(good.parameters) - 2)]
    with pytest.raises(cubins.CannotLaunch, match=r"expected \d arguments, got 1"):
        good[(1, 1, 1)](tensors[0])
    with pytest.raises(cubins.CannotLaunch, match="multiples of 16 bytes"):
        good[(1, 1, 1)](tensors[0][1:], *tensors[1:])
    with pytest.raises(cubins.CannotLaunch, match="tensor descriptors"):
        kernel(ptx + "tensormap.replace")
    with pytest.raises(cubins.CannotLaunch, match="expected the PTX of kernel"):
        kernel(ptx.replace(name, "other"))
    cuda.fails = "cuLaunchKernelEx"
    with pytest.raises(
        cubins.CannotLaunch, match="expected cuLaunchKernelEx to succeed, got 201: invalid device"
    ):
        good[(1, 1, 1)](*tensors)
    assert cuda.pushed == 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    with pytest.raises(cubins.CannotLaunch, match="expected a bundle for sm_120, got one for sm_80, sm_90"):
        cubins.use(folder)
    assert runner.main([f"--bundle={folder}", "--device=interpreter", "--kernels=cubin"]) == 2
    assert "expected --device=cuda with --kernels=cubin" in capfd.readouterr().err


@pytest.mark.usefixtures("cuda")
def test_an_extent_is_a_number():
    text = ".visible .entry k(\n.param .u64 k_0,\n.param .u32 k_1,\n.param .u64 k_2,\n.param .u64 k_3\n)\n.reqntid 64\n{"
    held = cubins.Kernel(cubins.Driver(), "k", b"", text, 0).packed([torch.zeros(4), 5])
    assert [ctypes.sizeof(h) for h in held] == [8, 4, 8, 8]
    assert held[1].value == 5


@pytest.mark.parametrize(("capability", "target"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90")])
def test_which_target_a_device_runs(capability: tuple[int, int], target: str):
    assert cubins.target_of(capability, TARGETS) == target


@pytest.mark.usefixtures("cuda")
def test_a_changed_cubin_is_not_loaded(bundles: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "b"
    shutil.copytree(bundles["attention"], folder)
    (place,) = (folder / "sm_90").glob("*.cubin")
    place.write_bytes(place.read_bytes() + b"\0")
    with pytest.raises(cubins.CannotLaunch, match="as it was written"):
        cubins.use(folder)
