"""Generated programs through both entrances, against executions that share nothing with the readers.

    .venv/bin/python test/ingest/campaign.py --count=400 --seed=1 --json=FILE

Linalg programs run as MLIR lowers them to LLVM, PyTorch functions as PyTorch does, each on inputs that the check
of the import has not seen. A reading is accepted, refused with a located error, or accepted with a remark that it
was not compared; one that is accepted and differs is a silent difference, and fails the campaign.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Tables of lambdas on tensors.

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from about import about

from superopt.diagnostics import Diagnostics
from superopt.errors import SuperoptError
from superopt.transforms.ingest.against_source import graph_values
from superopt.transforms.ingest.run_in_llvm import Tensor, execute
from superopt.verify.domains import round_to

EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23}

# --- linalg -----------------------------------------------------------------------------------------------

_INTEGERS = ("addi", "subi", "muli", "andi", "ori", "xori", "maxsi", "maxui", "minsi", "minui", "shrui", "shrsi",
             "divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi")  # fmt: skip
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_UNARY = ("math.tanh", "math.erf", "math.exp", "math.absf", "arith.negf", "math.sin", "math.expm1", "math.floor",
          "math.exp2", "math.cos")  # fmt: skip
_BINARY = ("addf", "subf", "mulf", "maximumf", "minimumf", "maxnumf", "divf")


class Linalg:
    """One function: values are appended until it returns the last."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.element = rng.choice(("f32", "f32", "f16", "bf16"))
        self.names = 0
        shape = tuple(rng.choice((1, 2, 3, 4, 5)) for _ in range(rng.choice((1, 2, 2, 3))))
        self.inputs = [shape, shape]
        self.values = [("%x", shape), ("%y", shape)]

    def fresh(self) -> str:
        """A new name."""
        self.names += 1
        return f"%v{self.names}"

    def type(self, shape: Sequence[int]) -> str:
        """A tensor type."""
        return f"tensor<{''.join(f'{e}x' for e in shape)}{self.element}>"

    def add(self, line: str, shape: Sequence[int]) -> None:
        """`line` with a new value of `shape` for `$`."""
        name = self.fresh()
        self.lines.append(line.replace("$", name))
        self.values.append((name, tuple(shape)))

    def last(self) -> tuple[str, tuple[int, ...]]:
        """One of the latest values."""
        return self.rng.choice(self.values[-2:])

    def unary(self) -> None:
        """An operation on a whole tensor."""
        x, shape = self.last()
        self.add(f"$ = {self.rng.choice(_UNARY)} {x} : {self.type(shape)}", shape)

    def binary(self) -> None:
        """An operation on two whole tensors."""
        x, shape = self.last()
        y = self.rng.choice([n for n, s in self.values if s == shape])
        self.add(f"$ = arith.{self.rng.choice(_BINARY)} {x}, {y} : {self.type(shape)}", shape)

    def empty(self, shape: Sequence[int]) -> str:
        """Memory that nothing has written."""
        name = self.fresh()
        self.lines.append(f"{name} = tensor.empty() : {self.type(shape)}")
        return name

    def integers(self) -> None:
        """Arithmetic on constants and indices, as numbers or as a mask."""
        rng, (x, shape) = self.rng, self.last()
        kind = rng.choice(("i8", "i16", "i32", "i64"))
        rank, e = len(shape), self.element
        dim = rng.randrange(rank)
        numbers = ", ".join(str(rng.choice((-128, -3, -1, 0, 1, 2, 7, 100))) for _ in range(shape[dim]))
        table, out = self.fresh(), self.empty(shape)
        dims = ", ".join(f"d{i}" for i in range(rank))
        same, one = f"affine_map<({dims}) -> ({dims})>", f"affine_map<({dims}) -> (d{dim})>"
        self.lines.append(f"{table} = arith.constant dense<[{numbers}]> : tensor<{shape[dim]}x{kind}>")
        second = rng.choice((1, 2, 3, 5))
        body = [
            f"%c = arith.constant {second} : {kind}",
            f"%i = arith.{rng.choice(_INTEGERS)} %t, %c : {kind}",
        ]
        form = rng.randrange(5)
        if form == 0:
            body += [f"%s = arith.{rng.choice(('uitofp', 'sitofp'))} %i : {kind} to {e}"]
        elif form == 1:
            body += [f"%b = arith.cmpi {rng.choice(_PREDICATES)}, %i, %t : {kind}",
                     f"%s = arith.{rng.choice(('uitofp', 'sitofp'))} %b : i1 to {e}"]  # fmt: skip
        elif form == 2:
            body += [f"%b = arith.trunci %i : {kind} to i1",
                     f"%n = arith.cmpi {rng.choice(_PREDICATES)}, %t, %c : {kind}",
                     f"%p = arith.cmpi {rng.choice(_PREDICATES)}, %b, %n : i1",
                     f"%s = arith.select %p, %a, %q : {e}"]  # fmt: skip
        elif form == 3:
            wide = {"i8": "i32", "i16": "i32", "i32": "i64", "i64": "i64"}[kind]
            body += (
                [f"%w = arith.{rng.choice(('extui', 'extsi'))} %i : {kind} to {wide}"] if wide != kind else []
            )
            name = "%w" if wide != kind else "%i"
            body += [f"%s = arith.{rng.choice(('uitofp', 'sitofp'))} {name} : {wide} to {e}"]
        else:
            body += [f"%d = linalg.index {rng.randrange(rank)} : index", "%k = arith.constant 2 : index",
                     f"%b = arith.cmpi {rng.choice(_PREDICATES)}, %d, %k : index",
                     f"%s = arith.select %b, %a, %q : {e}"]  # fmt: skip
        yielded = rng.choice((f"%z = arith.addf %a, %s : {e}", f"%z = arith.mulf %s, %a : {e}"))
        loops = ", ".join(['"parallel"'] * rank)
        text = "\n      ".join([f"%q = arith.constant -0.5 : {e}", *body, yielded])
        self.add(
            f"$ = linalg.generic {{indexing_maps = [{same}, {one}, {same}], iterator_types = "
            f"[{loops}]}} ins({x}, {table} : {self.type(shape)}, tensor<{shape[dim]}x{kind}>) "
            f"outs({out} : {self.type(shape)}) {{\n    ^bb0(%a: {e}, %t: {kind}, %o: {e}):\n      {text}\n"
            f"      linalg.yield %z : {e}\n    }} -> {self.type(shape)}",
            shape,
        )

    def reduce(self) -> None:
        """A sum, maximum or minimum with an initial value."""
        x, shape = self.last()
        if len(shape) < 2:
            return self.unary()
        e, dim = self.element, self.rng.randrange(len(shape))
        kept = tuple(n for d, n in enumerate(shape) if d != dim)
        op, start = self.rng.choice(
            (("addf", "0.0"), ("addf", "0.5"), ("maximumf", "-1.0"), ("minimumf", "0.25"))
        )
        out, number, filled = self.empty(kept), self.fresh(), self.fresh()
        self.lines.append(f"{number} = arith.constant {start} : {e}")
        self.lines.append(
            f"{filled} = linalg.fill ins({number} : {e}) outs({out} : {self.type(kept)}) -> {self.type(kept)}"
        )
        return self.add(
            f"$ = linalg.reduce ins({x} : {self.type(shape)}) outs({filled} : {self.type(kept)}) "
            f"dimensions = [{dim}] (%a: {e}, %b: {e}) {{ %q = arith.{op} %a, %b : {e} linalg.yield %q : {e} }}",
            kept,
        )

    def matmul(self) -> None:
        """x y^T, by maps."""
        x, shape = self.last()
        if len(shape) != 2:
            return self.binary()
        y = self.rng.choice([n for n, s in self.values if s == shape])
        m, _ = shape
        e, out, number, filled = self.element, self.empty((m, m)), self.fresh(), self.fresh()
        self.lines.append(f"{number} = arith.constant 0.0 : {e}")
        square = self.type((m, m))
        self.lines.append(f"{filled} = linalg.fill ins({number} : {e}) outs({out} : {square}) -> {square}")
        return self.add(
            "$ = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) "
            "-> (j, k)>, affine_map<(i, j, k) -> (i, j)>], "
            'iterator_types = ["parallel", "parallel", "reduction"]} '
            f"ins({x}, {y} : {self.type(shape)}, {self.type(shape)}) outs({filled} : {square}) {{\n"
            f"    ^bb0(%a: {e}, %b: {e}, %c: {e}):\n      %p = arith.mulf %a, %b : {e}\n"
            f"      %s = arith.addf %c, %p : {e}\n      linalg.yield %s : {e}\n    }} -> {square}",
            (m, m),
        )

    def moved(self) -> None:
        """A transposition, a slice, a padding or a reshape."""
        rng, (x, shape) = self.rng, self.last()
        rank = len(shape)
        kind = rng.choice(("transpose", "slice", "pad", "collapse"))
        if kind == "transpose":
            perm = rng.sample(range(rank), rank)
            turned = tuple(shape[p] for p in perm)
            out = self.empty(turned)
            return self.add(
                f"$ = linalg.transpose ins({x} : {self.type(shape)}) outs({out} : {self.type(turned)}) "
                f"permutation = {perm}",
                turned,
            )
        if kind == "collapse" and rank > 1:
            whole = (int(np.prod(shape)),)
            groups = [list(range(rank))]
            return self.add(
                f"$ = tensor.collapse_shape {x} {groups} : {self.type(shape)} into {self.type(whole)}", whole
            )
        if kind == "pad":
            low, high = ([rng.randrange(2) for _ in shape] for _ in range(2))
            grown = tuple(n + a + b for n, a, b in zip(shape, low, high, strict=True))
            number = self.fresh()
            self.lines.append(f"{number} = arith.constant 0.5 : {self.element}")
            block = ", ".join(f"%p{i}: index" for i in range(rank))
            return self.add(
                f"$ = tensor.pad {x} low{low} high{high} {{\n    ^bb0({block}):\n      tensor.yield {number} : "
                f"{self.element}\n    }} : {self.type(shape)} to {self.type(grown)}",
                grown,
            )
        start = [rng.randrange(n) for n in shape]
        size = [rng.randint(1, n - a) for n, a in zip(shape, start, strict=True)]
        ones = [1] * rank
        return self.add(
            f"$ = tensor.extract_slice {x}{start}{size}{ones} : {self.type(shape)} to {self.type(size)}", size
        )

    def text(self) -> str:
        """The function."""
        for _ in range(self.rng.randint(2, 5)):
            step = self.rng.choice(
                (self.unary, self.binary, self.integers, self.integers, self.reduce, self.matmul, self.moved)
            )
            step()
        name, shape = self.values[-1]
        kinds = [self.type(s) for s in self.inputs]
        lines = "\n    ".join(self.lines)
        return (
            f"func.func @f(%x: {kinds[0]}, %y: {kinds[1]}) -> {self.type(shape)} {{\n    {lines}\n"
            f"    return {name} : {self.type(shape)}\n}}\n"
        )


