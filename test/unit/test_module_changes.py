"""What a module's kernels must not hide: other threads, transforms, and a module that is no longer the one they
were made for."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SETTINGS: Any = {"budget": 1, "store": None, "against": "operators"}


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm, self.out = torch.nn.RMSNorm(32, eps=1e-6), torch.nn.Linear(32, 48, bias=False)
        self.seen = 0

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return self.out(self.norm(x))


class Adapted(torch.nn.Module):
    """What stands around a layer that is finetuned."""

    def __init__(self, layer: Any) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.base, self.more = layer, torch.nn.Linear(32, 48, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.more(x)


@pytest.fixture(scope="module")
def x() -> Any:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def first(x: Any) -> Any:
    torch.manual_seed(0)
    return superopt.optimize(Layer().eval(), (x,), interpret="cpu", **SETTINGS)


@pytest.fixture
def made(first: Any) -> Any:
    return copy.deepcopy(first)


def test_threads_share_a_module(first: Any) -> None:
    inputs = [torch.randn(16, 32) for _ in range(6)]
    faults: list[object] = []

    def call(x: Any) -> None:
        try:
            with torch.no_grad():
                wanted = first.original(x)
                for _ in range(10):
                    torch.testing.assert_close(first(x), wanted, rtol=1e-4, atol=1e-4)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def _eps(layer: Any) -> None:
    layer.norm.eps = 5.0


def _bias(layer: Any) -> None:
    layer.out.bias = torch.nn.Parameter(torch.randn(48))


def _adapter(layer: Any) -> None:
    layer.out = Adapted(layer.out)


def _hidden(layer: Any) -> None:
    layer.out.extra = torch.nn.Linear(4, 4)


def _forward(layer: Any) -> None:
    layer.norm.forward = torch.relu


def _without(layer: Any) -> None:
    layer.norm.weight = None


def _absent(layer: Any) -> None:
    layer.norm = None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_eps, "expected 'eps' of 'norm' to be 1e-06, as when the kernels were made, got 5.0"),
        (_bias, "expected none as 'bias' of 'out', as when the kernels were made, got one"),
        (_adapter, "expected a Linear as 'out', as when the kernels were made, got a Adapted"),
        (_hidden, "expected the submodules of 'out' that the kernels were made for, got others"),
        (_forward, "expected the forward of 'norm' that the kernels were made for, got another"),
        (_without, "expected one as 'weight' of 'norm', as when the kernels were made, got none"),
        (_absent, "expected 'norm' as it was when the kernels were made, got another"),
    ],
)
def test_another_module_is_noticed(made: Any, x: Any, change: Callable[[Any], None], said: str) -> None:
    with torch.no_grad():
        made(x)
        change(made.original)
        for each in (made, copy.deepcopy(made)):
            with pytest.raises(BadInput) as caught:
                each(x)
            assert caught.value.message.endswith(said)
        made.fallback = True
        if change is not _absent:
            with pytest.warns(UserWarning, match="runs the original"):
                assert torch.equal(made(x), made.original(x))


def test_what_may_change_is_no_other_module(made: Any, x: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        for each in (made, pickle.loads(pickle.dumps(made))):
            each.original(x)
            each.interpret = False
            each(x)  # the original, which counts its calls
            each.interpret = "cpu"
            each.original.out = torch.nn.Linear(32, 48, bias=False)
            each.original.norm.weight = torch.nn.Parameter(torch.randn(32))
            each.requires_grad_(False)
            torch.testing.assert_close(each(x), each.original(x), rtol=1e-4, atol=1e-4)
            assert each.calls["kernels"] == 1
        folder = made.save(tmp_path / "bundle")
        loaded = superopt.load(folder, made.original, interpret="cpu")
        loaded.original(x)
        loaded(x)
        _eps(loaded.original)
        for each in (loaded, superopt.load(folder, made.original, interpret="cpu")):
            with pytest.raises(BadInput, match="expected 'eps'"):
                each(x)


def _vmapped(module: Any, x: Any) -> Any:
    return torch.vmap(module)(torch.stack([x, x + 1]))


def _jvp(module: Any, x: Any) -> Any:
    return torch.func.jvp(module, (x,), (torch.ones_like(x),))[1]


def _gradient(module: Any, x: Any) -> Any:
    def total(x: Any) -> Any:
        return module(x).sum()

    return torch.func.grad(total)(x)


def _tangent(module: Any, x: Any) -> Any:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        return forward.unpack_dual(module(forward.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.parametrize("transform", [_vmapped, _jvp, _gradient, _tangent])
def test_transforms_see_the_original(made: Any, x: Any, transform: Callable[[Any, Any], Any]) -> None:
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"runs the original"):
            got = transform(made, x)
        torch.testing.assert_close(got, transform(made.original, x))


def test_sparse_tensors_are_refused(made: Any, x: Any) -> None:
    with torch.no_grad(), pytest.raises(BadInput, match=r"expected argument 0 \('x'\) as a dense tensor"):
        made(x.to_sparse())


def test_buffers_that_are_not_read_may_change() -> None:
    """A count of batches, after a step of training or in another checkpoint; what is read may not."""
    original = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)).eval()
    x = torch.randn(8, 16)
    made = superopt.optimize(original, (x,), interpret="cpu", **SETTINGS)
    made.load_state_dict({n: t + 3 if "num" in n else t * 2 for n, t in original.state_dict().items()})
    with torch.no_grad():
        torch.testing.assert_close(made(x), original(x), rtol=1e-5, atol=1e-5)
    assert made.calls["kernels"] == 1
