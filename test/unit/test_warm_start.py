"""A second process takes regions of torch.compile from the store: nothing is read or proved; nothing forged is run."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from superopt.diagnostics import Diagnostics
from superopt.store import Key, Store, seal
from superopt.store.results import publish

torch: Any = pytest.importorskip("torch")
from superopt.pytorch import regions  # noqa: E402
from superopt.pytorch.backend import Backend  # noqa: E402

backend: Any = import_module("superopt.pytorch.backend")


class Layer(torch.nn.Module):
    """A product between elementwise operations, one of which `activation` chooses."""

    def __init__(self, activation: Any = torch.nn.functional.silu) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm, self.mlp = torch.nn.RMSNorm(32), torch.nn.Linear(32, 32, bias=False)
        self.activation = activation

    def forward(self, x: Any) -> Any:
        return x + self.activation(self.mlp(self.norm(x)))


class Masked(torch.nn.Module):
    """A causal mask, which kernels compute."""

    def forward(self, x: Any) -> Any:
        mask = torch.full((8, 8), float("-inf")).triu(1)
        return torch.softmax(x @ x.transpose(-1, -2) / 4 + mask, -1)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user of its own, without gradients; PyTorch forgets what it compiled."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    torch.manual_seed(1)
    with torch.no_grad():
        yield
    torch.compiler.reset()


def compiled(model: Any, x: Any, store: Path, **more: Any) -> tuple[Any, Backend]:
    """What a new process computes that knows the store alone."""
    backend._KNOWN.clear()
    torch.compiler.reset()
    made = Backend(interpret="cpu", against="operators", budget=1, store=str(store), **more)
    return torch.compile(model.eval(), backend=made, fullgraph=True)(x), made


@pytest.fixture
def nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        pytest.fail("expected nothing to be read or searched")  # no Exception, which would be caught

    for name in ("_imported", "superoptimize", "superoptimize_range", "prepare_compiler"):
        monkeypatch.setattr(backend, name, refused)


@pytest.mark.parametrize("model", [Layer(), Masked()], ids=["layer", "mask"])
def test_a_second_process_reads_and_proves_nothing(model: Any, tmp_path: Path, request: Any) -> None:
    x = torch.randn(8, 32)
    first, cold = compiled(model, x, tmp_path / "store")
    assert cold.graphs[0].parts[0].replaced
    request.getfixturevalue("nothing_is_found")
    second, warm = compiled(model, x, tmp_path / "store")
    assert torch.equal(first, second)
    assert torch.allclose(first, model(x), atol=1e-5)
    assert str(warm.graphs) == str(cold.graphs)


def test_what_is_asked_otherwise_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Another shape, setting or version of the code is another key."""
    x = torch.randn(8, 32)
    compiled(Layer(), x, tmp_path / "store")
    request.getfixturevalue("nothing_is_found")
    more: dict[str, Any]
    for given, more in ((x[:4], {}), (x, {"seed": 1}), (x, {"target": "sm_80"})):
        with pytest.raises(pytest.fail.Exception, match="expected nothing to be read"):
            compiled(Layer(), given, tmp_path / "store", **more)
    monkeypatch.setattr(import_module("superopt.run.reuse"), "own_code", lambda: "another")
    with pytest.raises(pytest.fail.Exception, match="expected nothing to be read"):
        compiled(Layer(), x, tmp_path / "store")


