"""What PyTorch decomposes into operators that are read, and losses by classes, against eager."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# A table of lambdas on tensors.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ingest_support import run_imported
from torch_support import Fn, close, rand, torch

from superopt.program import Value
from superopt.transforms.ingest import against_module, from_torch, their_decompositions
from superopt.transforms.ingest.decompositions import losses

F: Any = torch.nn.functional

pytestmark = pytest.mark.torch

X = rand(3, 8)
P = rand(3, 8).abs() + 0.5
Y = rand(3, 8) * 0.5
IMAGE = rand(2, 4, 3, 3)

# What PyTorch itself opens into operators that are read.
OPENED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5) + torch.addcdiv(x, y, x), (P, Y)),
    "logit": (lambda x: torch.logit(torch.sigmoid(x)), (X,)),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), (X,)),
    "var_mean": (lambda x: torch.var_mean(x, 1), (X,)),
    "trapezoid_diff": (lambda x: (torch.trapezoid(x, dim=1), x.diff(dim=1)), (X,)),
    "tile_outer": (lambda x: (x.tile(2, 2), torch.outer(x[0], x[1])), (X,)),
    "kron_trace": (lambda x: (torch.kron(x[:2], x[1:]), torch.trace(x)), (X,)),
    "distances": (lambda x, y: F.pairwise_distance(x, y), (X, Y)),
    "shuffles": (lambda x: (F.pixel_shuffle(x, 2), F.channel_shuffle(x, 2)), (IMAGE,)),
    "losses": (lambda x, y: (F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.soft_margin_loss(x, y)), (X, Y)),
    "probabilities": (F.cross_entropy, (X, P)),
    "softplus_of_low_threshold": (lambda x: F.softplus(x, 1, 1), (X,)),
    "triplet": (lambda x, y: F.triplet_margin_loss(x, y, x * y), (X, Y)),
    "unfold": (lambda x: F.unfold(x, 2), (IMAGE,)),
    "largest_of_all": (lambda x: F.adaptive_max_pool2d(x, 1), (IMAGE,)),
}


@pytest.mark.parametrize("name", OPENED)
def test_what_pytorch_opens_is_read(name: str) -> None:
    function, inputs = OPENED[name]
    module = Fn(function).eval()
    imported = from_torch(module, inputs)
    assert imported.externs == 0, imported.diagnostics.messages
    assert close(run_imported(imported, inputs), module(*inputs)) < 2e-5
    halves = tuple(x.half() for x in inputs)
    assert from_torch(module, halves).externs == 0


def test_what_pytorch_opens_into_more_is_kept_opaque() -> None:
    """A loop over the steps of an LSTM is unrolled; a prefix is opened where something else is not."""
    lstm = torch.nn.LSTM(4, 4, batch_first=True).eval()
    (whole,) = from_torch(lstm, (rand(2, 6, 4),)).graph.nodes
    assert whole.attrs["target"] == "aten.lstm.input"
    once = Fn(lambda x: torch.floor(torch.lerp(x, x * x, 0.5)))
    twice = Fn(lambda x: torch.floor(torch.lerp(x, torch.lerp(x, x * x, 0.5), 0.5)))
    for module in (once, twice):  # together, floor would become an operation that is opaque as well
        nodes = from_torch(module, (X,)).graph.nodes
        assert [n.attrs["target"] for n in nodes if n.op == "extern"] == ["aten.floor.default"]


def test_an_operator_is_opened_if_any_of_its_places_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one makes too many others, and the second does not."""
    known, asked = their_decompositions.opens, list[Any]()

    def later(node: Any, ours: Any) -> bool:
        asked.append(node)
        return len(asked) > 1 and known(node, ours)

    monkeypatch.setattr(their_decompositions, "opens", later)
    assert from_torch(Fn(lambda x: torch.lerp(torch.lerp(x, x * x, 0.5), x, 0.5)), (X,)).externs == 0
    assert len(asked) == 2


