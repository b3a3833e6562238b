"""PyTorch operators, one small module each: both entrances against eager, and against each other."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# A table of lambdas on tensors.

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ingest_support import ops, run_imported
from torch_support import close, rand, torch

from superopt.errors import UnsupportedProgram
from superopt.transforms.ingest import from_torch, run_extern
from superopt.verify import certify

F: Any = torch.nn.functional

pytestmark = pytest.mark.torch


class Fn(torch.nn.Module):
    """A function as a module: here, as what is said of it is located at the line that calls the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


X = rand(3, 8)
P = rand(3, 8).abs() + 0.5
Y = rand(3, 8) * 0.5
B = rand(2, 3, 8)
IMAGE = rand(2, 4, 3, 3)
Q = rand(2, 4, 6, 8)
KEYS = rand(2, 2, 6, 8)
ROWS = torch.tensor([0, 2, 1])
MASK = torch.tensor([[True, False, True, True, False, True, False, True]])

# name: (function, inputs, operators that must come out of the torch entrance, or None)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str] | None]] = {
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y[:, :3], 1, 2, 5), (X, Y), ["slice", "update_slice"]),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), (X, Y), ["mul", "add"]),
    "sub": (lambda x, y: 3 - x * y, (X, Y), ["mul", "sub"]),
    "div": (lambda x, y: x / y + 1 / y, (X, P), ["div", "reciprocal", "add"]),
    "neg_abs": (lambda x: -x.abs(), (X,), ["neg", "max", "neg"]),
    "exp_log": (lambda x: x.log().exp() + x.log1p() + x.expm1(), (P,), None),
    "exp2_log2": (lambda x: torch.exp2(x) + torch.log2(x), (P,), None),
    "sqrt": (lambda x: x.sqrt(), (P,), ["sqrt"]),
    "rsqrt": (lambda x: x.rsqrt() + 1 / x.sqrt(), (P,), ["rsqrt", "add"]),
    "reciprocal": (lambda x: x.reciprocal(), (P,), ["reciprocal"]),
    "sigmoid": (torch.sigmoid, (X,), ["sigmoid"]),
    "silu": (F.silu, (X,), ["silu"]),
    "silu_written_out": (lambda x: x * torch.sigmoid(x), (X,), ["silu"]),
    "gelu": (F.gelu, (X,), ["gelu"]),
    "gelu_written_out": (lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)), (X,), ["gelu"]),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,), None),
    "relu": (F.relu, (X,), ["relu"]),
    "relu_of_a_norm": (lambda x: F.relu(x.square().sum(-1).sqrt()), (X,), ["square", "reduce_sum", "sqrt"]),
    "relu_of_a_difference": (lambda x: F.relu(x.square() - 1), (X,), ["square", "sub", "relu"]),
    "tanh_erf": (lambda x: torch.tanh(x) + torch.erf(x), (X,), ["tanh", "erf", "add"]),
    "sin_cos": (lambda x: torch.sin(x) * torch.cos(x), (X,), ["sin", "cos", "mul"]),
    "max_min": (lambda x, y: torch.maximum(x, y) * torch.minimum(x, y), (X, Y), ["max", "min", "mul"]),
    "clamp": (lambda x: x.clamp(-1, 1), (X,), ["clamp"]),
    "clamp_min": (lambda x: x.clamp(min=0.5), (X,), ["max"]),
    "hardtanh": (lambda x: F.relu6(x) + F.hardtanh(x), (X,), ["clamp", "clamp", "add"]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), (X,), None),
    "elu": (F.elu, (X,), None),
    "selu_celu": (lambda x: F.selu(x) + F.celu(x, 0.5), (X,), None),
    "prelu": (lambda x, one, w: F.prelu(x, one) + F.prelu(x, w), (X, rand(1), rand(8)), None),
    "hardswish": (F.hardswish, (X,), None),
    "celu_below_zero": (lambda x: F.celu(x, -0.5), (X,), None),
    "rrelu": (F.rrelu, (X,), None),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=3), (X, Y), ["mul", "sub"]),
    "softplus": (F.softplus, (X,), None),
    "softplus_scaled": (lambda x: F.softplus(x * 20, 2, 25), (X,), None),
    "logaddexp": (lambda x, y: torch.logaddexp(x * 50, y), (X, Y), None),
    "sigmoid_cross_entropy": (
        lambda x, y: F.binary_cross_entropy_with_logits(x * 50, y, pos_weight=y.abs(), weight=y), (X, Y), None,
    ),
    "baddbmm_without_bias": (
        lambda b, c: torch.baddbmm(torch.full((2, 3, 3), torch.nan), b, c, beta=0), (B, B.mT.contiguous()), None,
    ),
    "transposed_number": (lambda x: x.sum().transpose(0, 0) + x, (X,), ["reduce_sum", "add"]),
    "mish": (F.mish, (X,), None),
    "pow2": (lambda x: x**2, (X,), ["square"]),
    "pow3": (lambda x: x**3, (X,), ["pow"]),
    "pow_half": (lambda x: x**0.5 + x**-0.5, (P,), ["sqrt", "rsqrt", "add"]),
    "where_max": (lambda x, y: torch.where(x > y, x, y), (X, Y), ["max"]),
    "greater": (lambda x, y: (x > y).float() * x, (X, Y), None),
    "where_dynamic": (lambda x, y: torch.where(x > 0.5, x, y), (X, Y), None),
    "where_number": (lambda x, y: torch.where(x > y, y * 2, 0.5), (X, Y), ["sub", "mul", "select"]),
    "fill_hidden": (lambda x, y: x.masked_fill(y < 0, -1.0), (X, Y), None),
    "kinds": (lambda x, y: (x >= y) * 1.0 + (x <= y) * 2.0 + (x != y) * 4.0 + (x < 0) * 8.0, (X, Y), None),
    "logic": (lambda x, y: torch.where(((x > 0) & ~(y > 0.2)) | ((x < -1) ^ (y < 0)), x, y), (X, Y), None),
    "hidden_softmax": (
        lambda x, y: torch.softmax(x.masked_fill(y < y.amax(1, keepdim=True), -torch.inf), 1), (B, B[..., :1]), None
    ),
    "sign": (lambda x, y: torch.sign(x) * y + F.threshold(x, 0.3, -2.0) + F.hardshrink(y, 0.2), (X, Y), None),
    "any_all": (lambda x, y: (x > y).any(1, keepdim=True) * x + (x > -1.5).all(1, keepdim=True) * y, (X, Y), None),
    "running_sums": (lambda x: x.cumsum(1) + x.cumsum(-1), (B,), None),
    "grid_of_rows": (lambda x: x[ROWS[:, None], torch.arange(0, 8, 2)] * 2, (X,), None),
    "position_rows": (lambda w: F.embedding(torch.arange(4)[None], w) + F.embedding(torch.zeros(1, 4).long(), w),
                      (rand(9, 8),), None),
    "where_mask": (lambda x: torch.where(MASK, x, 0.5), (X,), ["min", "max"]),
    "masked_fill": (lambda x: x.masked_fill(MASK, -1e4).exp(), (X,), None),
    "triu": (lambda x: torch.triu(x) + torch.tril(x), (X,), None),
    "matmul": (lambda x, y: x @ y.t(), (X, Y), ["matmul"]),
    "matmul_broadcast": (lambda x, w: x @ w, (B, rand(8, 5)), ["matmul"]),
    "matmul_vector": (lambda x, v: x @ v, (X, rand(8)), None),
    "bmm_addmm": (lambda a, c, d: torch.addmm(c, a[0], d, beta=2, alpha=3), (B, rand(3, 5), rand(8, 5)), None),
    "linear": (F.linear, (B, rand(5, 8), rand(5)), ["matmul", "add"]),
    "einsum": (lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (Q, Q), ["matmul"]),
    "einsum_permuted": (lambda q, w: torch.einsum("bhqd,hed->bqe", q, w), (Q, rand(4, 5, 8)), None),
    "einsum_three": (lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), (X, rand(8, 4), rand(4, 2)), None),
    "sum": (lambda x: x.sum(-1) + x.sum(1), (X,), ["reduce_sum", "add"]),
    "sum_all": (lambda x: x.sum(), (X,), ["reduce_sum"]),
    "mean": (lambda x: x.mean((0, 2), keepdim=True), (B,), ["reduce_mean"]),
    "amax_amin": (lambda x: x.amax(0) - x.amin(0), (X,), ["reduce_max", "reduce_min", "sub"]),
    "max_dim": (lambda x: x.max(-1)[0], (X,), ["reduce_max"]),
    "var_std": (lambda x: x.var(-1) + x.std(0, unbiased=False).sum(), (X,), None),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (X,), ["square", "reduce_sum", "sqrt"]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (X,), None),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, -1), (X, Y), None),
    "losses": (lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y, reduction="sum"), (X, Y), None),
    "adaptive_average": (lambda x: F.adaptive_avg_pool2d(x, 1) * x, (IMAGE,), ["reduce_mean", "mul"]),
    "softmax": (lambda x: x.softmax(-1), (X,), ["reduce_max", "sub", "exp", "reduce_sum", "div"]),
    "log_softmax": (lambda x: x.log_softmax(0), (X,), None),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (X, rand(8), rand(8)), None),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), (X, rand(8)), None),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (IMAGE, rand(4)), None),
    "group_norm_2d": (lambda x: F.group_norm(x, 4), (X,), None),
    "instance_norm": (lambda x: F.instance_norm(x), (IMAGE,), None),
    "batch_norm": (
        lambda x, m, v: F.batch_norm(x, m, v, training=False), (IMAGE, rand(4), rand(4).abs() + 0.1), None,
    ),
    "sdpa": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (Q, Q), None),
    "sdpa_causal_gqa": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), (Q, KEYS), None,
    ),
    "cat": (lambda x, y: torch.cat([x, y], -1), (X, Y), ["concat"]),
    "stack": (lambda x, y: torch.stack([x, y], 1), (X, Y), None),
    "slice": (lambda x: x[:, 1:7:2], (X,), ["slice"]),
    "select": (lambda x: x[:, -2], (B,), ["slice", "reshape"]),
    "chunk": (lambda x: x.chunk(2, -1)[1] * x.split(3, -1)[2].sum(), (X,), None),
    "unbind": (lambda x: x.unbind(0)[1], (B,), ["slice", "reshape"]),
    "expand": (lambda x, y: x[None].expand(2, 3, 8) + y, (X, B), ["add"]),
    "broadcast_tensors": (lambda x, y: torch.broadcast_tensors(x, y)[0] + 1, (X, B), None),
    "expand_alone": (lambda x: x[:, None].expand(-1, 2, -1), (X,), ["reshape", "broadcast"]),
    "repeat": (lambda x: x.repeat(2, 1), (X,), ["repeat"]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), (X,), ["reshape", "broadcast", "reshape"]),
    "permute": (lambda x: x.permute(2, 0, 1), (B,), ["transpose"]),
    "transpose_twice": (lambda x: x.transpose(0, 1).transpose(0, 1) + 1, (B,), ["add"]),
    "view": (lambda x: x.view(2, 24).view(-1, 4), (B,), ["reshape"]),
    "flatten": (lambda x: x.flatten(1).unflatten(1, (8, -1)).squeeze(), (B,), ["reshape"]),
    "pad": (lambda x: F.pad(x, (1, 2)), (X,), ["concat"]),
    "roll": (lambda x: x.roll(1, 0), (X,), ["slice", "slice", "concat"]),
    "flip": (lambda x: x.flip(0) * 1, (X,), None),
    "index_rows": (lambda x: x[ROWS], (X,), None),
    "glu": (F.glu, (X,), None),
    "arange_mask": (lambda x: x + torch.arange(8).to(x.dtype), (X,), ["ramp", "add"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_eager_and_each_other(name: str) -> None:
    function, inputs, expected = CASES[name]
    module = Fn(function).eval()
    eager = module(*inputs)
    by_torch = from_torch(module, inputs)
    assert by_torch.externs == 0, by_torch.diagnostics.messages
    assert close(run_imported(by_torch, inputs), eager) < 2e-5
    if expected is not None:
        assert ops(by_torch.graph) == expected
    if name in ("roll", "where_dynamic", "logic", "any_all", "running_sums", "sign"):
        return  # torch-mlir lowers these to tensors of dynamic shape, truth values and scans
    by_linalg = from_torch(module, inputs, via="linalg")
    assert by_linalg.externs == 0, by_linalg.diagnostics.messages
    assert close(run_imported(by_linalg, inputs), eager) < 2e-5
    verdict = certify(by_torch.graph, by_linalg.graph)
    assert verdict.equivalent, verdict.counterexample


# --- what is opaque, and what is refused ------------------------------------------------------------------

OPAQUE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (ROWS, rand(5, 4)), "aten.embedding.default"),
    "unbind_integers": (lambda i: i.unbind(0)[1] + 1, (ROWS.reshape(3, 1),), "aten.unbind.int"),
    "cumsum": (lambda x: x.cumsum(1), (rand(1, 1030),), "aten.cumsum.default"),
    "argmax": (lambda x: x.argmax(0).to(x.dtype), (X,), "aten.argmax.default"),
    "f64": (lambda x: x.double().exp().float(), (X,), "aten.exp.default"),
    "as_strided": (lambda x: x.as_strided((2, 3), (1, 2)) + 1, (X,), "aten.index.Tensor"),
    "prod": (lambda x: torch.prod(x, 1), (X,), "aten.prod.dim_int"),
    "floor": (torch.floor, (X,), "aten.floor.default"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.ne, torch.eq, torch.ge])