def entries(store: Path, what: str = "kernels of a region") -> list[tuple[Key, dict[str, bytes]]]:
    """The entries of a store, each with its key."""
    found: list[tuple[Key, dict[str, bytes]]] = []
    records: Any = Store(store).keys()
    for made in records:
        key = Key(made["program"], made["target"], made["versions"], made["policy"])
        if made["policy"]["what"] == what:
            found += [(key, dict(entry.files)) for entry in Store(store).entries(key)]
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A layer and its input; in a folder, the stores "mine" with it and "theirs" with another one of one user."""
    x, layer, folder = torch.randn(8, 32), Layer(), tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as user, torch.no_grad():
        user.setenv("XDG_STATE_HOME", str(folder / "state"))
        compiled(layer, x, folder / "mine")
        compiled(Layer(torch.nn.functional.relu), x, folder / "theirs")
    return layer, x, folder


def forge(folder: Path, store: Path, how: str) -> None:
    """A store that says that the kernels of another layer compute the layer."""
    mine, theirs = folder / "mine", folder / "theirs"
    ((key, genuine),) = entries(mine)
    ((_, other),) = entries(theirs)
    bare = {n: d for n, d in other.items() if n != seal.FILE}
    files = {
        "without a seal": bare,
        "with the seal of the layer itself": {**other, seal.FILE: genuine[seal.FILE]},
        "with the seal of another key": other,
        "sealed by another user": seal.sealed(key.digest, bare),
        "with one more file": {**genuine, "reason": b"no kernels"},
        "with a secret that others may read": genuine,
    }[how]
    shutil.rmtree(seal.secret_path().parent, ignore_errors=True)
    shutil.copytree(folder / "state" / "superopt", seal.secret_path().parent)
    if how == "with a secret that others may read":
        seal.secret_path().chmod(0o644)
    for reading, kept in entries(mine, "region"):
        Store(store).publish(reading, kept, seconds=0.0)
    Store(store).publish(key, files, seconds=0.0)


@pytest.mark.parametrize(
    "how",
    [
        "without a seal", "with the seal of the layer itself", "with the seal of another key",
        "sealed by another user", "with one more file", "with a secret that others may read",
    ],
)  # fmt: skip
def test_a_forged_store_is_not_believed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: tuple[Any, Any, Path]
) -> None:
    layer, x, folder = published
    forge(folder, tmp_path / "forged", how)
    searched: list[Any] = []
    search = backend.superoptimize

    def counted(*given: Any) -> Any:
        searched.append(given)
        return search(*given)

    monkeypatch.setattr(backend, "superoptimize", counted)
    got, made = compiled(layer, x, tmp_path / "forged")
    assert torch.allclose(got, layer(x), atol=1e-5)
    assert len(searched) == 1
    assert made.graphs[0].parts[0].replaced


def test_the_secret_is_the_users_alone(tmp_path: Path) -> None:
    files = {"a": b"1"}
    assert not seal.holds("key", {**files, seal.FILE: b""})
    assert not seal.secret_path().exists(), "looking does not make one"
    sealed = seal.sealed("key", files)
    assert stat.S_IMODE(seal.secret_path().stat().st_mode) == 0o600
    assert seal.holds("key", sealed)
    assert seal.sealed("key", files) == sealed
    for changed in ({"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""}, {}):
        assert not seal.holds("key", {**changed, seal.FILE: sealed[seal.FILE]})
    assert not seal.holds("another", sealed)
    target = tmp_path / "elsewhere"
    seal.secret_path().rename(target)
    seal.secret_path().symlink_to(target)
    assert not seal.holds("key", sealed)
    seal.secret_path().unlink()
    assert not seal.holds("key", sealed)


def test_without_a_place_for_a_secret_nothing_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert seal.sealed("key", {"a": b"1"}) == {"a": b"1"}
    said = Diagnostics()
    assert not publish(
        "p", "sm_90", {}, {"a": b"1"}, said, seconds=0.0, folder=tmp_path / "store", sealed=True
    )
    (message,) = said.messages
    assert "the result was not stored: expected a secret that only the user can read" in message.message
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("found", [b"", bytes(31), bytes(33)])
def test_a_file_without_a_secret_is_replaced(found: bytes) -> None:
    """Once for all, so that later processes believe what this one seals."""
    seal.secret_path().parent.mkdir(parents=True)
    seal.secret_path().write_bytes(found)
    seal.secret_path().chmod(0o600)
    assert not seal.holds("key", {"a": b"1"})
    sealed = seal.sealed("key", {"a": b"1"})
    assert seal.holds("key", sealed)
    assert stat.S_IMODE(seal.secret_path().stat().st_mode) == 0o600
    assert seal.sealed("key", {"a": b"1"}) == sealed
    seal.secret_path().chmod(0o644)
    assert not seal.holds("key", sealed), "others may have read it"
    assert seal.holds("key", seal.sealed("key", {"a": b"1"}))
    assert not seal.holds("key", sealed)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_no_secret(kind: str) -> None:
    seal.secret_path().parent.mkdir(parents=True)
    (os.mkdir if kind == "folder" else os.mkfifo)(seal.secret_path())
    assert seal.sealed("key", {"a": b"1"}) == {"a": b"1"}
    assert not seal.holds("key", {"a": b"1", seal.FILE: b""})


def cut_of(model: Any, x: Any) -> regions.Region:
    """The whole graph of a model as a region."""
    found: list[regions.Region] = []

    def keep(graph: Any, _: Any) -> Any:
        nodes = [n for n in graph.graph.nodes if n.op.startswith("call")]
        found.append(regions.region(nodes, "", graph))
        return graph.forward

    torch.compiler.reset()
    torch.compile(model, backend=keep, fullgraph=True)(x)
    return found[0]


@torch.compiler.allow_in_graph
def doubled(x: Any) -> Any:
    """A function of this file, which may be another one tomorrow."""
    return x * 2


def test_a_region_with_functions_of_the_user_is_not_kept() -> None:
    x = torch.randn(4, 4)

    def plain(x: Any) -> Any:
        return torch.relu(x) + 1

    def own(x: Any) -> Any:
        return doubled(x) + 1

    assert cut_of(plain, x).portable
    assert not cut_of(own, x).portable


def test_what_changes_dtypes_changes_the_key() -> None:
    def scaled(x: Any) -> Any:
        return x @ x + torch.ones(4)

    x = torch.randn(4, 4)
    plain = cut_of(scaled, x).key
    assert plain == cut_of(scaled, x + 1).key
    with torch.autocast("cpu", torch.bfloat16):
        inside = cut_of(scaled, x).key
    torch.set_default_dtype(torch.float64)
    try:
        assert len({plain, inside, cut_of(scaled, x).key}) == 3
    finally:
        torch.set_default_dtype(torch.float32)


class Step(torch.nn.Module):
    """One query against a cache that grows."""

    def forward(self, q: Any, k: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ k


def test_kernels_for_a_range_start_warm(tmp_path: Path, request: Any) -> None:
    def run(lengths: tuple[int, ...]) -> Any:
        backend._KNOWN.clear()
        torch.compiler.reset()
        made = Backend(interpret=True, against="operators", budget=1, store=str(tmp_path / "store"))
        step, q = torch.compile(Step(), backend=made, fullgraph=True), torch.randn(2, 1, 16)
        for length in lengths:
            cache = torch.randn(2, length, 16)
            if length == lengths[0]:
                torch._dynamo.mark_dynamic(cache, 1, min=2, max=64)
            assert torch.allclose(step(q, cache), Step()(q, cache), atol=1e-5), length
        return made

    (part,) = run((5,)).graphs[0].parts
    assert part.replaced, part.reason
    request.getfixturevalue("nothing_is_found")
    assert run((5, 6, 31)).graphs[0].parts == [part]


_TWICE = """
import sys, time, torch, transformers, superopt
from superopt.pytorch import backend
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=32, max_position_embeddings=64)
model = transformers.LlamaForCausalLM(config).eval()
took, called = [], backend.Backend.__call__
def timed(*given):
    start = time.process_time()
    made = called(*given)
    took.append(time.process_time() - start)
    return made