def linalg_case(seed: int) -> tuple[str, str]:
    """What became of a generated linalg program, and its text."""
    from superopt.dialects import base
    from superopt.dialects.mlir import ir
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    made = Linalg(random.Random(seed))
    text, said = made.text(), Diagnostics()
    try:
        graph = read_linalg(ir.Module.parse(text, base.context()), said)
    except SuperoptError as error:
        return f"refused: {error.message.split(':')[0][:60]}", text
    kinds = [Tensor(s, made.element) for s in made.inputs]
    rng = np.random.default_rng(seed)
    inputs = [round_to(rng.standard_normal(s).astype(np.float32), made.element) for s in made.inputs]
    try:
        result = Tensor(made.values[-1][1], made.element)
        (((wide,), (narrow,)),) = execute(text.encode(), "f", [result], kinds, [inputs], seconds=60)
    except SuperoptError as error:
        return f"not executed: {error.message[:60]}", text
    (found,) = (graph_values(graph, inputs, faithful=False)[v] for v in graph.outputs)
    return _verdict(
        found, wide, narrow, made.element, any("not compared" in m.message for m in said.messages)
    ), text


def _verdict(found: Any, wide: Any, narrow: Any, element: str, remarked: bool) -> str:
    asked = np.isfinite(wide) & np.isfinite(narrow)
    with np.errstate(invalid="ignore"):
        size = np.where(asked, np.abs(wide), 0).max(initial=0.0)
        off = np.where(asked, np.abs(narrow - wide), 0).max(initial=0.0)
        wrong = asked & ~(np.abs(found - wide) <= 16 * (off + EPSILON[element] * size) + 1e-30)
    if found.shape != wide.shape or wrong.any():
        return "remarked on, differs" if remarked else "SILENT DIFFERENCE"
    return "equal, remarked on" if remarked else "equal" if asked.any() else "nothing finite"