def test_a_comparison_that_asks_for_nan_is_opaque(kind: Callable[..., Any]) -> None:
    module = Fn(lambda x: torch.where(kind(x, x), 1.0, 2.0)).eval()
    imported = from_torch(module, (X,), via="torch")
    assert imported.externs >= 1
    given = torch.where(MASK, X, torch.nan)  # in some columns
    assert close(run_imported(imported, (given,)), module(given)) == 0


@pytest.mark.parametrize("infinity", [torch.inf, -torch.inf])
def test_a_comparison_that_asks_for_infinities_is_opaque(infinity: float) -> None:
    """Proofs are about finite inputs: they would find a guard against rows that are hidden superfluous."""
    guarded = Fn(lambda x: torch.where((x == infinity).all(1, keepdim=True), 0.0, torch.softmax(x, 1)))
    plain = Fn(lambda x: torch.softmax(x, 1))
    graphs = [from_torch(module.eval(), (X,), via="torch").graph for module in (guarded, plain)]
    assert any(n.op == "extern" for n in graphs[0].nodes)
    assert not certify(*graphs).equivalent


@pytest.mark.parametrize(("bound", "externs"), [(1 << 24, 1), ((1 << 24) - 1, 0), (-(1 << 24), 1)])
def test_integers_are_compared_as_f32_only_where_that_is_exact(bound: int, externs: int) -> None:
    module = Fn(lambda x, i: torch.where(i > bound, x, -x)).eval()
    imported = from_torch(module, (X, torch.zeros(3, 8, dtype=torch.int64)), via="torch")
    assert imported.externs == externs  # the comparison
    near = torch.arange(24).reshape(3, 8) + bound - 12
    assert close(run_imported(imported, (X, near)), module(X, near)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.exp2, torch.log2, torch.log10, lambda x: 3.0**x])
