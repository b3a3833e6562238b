"""Fuzzing of the tools, scaled down: `test/fuzz/fuzz.py --seconds=3600` is the whole run."""

from __future__ import annotations

import importlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from superopt.errors import SuperoptError
from superopt.verify.ttir import parse

RUNS = int(os.environ.get("SUPEROPT_TEST_FUZZ", "80"))
sys.path.insert(0, str(Path(__file__).parent.parent / "fuzz"))


@pytest.fixture(scope="module")
def fuzz() -> Any:
    pytest.importorskip("torch_mlir")
    return importlib.import_module("fuzz")


def test_tools_answer_every_input(fuzz: Any):
    result = fuzz.campaign(seconds=120.0, seed=0, most=RUNS)
    assert result.findings == []
    assert result.answers["refused"] > RUNS / 2
    assert result.answers["accepted"] > 0


def test_a_tool_that_fails_is_found_out(fuzz: Any, monkeypatch: pytest.MonkeyPatch):
    def broken(arguments: list[str]) -> int:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(fuzz, "_tool", broken)
    result = fuzz.campaign(seconds=60.0, seed=0, most=3)
    assert len(result.findings) == 3


TTIR = """module {
  tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %o: !tt.ptr<f32>) attributes {noinline = false} {
    %c4 = arith.constant dense<4> : tensor<8xi32>
    %r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %m = arith.cmpi slt, %r, %c4 : tensor<8xi32>
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %q = tt.addptr %p, %r : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %v = tt.load %q, %m : tensor<8x!tt.ptr<f32>>
    %s = "tt.reduce"(%v) <{axis = 0 : i32}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }) : (tensor<8xf32>) -> f32
    tt.store %o, %s : !tt.ptr<f32>
    tt.return
  }
}
"""


def test_ttir_is_read_or_refused(fuzz: Any):
    """The reader of Triton IR, and the evaluator on what it reads: an error of ours, or none."""
    from superopt.verify.fields import ImageField
    from superopt.verify.ttir import Buffer, launch

    generator = random.Random(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1500):
        text = fuzz.mutate(TTIR.encode(), [TTIR.encode()], generator).decode(errors="replace")
        field = ImageField(0)
        buffers = [Buffer("x", 8, "f32", writable=False), Buffer("o", 1, "f32", writable=True)]
        buffers[0].fill(field.random("x", (8,)))
        try:
            launch(parse(text), (1, 1, 1), buffers, field)
            outcomes["read"] += 1
        except SuperoptError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["read"] > 5
