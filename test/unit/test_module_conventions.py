"""What users of PyTorch expect of any module, and of what is said where superopt cannot take theirs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, BadOption, UnsupportedProgram
from superopt.transforms.ingest.torch_types import export_lock

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SETTINGS: Any = {"budget": 1, "store": None, "against": "operators"}


def _optimized(module: Any, *inputs: Any, **settings: Any) -> Any:
    return superopt.optimize(module, inputs, interpret="cpu", **SETTINGS, **settings)


@pytest.fixture(scope="module")
def layers() -> Any:
    torch.manual_seed(0)
    original = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU()).eval()
    return _optimized(original, torch.randn(8, 16))


def test_a_sequential_is_indexed_and_walked(layers: Any) -> None:
    assert layers[0] is layers.original[0]
    assert len(layers) == 2
    assert list(layers) == list(layers.original)
    assert _optimized(torch.nn.ReLU(), torch.randn(4, 4))  # it has no length, and is true
    with pytest.raises(TypeError):
        len(_optimized(torch.nn.ReLU(), torch.randn(4, 4)))


def test_fx_keeps_it_whole(layers: Any) -> None:
    x = torch.randn(8, 16)
    with torch.no_grad():
        around = torch.fx.symbolic_trace(torch.nn.Sequential(layers, torch.nn.Sigmoid()))
        assert [n.op for n in around.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
        before = layers.calls["kernels"]
        torch.testing.assert_close(around(x), torch.sigmoid(layers.original(x)), rtol=1e-5, atol=1e-5)
        assert layers.calls["kernels"] == before + 1


class Fixed(torch.nn.Module):
    """An argument that no JSON holds."""

    def forward(self, x: Any, part: Any) -> Any:
        return torch.relu(x[part]) * 2


def test_errors_of_saving_are_located(tmp_path: Path) -> None:
    made = _optimized(Fixed(), torch.randn(8, 8), slice(0, 4))
    with pytest.raises(BadInput, match="numbers and texts to save, got slice") as caught:
        made.save(tmp_path / "bundle")
    assert caught.value.location.file == __file__


class Shares(torch.nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.first = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
        self.second = self.first

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_a_shared_module_is_replaced_under_all_its_names() -> None:
    model, x = Shares().eval(), torch.randn(8, 16)
    with torch.no_grad():
        wanted = model(x)
        done = superopt.replace(model, "*", (x,), interpret="cpu", **SETTINGS)
        assert list(done.modules) == ["first", "second"]
        assert model.first is model.second
        torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)
    assert model.first.calls == {"kernels": 2, "original": 0}


class Scaled(torch.nn.Module):
    def forward(self, x: Any, length: int) -> Any:
        return torch.relu(x) / length


class Counts(torch.nn.Module):
    """Calls a module with the length of its argument."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.inner = Scaled()

    def forward(self, x: Any) -> Any:
        return self.inner(x, x.shape[0])


def test_a_number_that_follows_an_extent_is_said() -> None:
    model, n = Counts(), torch.export.Dim("n", min=4, max=32)
    done = superopt.replace(model, "inner", (torch.randn(8, 16),), dynamic_shapes=({0: n},), **SETTINGS)
    assert done.kept == {"inner": "expected the same argument at every n, got 8 at 8 and 9 at 9"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torch_jit_are_refused() -> None:
    x = torch.randn(4, 4)
    for made in (torch.jit.trace(torch.nn.ReLU(), x), torch.nn.Sequential(torch.jit.script(torch.nn.ReLU()))):
        with pytest.raises(UnsupportedProgram, match="expected modules of Python code, got one"):
            _optimized(made, x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_dense_are_refused() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    for given, kind in (
        (torch.nested.nested_tensor(parts), "nested"),
        (torch.nested.nested_tensor(parts, layout=torch.jagged), "nested"),
        (torch.eye(4).to_sparse(), "sparse_coo"),
    ):
        with pytest.raises(
            UnsupportedProgram, match=f"expected dense tensors as arguments, got a {kind} one"
        ):
            _optimized(torch.nn.ReLU(), given)


def test_optimizers_are_taken_as_text() -> None:
    made = _optimized(torch.nn.ReLU(), torch.randn(4, 4), optimizers="saturation")
    assert made.report.improved
    with pytest.raises(BadOption, match="did you mean 'saturation'"):
        _optimized(torch.nn.ReLU(), torch.randn(4, 4), optimizers="mugraph,satruation")


def test_errors_in_text_name_the_text() -> None:
    text = "func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {\n  return %x : tensor<?x4xf32>\n}\n"
    with pytest.raises(UnsupportedProgram, match="expected static extents") as caught:
        superopt.optimize(text)
    assert (caught.value.location.file, caught.value.location.line) == ("<text>", 1)


class Summed(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.logsumexp(x, -1)


def test_logsumexp_of_infinities_is_that_of_pytorch() -> None:
    x = torch.randn(4, 8)
    x[0], x[1, 2], x[2, 3] = -torch.inf, torch.inf, torch.nan
    made = _optimized(Summed(), torch.randn(4, 8))
    with torch.no_grad():
        torch.testing.assert_close(made(x), made.original(x), equal_nan=True)
    assert made.calls["kernels"] == 1


class Hidden(torch.nn.Module):
    """The first row of its mask hides all."""

    def forward(self, q: Any) -> Any:
        mask = torch.ones(4, 4, dtype=torch.bool).tril(-1)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def test_a_mask_that_hides_a_row_is_refused() -> None:
    with pytest.raises(
        UnsupportedProgram, match="softmax of a row that a mask hides wholly, where PyTorch gives 0"
    ):
        _optimized(Hidden(), torch.randn(1, 2, 4, 8))


def test_threads_may_optimize_at_once() -> None:
    faults: list[BaseException] = []
    made: list[Any] = []

    def run(width: int) -> None:
        try:
            x = torch.randn(8, width)
            done = _optimized(torch.nn.Linear(width, 16), x)
            with torch.no_grad():
                torch.testing.assert_close(done(x), done.original(x), rtol=1e-5, atol=1e-5)
            made.append(done)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(8 * (i + 1),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(made) == 3


class Slow(torch.nn.Module):
    """Exporting it takes until another thread has made a call, or half a second."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.began, self.called, self.waited = threading.Event(), threading.Event(), threading.Event()

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_exporting():
            self.began.set()
            if not self.called.wait(0.5):
                self.waited.set()
        return torch.relu(x)


def test_a_call_waits_while_another_thread_exports(layers: Any) -> None:
    """PyTorch deletes notes on operators that another thread made while it exports."""
    slow = Slow()

    def call() -> None:
        assert slow.began.wait(60)
        with torch.no_grad():
            layers(torch.randn(8, 16))
        slow.called.set()

    caller = threading.Thread(target=call)
    caller.start()
    with export_lock():
        torch.export.export(slow, (torch.randn(4, 4),))
    caller.join()
    assert slow.waited.is_set()
