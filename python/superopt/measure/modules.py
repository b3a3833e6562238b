"""A PyTorch module as rows to compare with: eager, compiled, and with each backend of attention that it calls.

The module runs as its factory makes it, from a copy of its file and of what that imports from the same folder.
Its arguments and weights are the program's inputs: bound once, before anything is timed, so that a call is a call
of the module and nothing else.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.errors import BadInput
from superopt.inputs.factories import Factory

_LAUNCH = '''"""{title}: the module that {factory} of {file} makes."""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

WEIGHTS = {weights!r}
BACKEND = {backend!r}
SOURCE = Path(__file__).resolve().parent.parent / "source"
GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def made():
    """The module in evaluation mode and its example inputs, on the device."""
    sys.path.insert(0, str(SOURCE))
    spec = importlib.util.spec_from_file_location({stem!r}, SOURCE / {file!r})
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault({stem!r}, loaded)
    spec.loader.exec_module(loaded)
    module, inputs = loaded.{factory}()
    leaves, tree = pytree.tree_flatten(tuple(inputs))
    where = "cuda" if GPU else "cpu"
    return module.eval().to(where), [x.to(where) if isinstance(x, torch.Tensor) else x for x in leaves], tree


def bind(*tensors):
    """What computes the outputs: the module, whose weights from now on are these tensors' memory."""
    module, leaves, tree = made()
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in zip(WEIGHTS, tensors[len(places):], strict=True):
        weights[name].data = tensor
    flat = tree == pytree.tree_structure(tuple(leaves))

    def run(*tensors):
        """The module's outputs."""
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        arguments = given if flat else pytree.tree_unflatten(given, tree)
        if not BACKEND:
            made = module(*arguments)
        else:
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKEND)):
                made = module(*arguments)
        return tuple(x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor))

    return run
'''


@dataclass(frozen=True)
class Module:
    """A module that a program was imported from; `weights` are the names of its last inputs."""

    factory: Factory
    weights: Sequence[str]

    def calls_attention(self) -> bool:
        """Whether it asks PyTorch for scaled_dot_product_attention, by a call on tensors without storage."""
        torch: Any = importlib.import_module("torch")
        overrides: Any = importlib.import_module("torch.overrides")
        fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
        wanted = torch.nn.functional.scaled_dot_product_attention
        found: list[bool] = []

        class Watch(overrides.TorchFunctionMode):
            """Notes the calls of one function."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found.extend([True] if func is wanted else [])
                return func(*args, **(kwargs or {}))

        made, inputs = self.factory.module, self.factory.inputs
        with fake.FakeTensorMode(allow_non_fake_inputs=True) as mode, Watch(), torch.no_grad():
            try:
                pytree: Any = importlib.import_module("torch.utils._pytree")
                given = pytree.tree_map_only(torch.Tensor, mode.from_tensor, tuple(inputs))
                made(*given)
            except Exception:  # a module may do what such tensors cannot: what it called by then counts
                pass
        return bool(found)

    def write_source(self, place: Path) -> None:
        """Copy the file, and what was imported from its folder, into `place`; raises BadInput."""
        folder = self.factory.path.resolve().parent
        files = {self.factory.path.resolve()}
        for loaded in list(sys.modules.values()):
            file = getattr(loaded, "__file__", None)
            if not isinstance(file, str) or not file.endswith(".py"):
                continue
            # Some modules name no file (that of torch.ops is "_ops.py"), which then would lie where we are.
            if Path(file).resolve().is_relative_to(folder) and Path(file).is_file():
                files.add(Path(file).resolve())
        if any("site-packages" in f.relative_to(folder).parts for f in files):
            files = {f for f in files if "site-packages" not in f.relative_to(folder).parts}
        try:
            for file in sorted(files):
                copy = place / file.relative_to(folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        except OSError as error:
            raise BadInput(f"expected to copy {self.factory.path}, got: {error.strerror or error}") from None

    def write(self, place: Path, title: str, backend: str = "") -> None:
        """Write a `launch.py` into `place`, next to which `source` holds the module's files."""
        place.mkdir(parents=True, exist_ok=True)
        path = self.factory.path
        text = _LAUNCH.format(
            title=title,
            factory=self.factory.name,
            file=path.name,
            stem=path.stem,
            weights=list(self.weights),
            backend=backend,
        )
        (place / "launch.py").write_text(text)
