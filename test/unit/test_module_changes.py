"""What a module's kernels must not hide: other threads, transforms, and a module that is no longer the one they
were made for."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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


def doubled(_: Any, given: Any, made: Any) -> Any:
    return made * 2


def _hooked(layer: Any) -> None:
    layer.out.register_forward_hook(doubled)


def _hooked_itself(layer: Any) -> None:
    layer.register_forward_pre_hook(print)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_eps, "expected 'eps' of 'norm' to be 1e-06, as when the kernels were made, got 5.0"),
        (_bias, "expected 'bias' of 'out' to be None, as when the kernels were made, got a tensor"),
        (_adapter, "expected 'out' to be Linear, as when the kernels were made, got Adapted"),
        (_hidden, "expected the submodules of 'out' to be none, as when the kernels were made, got extra"),
        (
            _forward,
            "expected 'forward' of 'norm' to be torch.nn.modules.normalization.RMSNorm.forward, as when the "
            "kernels were made, got torch._VariableFunctionsClass.relu",
        ),
        (_without, "expected 'weight' of 'norm' to be a tensor, as when the kernels were made, got None"),
        (_absent, "expected 'norm' to be RMSNorm, as when the kernels were made, got None"),
        (
            _hooked,
            "expected the forward hooks of 'out' to be nothing, as when the kernels were made, got "
            f"[{__name__}.doubled]",
        ),
        (
            _hooked_itself,
            "expected the forward pre hooks to be nothing, as when the kernels were made, got [builtins.print]",
        ),
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


OFFSET = 1.0


@dataclass
class Config:
    """What modules of transformers hold."""

    power: float = 2.0
    unread: int = 3


def _shifted(x: Any) -> Any:
    return x + OFFSET


def _other(x: Any) -> Any:
    return x - OFFSET


def _as_it_is(_: Any, x: Any) -> Any:
    return x


def _within(limit: float) -> Callable[[Any], Any]:
    return lambda x: torch.clamp(x, -limit, limit)


class Depends(torch.nn.Module):
    """Reads all kinds of places."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.factors, self.parts, self._bias = [2.0, 3.0], {"more": 0.5}, 0.25
        self.config, self.act, self.note = Config(), torch.relu, "not read"

    def forward(self, x: Any) -> Any:
        x = self.act(x) ** self.config.power * self.factors[1] + self.parts["more"]
        return _shifted(x * self.scale + self._bias) + self.helper(x)

    def helper(self, x: Any) -> Any:
        return x * 0.5