def test_constants_within_functions_keep_their_digits(dtype: Any, function: Callable[[Any], Any]) -> None:
    """Rounded to f16, the logarithm of two costs half a percent of 2**11."""
    x = (P * 4.5).to(dtype)
    (found,) = run_imported(from_torch(Fn(function).eval(), (x,)), (x,))
    torch.testing.assert_close(found, function(x.double()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("via", ["torch", "linalg"])
def test_opaque_operations_run(name: str, via: Any) -> None:
    function, inputs, target = OPAQUE[name]
    module = Fn(function).eval()
    imported = from_torch(module, inputs, via=via)
    if name == "cumsum" and via == "linalg":
        (scan,) = [n for n in imported.graph.nodes if n.op == "extern"]
        assert scan.attrs["target"] == "tm_tensor.scan"
        with pytest.raises(UnsupportedProgram, match=r"'tm_tensor.scan' cannot be executed"):
            run_imported(imported, inputs)
        return
    if name == "as_strided" and via == "torch":
        assert imported.externs == 0  # a table of indices whose places are affine is a slice
        assert close(run_imported(imported, inputs), module(*inputs)) < 2e-5
        return
    assert imported.externs >= 1
    if via == "torch":
        targets = [str(n.attrs["target"]) for n in imported.graph.nodes if n.op == "extern"]
        assert target.split(".")[1] in {t.split(".")[1] for t in targets}
    said = [m for m in imported.diagnostics.messages if "kept as superopt.extern" in m.message]
    assert len(said) == imported.externs
    assert all(m.location.file == __file__ and m.location.line > 0 for m in said)
    assert close(run_imported(imported, inputs), module(*inputs)) < 2e-5


def test_extern_carries_its_arguments() -> None:
    imported = from_torch(Fn(lambda x: torch.cumprod(x, 1)), (X,))
    (node,) = imported.graph.nodes
    assert (node.op, node.attrs["target"]) == ("extern", "aten.cumprod.default")
    assert json.loads(str(node.attrs["args"])) == [{"tensor": 0}, 1, None]
    assert torch.equal(run_extern(node, [X])[0], torch.cumprod(X, 1))


def test_training_mode_is_remarked_on_where_it_matters() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.5))
    imported = from_torch(module, (X,))
    assert "evaluation mode" in imported.diagnostics.messages[0].message
    assert torch.equal(run_imported(imported, (X,))[0], X)


