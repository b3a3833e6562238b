"""What users bring beside tensors of floats: integers, truth values, nested arguments and results, odd layouts."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, UnsupportedProgram
from superopt.transforms.ingest import from_torch
from superopt.transforms.ingest.torch_dialect import TorchReader

torch: Any = pytest.importorskip("torch")


class Mixed(torch.nn.Module):
    """Looks rows up, masks scores, and returns floats, indices, truth values and None, nested."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.table = torch.nn.Embedding(20, 16)
        self.register_buffer("counts", torch.arange(7))

    def forward(self, x: Any, given: dict[str, Any], scale: float) -> Any:
        scores = (x @ self.table(given["rows"]).mT * scale).masked_fill(given["mask"], -1e4)
        best, index = torch.topk(scores.softmax(-1), 2)
        return {"scores": scores.float() + given["small"].float(), "top": (best, index, None), "few": x > 0}


def mixed() -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs, the first of them transposed in memory."""
    torch.manual_seed(0)
    small = torch.randint(-100, 100, (5, 7), dtype=torch.int8)
    rows, mask = torch.randint(0, 20, (7,)), torch.rand(5, 7) > 0.7
    return Mixed(), (torch.randn(16, 5).t(), {"rows": rows, "mask": mask, "small": small}, 0.25)


def test_an_optimized_module_takes_and_returns_what_the_module_does() -> None:
    module, inputs = mixed()
    optimized = superopt.optimize(module, inputs, budget=1, store=None, interpret=True).requires_grad_(False)
    made, wanted = optimized(*inputs), module(*inputs)
    assert list(made) == list(wanted)
    assert made["top"][2] is None
    assert torch.equal(made["top"][1], wanted["top"][1])
    assert made["few"].dtype == torch.bool
    assert torch.equal(made["few"], wanted["few"])
    for mine, theirs in ((made["scores"], wanted["scores"]), (made["top"][0], wanted["top"][0])):
        assert torch.allclose(mine, theirs, atol=1e-4)
    with pytest.raises(BadInput, match=r"expected 0.25 for '\w+', which the program was made for, got 0.5"):
        optimized(*inputs[:2], 0.5)
    with pytest.raises(
        BadInput, match=r"expected arguments like the example inputs \(tensor, .*, got \(tensor,\)"
    ):
        optimized(inputs[0])
    with pytest.raises(
        BadInput, match=r"argument 2 \('\w+\.mask'\) of \(5, 7\) torch.bool, got \(5, 7\) torch.int64"
    ):
        optimized(inputs[0], {**inputs[1], "mask": inputs[1]["mask"].long()}, 0.25)


class Compared(torch.nn.Module):
    """Truth values as numbers, alone and beside themselves, and in the lists that `cat` and `stack` take."""

    def forward(self, x: Any, y: Any) -> Any:
        above, below = x > 0, y < 0
        return (
            above.float(), above, (x > y).type_as(x), above.float() * below.float(), above & below,
            torch.stack([above, below]), torch.cat([above, below], -1), torch.cat([above.float(), y]),
            below.float().cumsum(-1), below.cumsum(-1), torch.where(x > y, 1.0, 0.0),
        )  # fmt: skip


def test_truth_values_and_their_numbers_have_dtypes_of_their_own() -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    made = superopt.optimize(Compared(), (x, y), budget=1, store=None, interpret="cpu")
    for i, (got, wanted) in enumerate(zip(made(x, y), Compared()(x, y), strict=True)):
        assert got.dtype == wanted.dtype, i
        assert torch.equal(got, wanted), i
    assert made.calls == {"kernels": 1, "original": 0}


def test_a_result_of_another_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import was that took numbers for the truth values which they come from."""

    def unchanged(_: Any, held: Any) -> Any:
        return held

    monkeypatch.setattr(TorchReader, "as_bool", unchanged)
    with pytest.raises(UnsupportedProgram, match=r"result 1 has elements of f32, not of torch\.bool"):
        from_torch(Compared(), (torch.randn(4, 8), torch.randn(4, 8)))


def by_name_only(function: Any) -> Any:
    """As transformers wrap `forward`: what is not given by name is set."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        kwargs["twice"] = kwargs.get("twice") or False
        return function(*args, **kwargs)

    return called


class Wrapped(torch.nn.Module):
    """Takes an argument of its wrapper."""

    @by_name_only
    def forward(self, x: Any, shift: Any = None, twice: Any = None) -> Any:
        return torch.relu(x) * (2 if twice else 1) + (0 if shift is None else shift)


@pytest.mark.parametrize(("args", "named"), [(1, {"twice": True}), (0, {"twice": True}), (1, {}), (0, {})])
def test_a_module_is_read_as_it_is_called(args: int, named: dict[str, Any]) -> None:
    x, module = torch.randn(4, 8), Wrapped()
    given = {**named, **({} if args else {"x": x})}
    made = superopt.optimize(module, (x,)[:args], kwargs=given, budget=1, store=None, interpret="cpu")
    assert torch.allclose(made(*(x,)[:args], **given), module(*(x,)[:args], **given))
    assert made.calls == {"kernels": 1, "original": 0}


def test_a_bundle_with_integer_inputs_checks_itself(tmp_path: Path) -> None:
    module, inputs = mixed()
    folder = superopt.optimize(module, inputs, budget=1, store=None).save(tmp_path / "bundle")
    command = [sys.executable, str(folder / "run.py"), "--check", "--device=interpreter", "--json", "r.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert {r["output"] for r in rows} == {"out0", "out1", "out2", "out3"}
    assert all(r["ratio"] <= 1 for r in rows)


def test_double_precision_is_run_by_pytorch() -> None:
    module, x = torch.nn.Linear(8, 4).double(), torch.randn(2, 8).double()
    made = superopt.optimize(module, (x,), budget=1, store=None, interpret=True).requires_grad_(False)(x)
    assert made.dtype == torch.float64
    assert torch.allclose(made, module(x), atol=1e-12)


class Complex(torch.nn.Module):
    """Rotary embeddings as complex numbers."""

    def forward(self, x: Any, turn: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


class Counts(torch.nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.calls += 1  # pyright: ignore[reportUnknownMemberType]
        return 2 * x


class Noise(torch.nn.Module):
    """Adds numbers that it draws."""

    def forward(self, x: Any) -> Any:
        return x + torch.randn_like(x)


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (
            Noise(),
            (torch.randn(4),),
            r"test_torch_calls.py:\d+:1: error: expected equal results for equal arguments, got 'aten.randn_like'",
        ),
        (
            Complex(),
            (torch.randn(4, 8), torch.polar(torch.ones(4), torch.randn(4))),
            r"expected input 'turn' to have elements of f16, bf16, .*, got complex<f32>",
        ),
        (
            torch.nn.ReLU(),
            (torch.randn(0, 16),),
            r"expected input 'input' to have extents of 1 to 2147483647, got tensor<0x16xf32>",
        ),
        (
            Counts(),
            (torch.randn(4),),
            r"expected the module to assign to floating-point buffers only, got an assignment to 'calls'",
        ),
    ],
    ids=["random", "complex", "empty", "integer buffer"],
)
def test_what_no_program_can_hold_is_refused(module: Any, inputs: Any, message: str) -> None:
    with pytest.raises(UnsupportedProgram, match=message):
        superopt.optimize(module, inputs, budget=1, store=None)