# --- PyTorch ----------------------------------------------------------------------------------------------


def torch_steps(torch: Any, rng: random.Random) -> dict[str, Callable[[Any], Any]]:
    """Functions of a matrix to a matrix, with drawn parameters."""
    f, drawn = torch.nn.functional, rng.randrange(1 << 16)
    a, b = rng.choice((0.25, 0.5, 2.0, 3.0, -1.5)), rng.choice((0, 0.5, 1, 2))
    dim, keep = rng.choice((0, 1, -1, -2)), rng.random() < 0.5
    n, k = rng.randint(0, 2), rng.choice((-2, -1, 0, 1, 2))

    def c(options: Sequence[Any]) -> Any:  # the same in every call
        return options[drawn % len(options)]

    def spread(x: Any, r: Any) -> Any:
        return x + (r if keep else r.unsqueeze(dim))

    return {
        "rsub": lambda x: torch.rsub(x, x.sin(), alpha=a),
        "add": lambda x: torch.add(x, x.cos(), alpha=a),
        "sub": lambda x: torch.sub(x.cos(), x, alpha=a),
        "number": lambda x: a - x * b,
        "addmm": lambda x: torch.addmm(x @ x.t(), x, x.t(), beta=b, alpha=a),
        "baddbmm": lambda x: torch.baddbmm((x @ x.t())[None], x[None], x.t()[None], beta=b, alpha=a)[0],
        "softplus": lambda x: f.softplus(x * 8, abs(a), c((1, 5, 20, 30))),
        "logsigmoid": lambda x: f.logsigmoid(x * 8),
        "logsumexp": lambda x: spread(x, torch.logsumexp(x * 4, dim, keepdim=keep)),
        "var": lambda x: spread(x, x.var(dim, correction=n if n < x.shape[dim] else 0, keepdim=keep)),
        "std": lambda x: spread(x, x.std(dim, correction=0, keepdim=keep)),
        "mean": lambda x: spread(x, x.mean(dim, keepdim=keep)),
        "sum": lambda x: spread(x, x.sum(dim, keepdim=keep)),
        "amax": lambda x: spread(x, x.amax(dim, keepdim=keep)),
        "max": lambda x: spread(x, x.max(dim, keepdim=keep)[0]),
        "norm": lambda x: spread(x, torch.linalg.vector_norm(x, c((1, 2)), dim, keepdim=keep)),
        "softmax": lambda x: x.softmax(dim),
        "log_softmax": lambda x: (x * 4).log_softmax(dim),
        "clamp": lambda x: x.clamp(-abs(a) / 4, abs(a)),
        "hardtanh": lambda x: f.hardtanh(x, -abs(a), b),
        "elu": lambda x: f.elu(x, a),
        "celu": lambda x: f.celu(x, a),
        "selu": f.selu,
        "mish": f.mish,
        "silu": f.silu,
        "gelu": lambda x: f.gelu(x, approximate=c(("none", "tanh"))),
        "leaky": lambda x: f.leaky_relu(x, a),
        "hardswish": lambda x: f.hardswish(x * 4),
        "relu6": lambda x: f.relu6(x * 4),
        "softsign": f.softsign,
        "threshold": lambda x: f.threshold(x, 0.1, a),
        "where": lambda x: torch.where(x > 0, x, a * x),
        "greater": lambda x: (x > b).to(x.dtype) - x,
        "bool": lambda x: (x > 0).logical_not().to(x.dtype) + x,
        "triu": lambda x: x.triu(k),
        "tril": lambda x: x.tril(k),
        "fill": lambda x: x.masked_fill(torch.arange(x.shape[1]) < n, a),
        "roll": lambda x: x.roll(k, dim),
        "slice": lambda x: torch.cat([x[:, :1], x], 1)[:, k:] if k < 0 else x[:, :: n + 1],
        "flip": lambda x: x.flip(dim),
        "repeat": lambda x: x.repeat(1, n + 1),
        "pad": lambda x: f.pad(x, (n, 1), value=a),
        "chunk": lambda x: torch.cat(x.chunk(2, dim)[::-1], dim),
        "select": lambda x: x - x.select(dim, -1).unsqueeze(dim),
        "norms": lambda x: f.layer_norm(x, (x.shape[1],), eps=1e-3),
        "rms": lambda x: f.rms_norm(x, (x.shape[1],), eps=1e-3),
        "pow": lambda x: x.abs().add(0.1) ** c((-2, -0.5, 0.5, 1.7, 3)),
        "base": lambda x: 2.0**x,
        "exp2": torch.exp2,
        "log1p": lambda x: x.abs().log1p(),
        "expm1": torch.expm1,
        "log2": lambda x: (x.abs() + 0.1).log2(),
        "bce": lambda x: (
            x + f.binary_cross_entropy_with_logits(x * 8, x.sigmoid(), reduction=c(("none", "mean", "sum")))
        ),
        "loss": lambda x: x + c((f.mse_loss, f.l1_loss, f.smooth_l1_loss))(x, x.sin()),
        "round": lambda x: (x * 4).round(),
        "floor": lambda x: (x * 4).floor(),
        "sign": torch.sign,
        "einsum": lambda x: torch.einsum(c(("ij,kj->ik", "ij,kj->ki", "ij,ij->ij")), x, x.sin()),
        "attention": lambda x: f.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=keep)[0],
        "glu": lambda x: f.glu(torch.cat([x, x.sin()], dim), dim),
        "cumsum": lambda x: x.cumsum(dim),
        "transpose": lambda x: x.t(),
        "strided": lambda x: x.contiguous().as_strided((2, 2), (1, 1)),
        "lerp": lambda x: torch.lerp(x, x.sin(), abs(a)),
        "addcmul": lambda x: torch.addcmul(x, x, x, value=a),
        "int": lambda x: x * torch.arange(x.shape[1]),
        "mod": lambda x: x * (torch.arange(x.shape[1]) % 3 == 1),
    }