def test_what_pytorch_fails_to_open_is_kept_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError

    known = their_decompositions.theirs
    monkeypatch.setattr(their_decompositions, "theirs", lambda op: fails if "lerp" in str(op) else known(op))
    module = Fn(lambda x: torch.lerp(x, x * x, 0.5) + torch.addcmul(x, x, x))
    imported = from_torch(module, (X,))
    assert [n.attrs["target"] for n in imported.graph.nodes if n.op == "extern"] == ["aten.lerp.Scalar"]
    assert close(run_imported(imported, (X,)), module(X)) < 2e-5


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"weight": rand(7).abs() + 0.1},
    "smooth": {"label_smoothing": 0.2},
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 7, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_by_class(shape: tuple[int, ...], reduction: str, kind: str) -> None:
    """Rows that are ignored, whatever their number is, and logits that are large."""
    logits = rand(*shape) * 30
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 7, (*shape[:1], *shape[2:]) if len(shape) > 1 else (), generator=generator)
    module = Fn(lambda x, i: F.cross_entropy(x, i, **KINDS[kind], reduction=reduction, ignore_index=3)).eval()
    imported = from_torch(module, (logits, rows))
    assert imported.externs == 0, imported.diagnostics.messages
    for targets in (rows, torch.where(rows > 3, 3, rows)):
        if (targets != 3).any():
            expected = module(logits, targets)
            found = close(run_imported(imported, (logits, targets)), expected)
            assert found < 2e-5 * max(float(expected.abs().max()), 1.0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [torch.nan, torch.inf, -torch.inf])
def test_ignored_rows_may_hold_anything(held: float, kind: str, reduction: str) -> None:
    logits, rows = rand(4, 7), torch.tensor([1, -100, 2, -100])
    module = Fn(lambda x, i: F.cross_entropy(x, i, **KINDS[kind], reduction=reduction)).eval()
    imported = from_torch(module, (logits, rows))
    logits[1::2] = held
    expected = module(logits, rows)
    assert expected.isfinite().all()
    assert close(run_imported(imported, (logits, rows)), expected) < 1e-5


@pytest.mark.parametrize("smooth", [0.0, 0.1])
def test_nothing_is_selected_from_logarithms(smooth: float) -> None:
    """Of such a selection by labels a proof knows nothing, so that the import leaves it to PyTorch."""
    imported = from_torch(
        Fn(lambda x, i: F.cross_entropy(x, i, label_smoothing=smooth)), (X, torch.tensor([1, 0, 7]))
    )
    assert imported.externs == 0, imported.diagnostics.messages
    behind = set[Value]()
    for node in imported.graph.nodes:
        if node.op == "log" or not behind.isdisjoint(node.operands):
            assert node.op != "select"
            behind |= {*node.results}
    assert behind & {*imported.graph.outputs}


def test_pytorch_picks_from_logarithms() -> None:
    """A proof knows nothing of a selection from what may be undefined: the kernel before it would be refused."""
    imported = from_torch(Fn(lambda x, i: F.nll_loss(F.log_softmax(x, 1), i)), (X, torch.tensor([1, 0, 7])))
    (picking,) = [n for n in imported.graph.nodes if n.op == "extern"]
    assert picking.attrs["target"] == "aten.nll_loss_nd.default"


def test_from_too_many_logits_pytorch_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_PICKED", 1 << 22)
    logits, rows = torch.zeros(2048, 4096), torch.zeros(2048, dtype=torch.int64)
    imported = from_torch(Fn(lambda x, i: F.cross_entropy(x, i)), (logits, rows))
    (picking,) = [n for n in imported.graph.nodes if n.op == "extern"]
    assert picking.attrs["target"] == "aten.nll_loss_nd.default"
    assert picking.operands[0] is imported.graph.inputs[0]  # of no normalized logits


@pytest.mark.parametrize("weight", [None, torch.rand(4096)])
@pytest.mark.parametrize("most", [1 << 22, 1 << 27])
def test_many_classes_are_compared_on_fewer_rows(
    weight: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rows are few enough for a sum over all classes, PyTorch still picks, as in what is compared."""
    monkeypatch.setattr(losses, "MOST_PICKED", most)
    logits, rows = torch.randn(2048, 4096), torch.randint(0, 4096, (2048,))
    imported = from_torch(Fn(lambda x, i: F.cross_entropy(x, i, weight)), (logits, rows))
    (message,) = [m.message for m in imported.diagnostics.messages if "compared" in m.message]
    assert "the import is compared with the module on" in message


def test_what_is_opened_in_part_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is kept in one place and opened in another is read by itself in each."""
    monkeypatch.setattr(against_module, "MOST_ELEMENTS", 1500)

    def pooled(x: Any) -> Any:
        return F.adaptive_avg_pool2d(x, (5, 5)).sum((-1, -2)) + F.adaptive_avg_pool2d(x, 1)[..., 0, 0]

    imported = from_torch(Fn(pooled), (rand(8, 4, 8, 8),))
    assert imported.externs
    assert any("is compared with the module" in m.message for m in imported.diagnostics.messages)
