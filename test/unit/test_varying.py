"""`superopt.replace` with dynamic shapes: dimensions of the model's inputs, found again in its modules' arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, BadOption

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm, self.up = torch.nn.RMSNorm(16), torch.nn.Linear(16, 32, bias=False)

    def forward(self, x: Any, scale: Any = None) -> Any:
        y = self.up(self.norm(x))
        return y if scale is None else y * scale


class Model(torch.nn.Module):
    """Two equal blocks; `padded` gets one row more than there are tokens, `last` one row."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.table = torch.nn.Embedding(32, 16)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.padded, self.last = Block(), Block()

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        total = sum(b(x, scale=x.sum(-1, keepdim=True)) for b in self.blocks)
        grown = self.padded(torch.cat([x, x[:, :1]], 1))
        return total, grown, self.last(x[:, -1])


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Model().eval()


SETTINGS: Any = {"budget": 2, "against": "operators", "store": None, "interpret": True}


def dim(name: str = "n", low: int = 1, high: int = 40) -> Any:
    return torch.export.Dim(name, min=low, max=high)


def test_modules_take_every_length(model: Any) -> None:
    original = copy.deepcopy(model)
    tokens = torch.arange(5)[None]
    done = superopt.replace(model, "blocks.*", tokens, dynamic_shapes=({1: dim()},), **SETTINGS)
    assert list(done.modules) == ["blocks.0", "blocks.1"]
    assert done.runs == 1
    assert {m.result.outcome.ranged is not None for m in done.modules.values()} == {True}
    with torch.no_grad():
        for length in (1, 2, 7, 16, 31, 40):
            given = torch.arange(length)[None] % 32
            for got, wanted in zip(model(given), original(given), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        calls = [m.calls for m in done.modules.values()]
        assert calls == [{"kernels": 6, "original": 0}] * 2
        with pytest.warns(UserWarning, match="runs the original"):
            model(torch.arange(41)[None] % 32)
        assert calls == [{"kernels": 6, "original": 1}] * 2


def test_a_batch_and_a_length_vary(model: Any) -> None:
    tokens = torch.arange(10).reshape(2, 5)
    marks = {"tokens": {0: dim("b", high=4), 1: dim(high=8)}}
    done = superopt.replace(model, "blocks.0", tokens, dynamic_shapes=marks, **SETTINGS)
    original = copy.deepcopy(model.blocks[1]).eval()
    original.load_state_dict(model.blocks[0].state_dict())
    made = done.modules["blocks.0"]
    with torch.no_grad():
        for shape in ((1, 1), (3, 7), (4, 8)):
            x, scale = torch.randn(*shape, 16), torch.randn(*shape, 1)
            torch.testing.assert_close(made(x, scale=scale), original(x, scale), rtol=1e-4, atol=1e-5)
    assert made.calls == {"kernels": 3, "original": 0}


def test_what_does_not_vary_is_static_and_what_varies_otherwise_is_kept(model: Any) -> None:
    tokens = torch.arange(5)[None]
    done = superopt.replace(model, "last", tokens, dynamic_shapes=({1: dim()},), **SETTINGS)
    assert done.modules["last"].result.outcome.ranged is None
    done = superopt.replace(model, "padded", tokens, dynamic_shapes=({1: dim()},), **SETTINGS)
    assert done.kept == {"padded": "expected extents that are multiples of n, got 6 at 5 and 7 at 6"}


def test_mistakes(model: Any) -> None:
    tokens = torch.arange(5)[None]
    with pytest.raises(BadOption, match="expected buckets with dynamic_shapes"):
        superopt.replace(model, "last", tokens, buckets=[4], **SETTINGS)
    with pytest.raises(BadInput, match="expected inputs with n from 6 to 9, got 5"):
        superopt.replace(model, "last", tokens, dynamic_shapes=({1: dim(low=6, high=9)},), **SETTINGS)
    with pytest.raises(BadInput, match="expected dynamic_shapes of tokens, got 'ids'"):
        superopt.replace(model, "last", tokens, dynamic_shapes={"ids": {1: dim()}}, **SETTINGS)