class Limited(torch.nn.Module):
    """Its function has a closure, and it holds a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.limit, self.table = _within(1.0), torch.arange(32.0)

    def forward(self, x: Any) -> Any:
        return self.limit(x) * 2 + self.table


@pytest.fixture(scope="module")
def depends(x: Any) -> Any:
    return superopt.optimize(Depends(), (x,), interpret="cpu", **SETTINGS)


HERE = __name__
CHANGES: list[tuple[Callable[[Any, Any], None], str]] = [
    (lambda m, _: m.factors.__setitem__(1, 4.0), "'factors' to be [2.0, 3.0]"),
    (lambda m, _: m.parts.update(more=1.5), "'parts' to be {'more': 0.5}"),
    (lambda m, _: setattr(m, "_bias", 2.0), "'_bias' to be 0.25"),
    (lambda m, _: setattr(m, "act", torch.sigmoid), "'act' to be torch."),
    (lambda m, _: setattr(m, "helper", torch.sigmoid), "'helper' to be"),
    (lambda m, _: setattr(m, "scale", 3.0), "'scale' to be 2.0"),
    (lambda m, _: setattr(m.config, "power", 3.0), "'power' of 'config' to be 2.0"),
    (lambda m, p: p.setattr(Depends, "scale", 3.0), "'scale' to be 2.0"),
    (lambda m, p: p.setattr(Depends, "helper", _as_it_is), "'helper' to be"),
    (lambda m, p: p.setattr(Depends, "forward", _as_it_is), "'forward' to be"),
    (lambda m, p: p.setitem(globals(), "OFFSET", 2.0), f"'OFFSET' of {HERE} to be 1.0"),
    (lambda m, p: p.setitem(globals(), "_shifted", _other), f"'_shifted' of {HERE} to be"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_what_the_module_reads_is_noticed(
    depends: Any, x: Any, change: Any, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = copy.deepcopy(depends)
    with torch.no_grad():
        assert torch.allclose(made(x), made.original(x), rtol=1e-4, atol=1e-4)
        made.original.note, made.original.config.unread = "neither is this", 4
        made(x)
        loaded = superopt.load(made.save(tmp_path / "bundle"), made.original, interpret="cpu")
        loaded(x)
        change(made.original, monkeypatch)
        for each in (made, pickle.loads(pickle.dumps(made)), loaded):
            with pytest.raises(BadInput) as caught:
                each(x)
            assert f"expected {said}" in caught.value.message


def test_a_class_of_the_same_name_is_noticed(x: Any) -> None:
    def one() -> Any:
        class Same(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return torch.relu(x) * 2 + 1

        return Same()

    def other() -> Any:
        class Same(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return torch.relu(x) * 3 + 1

        Same.__qualname__ = type(one()).__qualname__
        return Same()

    model = torch.nn.Sequential(one())
    made = superopt.optimize(model, (x,), interpret="cpu", **SETTINGS)
    with torch.no_grad():
        model[0] = one()
        made(x)
        model[0] = other()
        with pytest.raises(BadInput, match="expected 'forward' of '0' to be"):
            made(x)


def test_closures_and_tensors_are_noticed(x: Any) -> None:
    """Graphs of torch.compile could not notice them in each call: they run the original."""
    made: Any = superopt.optimize(Limited(), (x,), interpret="cpu", **SETTINGS)
    with torch.no_grad():
        made(x)
        compiled = torch.compile(made, backend="eager", fullgraph=True)
        limit: Any = _within(1.0)
        made.original.limit, made.original.table = limit, torch.arange(32.0)
        with pytest.warns(UserWarning, match="Limited reads constants.*; to run the kernels, keep it out of"):
            compiled(x)
        for _ in range(2):
            made(x)
            torch.testing.assert_close(compiled(x), made.original(x))
        limit.__closure__[0].cell_contents = 2.0
        with pytest.raises(BadInput, match="expected 'limit' to be"):
            made(x)
        made.original.limit = _within(1.0)
        made(x)
        made.original.table += 1
        with pytest.raises(BadInput, match="expected 'table' to be a tensor of"):
            made(x)
    torch._dynamo.reset()


@functools.cache
def _factor() -> float:
    return OFFSET * 2


class Decorated(torch.nn.Module):
    """Its functions are wrapped by PyTorch's decorator, and by Python's."""

    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        return torch.relu(x) * _factor()


def test_decorated_functions_are_noticed(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = superopt.optimize(Decorated(), (x,), interpret="cpu", **SETTINGS)
    with torch.no_grad():
        made(x)
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "OFFSET", 2.0)
            with pytest.raises(BadInput, match="expected 'OFFSET' of"):
                made(x)
        made(x)
        monkeypatch.setattr(Decorated, "forward", torch.no_grad()(_as_it_is))
        with pytest.raises(BadInput, match="expected 'forward' to be"):
            made(x)


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("change", [_eps, _bias, _adapter, _without, _forward])
def test_torch_compile_notices_another_module(made: Any, x: Any, change: Any, fallback: bool) -> None:
    """Before it compiles, and in a call of what it compiled."""
    made.fallback = fallback
    with torch.no_grad():
        compiled = torch.compile(made, backend="eager")
        torch.testing.assert_close(compiled(x), made.original(x), rtol=1e-4, atol=1e-4)
        change(made.original)
        for each in (compiled, torch.compile(copy.deepcopy(made), backend="eager")):
            if fallback:
                torch.testing.assert_close(each(x), made.original(x), rtol=1e-4, atol=1e-4)
            else:
                with pytest.raises(BadInput, match="as when the kernels were made"):
                    each(x)
    torch._dynamo.reset()


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_torch_compile_notices_what_the_module_reads(
    depends: Any, x: Any, change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, graphs = copy.deepcopy(depends), list[str]()
    made.fallback = True

    def kept(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    with torch.no_grad():
        compiled = torch.compile(made, backend=kept)
        for _ in range(3):
            compiled(x)
        change(made.original, monkeypatch)
        torch.testing.assert_close(compiled(x), made.original(x), rtol=1e-4, atol=1e-4)
    assert ["superopt" in code for code in graphs] == [True, False]
    torch._dynamo.reset()


def test_torch_export_notices_another_module(made: Any, x: Any) -> None:
    with torch.no_grad():
        torch.export.export(made, (x,))
        _eps(made.original)
        with pytest.raises(BadInput, match="expected 'eps'"):
            torch.export.export(made, (x,))


class Counts(torch.nn.Module):
    """Keeps what it computed, and counts."""

    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls, self.last = self.calls + 1, torch.relu(x) * 2
        return self.last


def test_what_a_call_changes_of_the_module_is_said(x: Any) -> None:
    made = superopt.optimize(Counts().eval(), (x,), budget=1, store=None, interpret="cpu")
    (said,) = [r for r in made.report.remarks if "each call" in r]
    assert said.endswith("remark: each call of the module changes 'calls', 'last': its kernels do not")
    before = made.original.calls
    with torch.no_grad():
        made(x)
    assert made.original.calls == before


def test_hooks_that_were_there_are_part_of_the_program(x: Any) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.ReLU()).eval()
    layers[0].register_forward_hook(doubled)
    made = superopt.optimize(layers, (x,), budget=1, store=None, interpret="cpu")
    with torch.no_grad():
        torch.testing.assert_close(made(x), layers(x), rtol=1e-4, atol=1e-4)
    assert made.calls == {"kernels": 1, "original": 0}


def test_a_module_around_one_with_kernels_is_read_as_if_it_had_none(first: Any, x: Any) -> None:
    """Calls of the inner kernels, and what they keep, are no part of what the outer module computes."""
    inner = copy.deepcopy(first)
    around = Adapted(inner).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the check of the reading calls it in f64
        outer = superopt.optimize(around, (x,), interpret="cpu", **SETTINGS)
        assert all(node.op != "extern" for node in outer.outcome.original.nodes)
        with torch.no_grad():
            wanted = Adapted.forward(around, x)
            around(x)  # the inner module loads its kernels, and counts
            for _ in range(2):
                torch.testing.assert_close(outer(x), wanted, rtol=1e-4, atol=1e-4)
    assert outer.calls == {"kernels": 2, "original": 0}
    around.base = inner.original  # which computes the same
    assert_same(outer, x, wanted)
    inner.original.norm.eps = 0.5
    with pytest.raises(BadInput, match=r"'eps' of 'base\.norm'"):
        outer(x)
    inner.original.norm.eps = 1e-6
    around.base = inner
    assert_same(outer, x, wanted)

    def hook(module: Any, given: Any, result: Any) -> None:
        pass

    inner.register_forward_hook(hook)
    with pytest.raises(BadInput, match="forward hooks of what stands for 'base'"):
        outer(x)


def assert_same(made: Any, x: Any, wanted: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(made(x), wanted, rtol=1e-4, atol=1e-4)


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