class Flagged(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if self.training else x * 3


def test_classes_that_ask_for_their_mode_are_remarked_on() -> None:
    imported = from_torch(Flagged(), (X,))
    assert any("training mode" in m.message for m in imported.diagnostics.messages)
    torch.testing.assert_close(run_imported(imported, (X,))[0], X.double() * 3)
    assert not from_torch(Flagged().eval(), (X,)).diagnostics.messages


class Counting(torch.nn.Module):
    """What differs from call to call, in a number or in a tensor that is no buffer."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        self.scale = self.scale * 2
        return x * self.scale


@pytest.mark.parametrize("scale", [1.5, torch.tensor(1.5)], ids=["number", "tensor"])
def test_modules_that_remember_calls_are_refused(scale: Any) -> None:
    with pytest.raises(UnsupportedProgram, match="expected equal results for equal arguments"):
        from_torch(Counting(scale), (X,))


class Recording(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None

    def forward(self, x: Any) -> Any:
        self.seen = torch.softmax(x, -1)
        self.more = self.seen * 2
        return self.seen + 1


def test_what_a_module_keeps_to_look_at_is_left_as_it_was() -> None:
    module = Recording()
    from_torch(module, (X,))
    assert module.seen is None
    assert not hasattr(module, "more")


@pytest.mark.parametrize(
    "function",
    [
        lambda i: i.float() / 255,
        lambda i: (i - 5).half(),
        lambda i: torch.where(i > 127, i, 0).float(),
        lambda i: i.permute(1, 0)[:2].float() @ X,
        lambda i: (i * 0.5).to(torch.uint8).float(),
    ],
)
def test_unsigned_bytes_are_not_negative(function: Callable[..., Any]) -> None:
    pixels = torch.arange(130, 256, 6, dtype=torch.uint8)[:9].reshape(3, 3)
    imported = from_torch(Fn(function), (pixels,))
    assert not any("not compared" in m.message for m in imported.diagnostics.messages)


def test_a_result_of_another_shape_than_the_handler_makes_stays_opaque() -> None:
    imported = from_torch(Fn(lambda x: x ** torch.full((1, 1, 1), 2.0)), (X,))
    assert (ops(imported.graph), imported.graph.outputs[0].shape) == (["extern"], (1, 3, 8))


RANDOM: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand": lambda x: x + torch.rand(3, 8),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("via", ["torch", "linalg"])
def test_what_draws_random_numbers_is_refused(name: str, via: Any) -> None:
    with pytest.raises(
        UnsupportedProgram, match=r"expected equal results for equal arguments, got"
    ) as raised:
        from_torch(Fn(RANDOM[name]), (X,), via=via)
    assert raised.value.location.file == __file__


def test_narrow_inputs_keep_what_the_wide_intermediates_hold() -> None:
    """A variance that f16 cannot hold, a logarithm next to 1, a square beyond 65504."""
    cases: list[tuple[Callable[..., Any], Any]] = [
        (lambda x: x.std(-1), X.half() * 300),
        (F.softplus, torch.linspace(-14, 14, 8).half()),
        (lambda x: torch.linalg.vector_norm(x, dim=-1), X.half() * 300),
        (F.hardswish, torch.tensor([2e4, -5]).half()),
    ]
    for function, x in cases:
        imported = from_torch(Fn(function), (x,))
        (numbers,) = run_imported(imported, (x,))
        assert all(n.result.dtype != "f16" or n.op in ("constant", "cast") for n in imported.graph.nodes)
        assert torch.allclose(numbers.half(), function(x), rtol=2e-3, atol=0)


def test_an_extern_nobody_reads_is_dropped_and_not_remarked_on() -> None:
    imported = from_torch(Fn(lambda x: (torch.cumprod(x, 1), x.exp())[1]), (X,))
    assert ops(imported.graph) == ["exp"]
    assert imported.diagnostics.messages == []


def test_narrow_dtypes_keep_their_type_and_norms_are_computed_in_f32() -> None:
    x, w = X.half(), rand(8).half()
    imported = from_torch(Fn(lambda x, w: F.layer_norm(x, (8,), w) @ x.t()), (x, w))
    assert [v.dtype for v in imported.graph.outputs] == ["f16"]
    squares = next(n for n in imported.graph.nodes if n.op == "square")
    assert squares.result.dtype == "f32"
    product = next(n for n in imported.graph.nodes if n.op == "matmul")
    assert product.result.dtype == "f16"


def test_numbers_are_rounded_to_the_dtype_they_meet() -> None:
    for x, expected in ((X, torch.tensor(0.1).item()), (X.half(), torch.tensor(0.1).half().item())):
        graph = from_torch(Fn(lambda x: x + 0.1), (x,)).graph
        assert [n.attrs["value"] for n in graph.nodes if n.op == "constant"] == [expected]


class Weighted(torch.nn.Module):
    """Two uses of one weight, a float buffer, an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8, bias=False)
        self.second = torch.nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("steps", torch.arange(8), persistent=False)

    def forward(self, x: Any, flag: bool, nothing: None) -> Any:
        assert flag
        assert nothing is None
        return self.second(self.first(x)) * self.scale + self.steps