def torch_case(seed: int) -> tuple[str, str]:
    """What became of a generated PyTorch function, and which it was."""
    import torch as _torch

    from superopt.transforms.ingest import from_torch

    torch: Any = _torch
    rng = random.Random(seed)
    dtype = rng.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
    element = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    names = [rng.choice(sorted(torch_steps(torch, rng))) for _ in range(rng.randint(1, 3))]
    chain = [torch_steps(torch, random.Random(rng.random()))[n] for n in names]

    class Chain(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            for step in chain:
                x = step(x)
            return x

    via = rng.choice(("torch", "torch", "linalg"))
    what = f"{seed} {names} {element} via {via}"
    generator = torch.Generator().manual_seed(seed)
    example, x = (torch.randn(4, 6, generator=generator).to(dtype) for _ in range(2))
    try:
        imported = from_torch(Chain(), (example,), via=via)
    except SuperoptError as error:
        return f"refused: {error.message.split(':')[0][:60]}", f"{what}: {error}"
    with torch.no_grad():
        narrow = Chain()(x).double().numpy()
        try:
            wide = Chain()(x.double()).double().numpy()
        except RuntimeError:
            return "not executed in fp64", what
    try:
        values = graph_values(imported.graph, [x.double().numpy()], faithful=False)
    except SuperoptError as error:
        return f"not executed: {error.message[:60]}", what
    (found,) = (values[v] for v in imported.graph.outputs)
    remarked = any("not compared" in m.message for m in imported.diagnostics.messages)
    return _verdict(found, wide, narrow, element, remarked), what


# --- the campaign -----------------------------------------------------------------------------------------


def run(count: int, seed: int) -> dict[str, Any]:
    """Both kinds, `count` each; the result says what became of how many, and holds what differed silently."""
    report: dict[str, Any] = {"count": count, "seed": seed}
    for kind, case in (("linalg", linalg_case), ("torch", torch_case)):
        found: Counter[str] = Counter()
        silent: list[str] = []
        for i in range(count):
            verdict, what = case(seed * 1_000_003 + i)
            found[verdict] += 1
            if verdict.startswith(("SILENT", "refused: expected to read")):
                silent.append(f"{verdict}\n{what}")
        report[kind] = dict(found.most_common())
        report[f"{kind} differences"] = silent
    return report


def main() -> int:
    """Run as the command line says; exit code 1 for a silent difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {**about(), **run(options.count, options.seed)}
    text = json.dumps(report, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return int(any("SILENT DIFFERENCE" in report[kind] for kind in ("linalg", "torch")))


if __name__ == "__main__":
    sys.exit(main())
