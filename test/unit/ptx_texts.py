"""Kernels as PTX written by hand: a head of 64-bit pointers and registers, and pieces of bodies for it."""

from __future__ import annotations

import numpy as np

from superopt.verify.fields import ImageField
from superopt.verify.ptx.budget import Budget
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch, Stored
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.memory import Buffer

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k(
  .param .u64 .ptr .global .align 1 k_param_0,
  .param .u64 .ptr .global .align 1 k_param_1
)
.reqntid THREADS
{
  .reg .pred %p<9>;
  .reg .b16 %rs<9>;
  .reg .b32 %r<40>;
  .reg .b64 %rd<9>;
  ld.param.b64 %rd1, [k_param_0];
  ld.param.b64 %rd2, [k_param_1];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  mov.b32 %r2, global_smem;
  shl.b32 %r3, %r1, 2;
  add.s32 %r4, %r2, %r3;
  xor.b32 %r5, %r3, 128;
  add.s32 %r6, %r2, %r5;
"""
LOAD = "ld.global.b32 {%r10}, [%rd4 + 0];\n"
COPY = "mov.b32 %r9, 4;\ncp.async.ca.shared.global [%r4 + 0], [%rd4 + 0], 0x4, %r9;\ncp.async.commit_group;\n"
STORE = "st.global.b32 [%rd5 + 0], {%r10};\n"
FIELD = ImageField("ptx", lattice="order")


def launched(
    body: str, threads: int = 64, shared: int = 1024, head: str = HEAD, *, budget: Budget | None = None
) -> Launch:
    """A head with a body: as many numbers as threads, and an output; none of its blocks run."""
    text = head.replace("THREADS", str(threads)) + body + "\nret;\n}\n"
    given, made = Buffer("x", threads, "f32", writable=False), Buffer("o", threads, "f32", writable=True)
    given.fill(FIELD.random("x", (threads,)))
    return Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [given, made], FIELD, shared, budget=budget)


def run(body: str, threads: int = 64, shared: int = 1024) -> tuple[Stored, np.ndarray]:
    """What block 0 stores in the second argument, and the first one's residues."""
    launch = launched(body, threads, shared)
    given = launch.buffers[0].contents
    assert given is not None
    return launch.run(0)[1], given.planes[0]