def test_weights_and_buffers_become_inputs_behind_the_inputs() -> None:
    module = Weighted()
    imported = from_torch(module, (X, True, None))
    assert [v.name for v in imported.graph.inputs] == ["x", "first.weight", "scale"]
    assert imported.weight_names == ["first.weight", "scale"]
    assert [tuple(w.shape) for w in imported.weights] == [(8, 8), ()]
    assert module.training
    assert close(run_imported(imported, (X,)), module(X, True, None)) < 1e-5


class Masked(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0] * 2


@pytest.mark.parametrize("via", ["torch", "linalg"])
def test_dynamic_shapes_are_refused_where_they_arise(via: Any) -> None:
    with pytest.raises(UnsupportedProgram, match=r"static extents.*\?xf32") as raised:
        from_torch(Masked(), (X,), via=via)
    line = Masked.forward.__code__.co_firstlineno + 1
    assert (raised.value.location.file, raised.value.location.line) == (__file__, line)


def test_a_branch_on_data_is_refused_at_its_line() -> None:
    def branch(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(UnsupportedProgram, match=r"torch.export refuses the module") as raised:
        from_torch(Fn(branch), (X,))
    assert raised.value.location.line == branch.__code__.co_firstlineno + 1


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UnsupportedProgram, match=r"expected a torch.nn.Module, got int"):
        from_torch(3, (X,))
    with pytest.raises(UnsupportedProgram, match=r"expected a tuple of example inputs, got Tensor"):
        from_torch(Fn(torch.exp), X)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_what_drops_in_training_alone_is_not_random(kind: Any) -> None:
    torch.manual_seed(0)
    module = kind(8, 8, num_layers=2, dropout=0.5, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    imported = from_torch(module, (x,))
    with torch.no_grad():
        wanted, last = module(x)
        hidden: tuple[Any, ...] = last if kind is torch.nn.LSTM else (last,)
        assert close(run_imported(imported, (x,)), (wanted, *hidden)) < 1e-5


@pytest.mark.parametrize(
    "cell",
    [
        lambda: torch.nn.LSTMCell(7, 5),
        lambda: torch.nn.LSTMCell(7, 5, bias=False, dtype=torch.float16),
        lambda: torch.nn.GRUCell(7, 5),
        lambda: torch.nn.GRUCell(7, 5, bias=False, dtype=torch.bfloat16),
        lambda: torch.nn.RNNCell(7, 5),
        lambda: torch.nn.RNNCell(7, 5, nonlinearity="relu"),
    ],
)
@pytest.mark.parametrize("shape", [(3, 7), (7,)])
def test_recurrent_cells_are_spelled_out(cell: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = cell()
    x = torch.randn(shape, dtype=module.weight_ih.dtype)
    h, c = (torch.randn(*shape[:-1], 5, dtype=x.dtype) for _ in range(2))
    state = (h, c) if isinstance(module, torch.nn.LSTMCell) else h
    for inputs in ((x, state), (x,)):  # without a state it is zero
        imported = from_torch(module, inputs)
        assert imported.externs == 0, imported.diagnostics.messages
        with torch.no_grad():
            wanted: Any = module(*inputs)
        hidden: tuple[Any, ...] = wanted if isinstance(module, torch.nn.LSTMCell) else (wanted,)
        flat = tuple(torch.utils._pytree.tree_leaves(inputs))
        assert close(run_imported(imported, flat), hidden) < (1e-5 if x.dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_of_8_bit_floats_are_refused(dtype: Any) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return x @ w.to(x.dtype)

    with pytest.raises(UnsupportedProgram, match="have elements of f16"):
        from_torch(Scaled(), (torch.randn(5, 13), torch.randn(13, 7).to(dtype)))
