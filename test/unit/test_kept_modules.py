"""Modules whose programs lack kernels that are proved: they run as they are, and say why."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, NoKernels
from superopt.run import choose

torch: Any = pytest.importorskip("torch")


class Block(torch.nn.Module):
    """A module with one linear layer, called by name."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.up = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.up(x)


@pytest.fixture(autouse=True)
def nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a program that is undefined nearly everywhere: no candidate, and not the program itself either."""

    def refused(*_: Any, **__: Any) -> Any:
        return None, "not proved: undefined nearly everywhere"

    def reason(*_: Any) -> str:
        return "not proved: undefined nearly everywhere"

    monkeypatch.setattr(choose, "check", refused)
    monkeypatch.setattr(choose, "passes", reason)


def test_a_module_without_proofs_runs_the_original() -> None:
    model: Any = Block().eval()
    x = torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made: Any = superopt.optimize(model, x, budget=1, store=None, interpret=True)
        found = [made(x), copy.deepcopy(made)(x=x), pickle.loads(pickle.dumps(made))(x)]
    mine = [str(w.message) for w in said if "superopt's Block" in str(w.message)]
    assert len(mine) == 1
    assert "superopt's Block runs the original: " in mine[0]
    assert "undefined nearly everywhere" in mine[0]
    assert all(torch.equal(y, model(x)) for y in found)
    assert made.calls == {"kernels": 0, "original": 1}
    assert "undefined nearly everywhere" in made.report.remarks[-1]
    assert list(made.state_dict()) == ["up.weight", "up.bias"]
    with pytest.raises(BadInput, match="kept as it was"):
        made.save("never")


def test_a_model_keeps_what_is_not_proved() -> None:
    model: Any = torch.nn.Sequential(Block()).eval()
    done = superopt.replace(model, "0", (torch.randn(4, 8),), budget=1, store=None)
    assert "undefined nearly everywhere" in done.kept["0"]
    assert not done.modules


def test_a_program_of_mlir_is_an_error() -> None:
    text = """func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = tensor.empty() : tensor<8xf32>
  %1 = linalg.exp ins(%x : tensor<8xf32>) outs(%0 : tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}"""
    with pytest.raises(NoKernels, match="undefined nearly everywhere"):
        superopt.optimize(text, budget=1, store=None)
