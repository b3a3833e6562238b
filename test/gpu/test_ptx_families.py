"""What the check of PTX computes, against numpy and, where there is one, against the GPU: by families of opcodes.

The layouts of fragments, swizzles and descriptors in `transforms/core/ptx` are read off the PTX ISA, as those of
Triton are; a GPU says whether both read it right.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from kernels import CASES, DTYPES, KERNELS, STAGES, WARPS, Compiler, Ints, Kernel, Text, inputs

from superopt.errors import IllegalProgram, SuperoptError
from superopt.verify.domains import Tensor
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.evaluate import launch as launch_ttir
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import parse as parse_ttir
from superopt.verify.ttir.points import ImageTriton

FIELD = ImageTriton("families", lattice="order")
PRIMES = [f.modulus for f in FIELD.fields]


@pytest.fixture(scope="module")
def compiler() -> Generator[Compiler]:
    """Kernels for their targets."""
    made = Compiler()
    yield made
    made.close()


def buffers(kernel: Kernel, integers: list[Ints] | None = None) -> list[Buffer]:
    """Memory for a launch: these integers, or random numbers of the field; nothing in the result."""
    made: list[Buffer] = []
    for i, (dtype, size) in enumerate(kernel.pointers):
        last = i == len(kernel.pointers) - 1
        made.append(Buffer(f"x{i}", size, DTYPES[dtype], writable=last))
        start = FIELD.random(f"x{i}", (size,))
        if not last and integers is not None:
            planes = tuple((integers[i] % p).astype(np.uint64) for p in PRIMES)
            start = Tensor(planes, start.degree, start.dtype)
        if not last:
            made[-1].fill(start)
    return made


def run(kernel: Kernel, text: Text, given: list[Buffer], ptx: str = "") -> Ints:
    """The result's residues modulo p: what all blocks store, and the sums of what atomics add."""
    launch = Launch(
        decode(parse(ptx or text.ptx, "k.ptx")), (kernel.grid, 1, 1), given, FIELD, text.shared_bytes
    )
    total = np.zeros(kernel.pointers[-1][1], object)
    written = np.zeros(total.shape, np.int64)
    for block in range(kernel.grid):
        stored = launch.run(block)[-1]
        assert set(stored.atomics.tolist()) <= {0, 1}
        total[stored.places] = (total[stored.places] + stored.values.astype(object)) % PRIMES[0]
        written[stored.places] += np.where(stored.atomics == 0, kernel.grid, 1)
    if not (written == kernel.grid).all():
        raise IllegalProgram("expected every element to be stored once, or to be added to by every block")
    return total


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_ptx_computes_the_kernel(compiler: Compiler, name: str, target: str) -> None:
    """Of random numbers of the field, as numpy does with Python's integers."""
    kernel, text = KERNELS[name], compiler(name, target)
    assert re.search(kernel.families[target], text.ptx), "the kernel has the opcodes that it is for"
    given = buffers(kernel)
    assert np.array_equal(run(kernel, text, given), kernel.reference(*numbers(given)) % PRIMES[0])


def numbers(given: list[Buffer]) -> list[Ints]:
    """What all buffers but the last hold, modulo p."""
    return [b.contents.planes[0].astype(object) for b in given[:-1] if b.contents is not None]


# TTIR of fp8, of atomics and of stores by descriptors is not evaluated.
IN_TTIR = ("f16", "bf16", "f16-transposed", "tf32", "tf32-transposed", "tf32x3", "copies")


@pytest.mark.parametrize(("name", "target"), [c for c in CASES if c[0] in IN_TTIR])
def test_the_ptx_computes_what_its_ttir_does(compiler: Compiler, name: str, target: str) -> None:
    kernel, text = KERNELS[name], compiler(name, target)
    expected = buffers(kernel)
    launch_ttir(parse_ttir(text.ttir, "k.ttir"), (kernel.grid, 1, 1), expected, FIELD)
    assert expected[-1].contents is not None
    assert np.array_equal(run(kernel, text, buffers(kernel)), expected[-1].contents.planes[0].astype(object))


