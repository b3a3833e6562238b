"""How to call a PyTorch module: where tensors are among its arguments and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.errors import BadInput
from superopt.transforms.ingest.torch_types import torch_module


class Signature:
    """The example inputs of a module, nested as they were, and (once it has run) what it returns.

    Inputs other than tensors are part of the program and must be the same in every call.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        from torch.utils import _pytree as pytree

        self._pytree: Any = pytree
        self.leaves, self._nesting = pytree.tree_flatten(tuple(inputs))
        self.tensors = [i for i, leaf in enumerate(self.leaves) if self._is_tensor(leaf)]
        self._returned: tuple[list[Any], Any] | None = None

    def _is_tensor(self, leaf: Any) -> bool:
        return isinstance(leaf, torch_module().Tensor)

    def arguments(self, tensors: Sequence[Any]) -> Any:
        """The module's arguments, with `tensors` in place of the example's."""
        given = list(self.leaves)
        for i, value in zip(self.tensors, tensors, strict=True):
            given[i] = value
        return self._pytree.tree_unflatten(given, self._nesting)

    def _outline(self, given: Any) -> str:
        """`given` with the word `tensor` for each tensor."""
        leaves, nesting = self._pytree.tree_flatten(given)
        named = ["tensor" if self._is_tensor(leaf) else leaf for leaf in leaves]
        return repr(self._pytree.tree_unflatten(named, nesting)).replace("'tensor'", "tensor")

    def returned(self, results: Any) -> tuple[Any, ...]:
        """The tensors among `results`, whose nesting is recorded as what the module returns."""
        leaves, nesting = self._pytree.tree_flatten(results)
        self._returned = ([None if self._is_tensor(x) else x for x in leaves], nesting)
        self._places = [i for i, leaf in enumerate(leaves) if self._is_tensor(leaf)]
        return tuple(leaves[i] for i in self._places)

    def flat(self, inputs: Sequence[Any]) -> list[Any]:
        """The tensors among the arguments of a call; raises BadInput where the rest differs from the example."""
        leaves, nesting = self._pytree.tree_flatten(tuple(inputs))
        if nesting != self._nesting:
            wanted, got = (self._outline(x) for x in (self.arguments(["tensor"] * len(self.tensors)), inputs))
            raise BadInput(f"expected arguments like the example inputs {wanted}, got {got}")
        for i, (leaf, known) in enumerate(zip(leaves, self.leaves, strict=True)):
            if i not in self.tensors and not (leaf is known or (type(leaf) is type(known) and leaf == known)):
                raise BadInput(
                    f"expected {known!r}, which the program was made for, got {self._outline(leaf)}"
                )
        return [leaves[i] for i in self.tensors]

    def nested(self, tensors: Sequence[Any]) -> Any:
        """What the module returns, with `tensors` (or more) as its tensors."""
        assert self._returned is not None, "the module has run"
        leaves, nesting = list(self._returned[0]), self._returned[1]
        for i, value in zip(self._places, tensors, strict=False):
            leaves[i] = value
        return self._pytree.tree_unflatten(leaves, nesting)