backend.Backend.__call__ = timed
said = superopt.explain(model, {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}, budget=1, store=sys.argv[1])
print(sum(took))
print(said)
"""


@pytest.mark.models
def test_a_second_process_explains_a_llama_in_two_seconds(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = [sys.executable, "-c", _TWICE, str(tmp_path / "store")]
    cold, warm = (subprocess.run(run, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert cold.split("\n", 1)[1] == warm.split("\n", 1)[1]
    assert float(warm.split()[0]) < 2 < float(cold.split()[0])


_AGAIN = """
import sys, torch, transformers, superopt
from superopt.transforms.emit import compile
kernels = []
compiled = compile._compiled_kernel
def counted(kernel, *given):
    kernels.append(kernel.name)
    return compiled(kernel, *given)
compile._compiled_kernel = counted
torch.manual_seed(0)
settings = {"budget": 5, "against": "operators", "store": sys.argv[1]}
if sys.argv[2] == "optimize":
    asked, inputs = superopt.optimize, (torch.randn(16, 64),)
    given = [torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 128, bias=False)).eval()]
else:
    asked, inputs = superopt.replace, torch.tensor([[3, 1, 4, 1, 5]])
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64)
    given = [transformers.LlamaForCausalLM(config).eval(), "model.layers.*.mlp"]
made = asked(*given, inputs, **settings)
print(len(kernels))
print(made)
"""


@pytest.mark.models
@pytest.mark.parametrize("how", ["optimize", "replace"])
def test_a_second_process_compiles_only_what_it_delivers(how: str, tmp_path: Path) -> None:
    """No other schedule is compiled again; `benchmarks/warm_start.py` measures the seconds that this saves."""
    pytest.importorskip("transformers")
    run = [sys.executable, "-c", _AGAIN, str(tmp_path / "store"), how]
    cold, warm = (subprocess.run(run, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert cold.split("\n", 1)[1] == warm.split("\n", 1)[1]
    first, second = (int(said.split("\n")[0]) for said in (cold, warm))
    assert second == 1 < first