# A thread that started no product says when all are complete.
BY_ANOTHER = r"{ .reg .pred %q; .reg .b32 %t; mov.u32 %t, %tid.x; setp.eq.u32 %q, %t, 32; @%q \1 }"
# One more product behind the last one, in columns that nobody reads: of what that one makes, or of another shape.
_LAST = (
    r"(tcgen05\.alloc[^;]*, )64;([\s\S]*)(@%p\d+ tcgen05\.mma\S* )\[ (%r\d+) \+ 0 \](, %rd\d+, (%rd\d+), (%r\d+), (%p\d+);)"
    r"([\s\S]*tcgen05\.dealloc[^;]*, )64;"
)
# Another warp gives the permit up, and does not wait for the allocation.
GIVEN_UP = r"\1\n{ .reg .pred %q; .reg .b32 %t; mov.u32 %t, %tid.x; shr.u32 %t, %t, 5; setp.eq.u32 %q, %t, 1; @%q \3 }\n\2"
OF_ANOTHER = r"\g<1>128;\2\3[ \4 + 0 ]\5\n\3[ \4 + 64 ], [ \4 + 0 ], \6, \7, \8;\g<9>128;"
OF_ANOTHER_SHAPE = (
    r"\g<1>128;\2\3[ \4 + 0 ]\5\n\3[ \4 + 64 ]\5\n{ .reg .b32 %n; add.s32 %n, \7, -524288; \3[ \4 + 64 ], "
    r"%rd70, \6, %n, \8; }\g<9>128;"
)
# What is replaced, by what, in which kernel for which target.
FAULTS = [
    ("tf32", "sm_80", r"(mma\.sync[^;]*\{ (%r\d+), )(%r\d+), (%r\d+)", r"\1\4, \3"),
    ("tf32", "sm_80", r"(mma\.sync[^;]*\}, \{ )(%r\d+), (%r\d+) \}, \{", r"\1\3, \2 }, {"),
    ("tf32", "sm_90", r"(wgmma\.mma_async[^;]*, )(%rd\d+), (%rd\d+),", r"\1\3, \2,"),
    ("tf32", "sm_90", r"wgmma\.wait_group[^;]*;", ""),
    ("tf32", "sm_100", r"kind::tf32", "kind::f16"),
    ("tf32", "sm_100", r"@%p\d+ tcgen05\.dealloc[^;]*;", ""),
    ("tf32", "sm_100", r"@%p\d+ (tcgen05\.commit[^;]*)\]", r"@%p1 \1+8]"),
    ("tf32", "sm_100", r"@%p\d+ (tcgen05\.commit[^;]*;)", BY_ANOTHER),
    ("tf32", "sm_100", _LAST, OF_ANOTHER),
    ("tf32", "sm_100", _LAST, OF_ANOTHER_SHAPE),
    # Where tensor memory is allocated, others decide.
    ("tf32", "sm_100", r"ld\.shared\.b32 (\s*%r\d+), \[global_smem\];", r"mov.b32 \1, 0;"),
    ("tf32", "sm_100", r"(ld\.shared\.b32 \s*(%r\d+), \[global_smem\];)", r"\1\nand.b32 \2, \2, 0;"),
    ("tf32", "sm_100", r"(@%p\d+ tcgen05\.alloc[^;]*;)([\s\S]*?)(@%p\d+ tcgen05\.relinquish[^;]*;)", r"\3\n\1\2"),
    ("tf32", "sm_100", r"(@%p\d+ tcgen05\.alloc[^;]*;)([\s\S]*?)@%p\d+ (tcgen05\.relinquish[^;]*;)", GIVEN_UP),
    # Bits of descriptors that belong to no field, and a shape that there is not.
    *(("tf32", "sm_100", "68159760", str(68159760 ^ 1 << bit)) for bit in (6, 23, 29, 30, 31)),
    ("tf32", "sm_100", "68159760", str(68159760 + (4 << 24) + (1 << 17))),
    *(("tf32", "sm_100", "4611756662049472512", str(4611756662049472512 | 1 << bit)) for bit in (14, 31, 53, 60)),
    *(("f16", "sm_90", "4611686293305294848", str(4611686293305294848 | 1 << bit)) for bit in (15, 30, 46, 52, 61)),
    ("e4m3-transposed", "sm_89", r"(mma\.sync[^;]*\{ (%r\d+), )(%r\d+), (%r\d+)", r"\1\4, \3"),
    ("e4m3-transposed", "sm_89", r"e4m3\.e4m3", "e5m2.e5m2"),
    ("e4m3-transposed", "sm_90", r"e4m3\.e4m3", "e4m3.e5m2"),
    ("e4m3-transposed", "sm_90", r"fence\.proxy\.async[^;]*;", ""),
    ("e4m3", "sm_89", r"(prmt\.b32[^;]*)0x5410U", r"\g<1>0x4510U"),
    ("from-e4m3", "sm_90", r"e4m3x2", "e5m2x2"),
    ("from-e5m2", "sm_90", r"mov\.b32 (\s*)\{(%rs\d+), (%rs\d+)\}", r"mov.b32 \1{\3, \2}"),
    ("to-e4m3", "sm_90", r"(e4m3x2\.f32 [^,]*, )(%r\d+), (%r\d+)", r"\1\3, \2"),
    ("copies", "sm_80", r"cp\.async\.wait_group[^;]*;", ""),
    ("boxes", "sm_90", r"fence\.proxy\.async[^;]*;", ""),
    ("boxes", "sm_90", r"cp\.async\.bulk\.wait_group\.read\s+0;", ""),
    ("boxes", "sm_90", r"swizzle_mode([^;]*)0x3", r"swizzle_mode\g<1>0x2"),
    ("sums of boxes", "sm_90", r"(cp\.reduce[^;]*)\{(%r\d+), (%r\d+)\}", r"\1{\3, \2}"),
    ("sums of boxes", "sm_90", r"(tensormap\.replace\.tile\.elemtype[^;]*, )0x7", r"\g<1>0x2"),
    ("sums of boxes", "sm_90", r"([\s\S]*tensormap\.replace\.tile\.elemtype[^;]*, )0x7", r"\g<1>0x8"),
    ("atomics-fp32", "sm_80", r"gpu\.acq_rel\.add", "cta.acq_rel.add"),
    ("atomics-fp32", "sm_80", r"@%p\d+ atom", "@!%p1 atom"),
    ("atomics-fp32", "sm_80", r"gpu\.acq_rel\.add", "gpu.acq_rel.max"),
    ("shuffles", "sm_80", r"(shfl[^;]*, )16,", r"\g<1>8,"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "target", "old", "new"), FAULTS)
def test_faults_in_families_are_found(compiler: Compiler, name: str, target: str, old: str, new: str) -> None:
    kernel, text = KERNELS[name], compiler(name, target)
    changed = re.sub(old, new, text.ptx, count=0 if new == "" or "\\" not in new else 1)
    assert changed != text.ptx, "the kernel has what the fault changes"
    given = buffers(kernel)
    try:
        found = run(kernel, text, given, changed)
    except (SuperoptError, AssertionError):
        return
    assert not np.array_equal(found, kernel.reference(*numbers(given)) % PRIMES[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_gpu_computes_the_same(compiler: Compiler, name: str, target: str) -> None:
    """The PTX that was evaluated above, on a device of its target."""
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" != target:
        pytest.skip(f"needs a device of {target}")
    kernel, text = KERNELS[name], compiler(name, target)
    given = inputs(kernel)
    found = on_gpu(torch, kernel, text, given)
    assert np.array_equal(found, kernel.reference(*given))
    residues = run(kernel, text, buffers(kernel, given))
    assert np.array_equal(found.astype(object) % PRIMES[0], residues)


def on_gpu(torch: Any, kernel: Kernel, text: Text, given: list[Ints]) -> Ints:
    """What the kernel stores on this machine's device; fails where Triton makes other PTX of it here."""
    import importlib
    import linecache
    import types

    from superopt.transforms.emit.compile import PRELUDE

    triton: Any = importlib.import_module("triton")
    source = PRELUDE + "\n" + kernel.source
    linecache.cache["k.py"] = (len(source), None, source.splitlines(keepends=True), "k.py")
    module: Any = types.ModuleType("k")
    exec(compile(source, "k.py", "exec"), module.__dict__)

    def scratch(size: int, alignment: int, stream: object) -> Any:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(scratch)
    types_of = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
        "fp8e4nv": torch.float8_e4m3fn,
        "fp8e5": torch.float8_e5m2,
    }
    arguments = [
        torch.tensor(x, dtype=torch.float32, device="cuda").to(types_of[t])
        for x, (t, _) in zip(given, kernel.pointers, strict=False)
    ]
    dtype, size = kernel.pointers[-1]
    arguments.append(torch.zeros(size, dtype=torch.float32, device="cuda").to(types_of[dtype]))
    made = module.k[(kernel.grid,)](*arguments, num_warps=WARPS, num_stages=STAGES)
    torch.cuda.synchronize()
    plain = [re.sub(r"\.file.*|\.loc.*", "", p) for p in (made.asm["ptx"], text.ptx)]
    assert plain[0] == plain[1], "the device runs the PTX that was evaluated"
    return arguments[-1].to(torch.float32).cpu().numpy().astype(np.int64)
