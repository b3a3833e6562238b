"""PyTorch, imported on first use, and its dtypes by our names and by their numbers in the torch dialect."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from superopt.errors import UnsupportedProgram

_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i64": "int64",
          "i32": "int32", "i16": "int16", "i8": "int8", "i1": "bool"}  # fmt: skip
# The numbering of c10::ScalarType, c10::Layout and c10::MemoryFormat.
_SCALAR_TYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32",
                 "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2",
                 "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn",
                 "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64")  # fmt: skip
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@cache
def torch_module() -> Any:
    """The module `torch`; raises UnsupportedProgram where it is not installed."""
    try:
        import torch
    except ImportError:
        raise UnsupportedProgram(
            "expected PyTorch to be installed to read a module (pip install 'superopt[torch]')"
        ) from None
    return torch


def export_lock() -> Any:
    """The lock of torch.compile, for torch.export: it takes no two threads at once, and is called within the
    former."""
    return importlib.import_module("torch._dynamo.convert_frame").compile_lock


def held_as(tensor: Any, dtype: str) -> Any:
    """The tensor in the dtype of a graph's value, where uint8 is an i8 too: only PyTorch computes with either."""
    unsigned = dtype == "i8" and tensor.dtype == torch_module().uint8
    return tensor if unsigned else tensor.to(DTYPE_NAMES[dtype])


def dtype_number(number: int) -> Any:
    """The dtype with this number in the torch dialect."""
    return getattr(torch_module(), _SCALAR_TYPES[number])


def layout_number(number: int) -> Any:
    """The layout with this number; only strided tensors occur."""
    return torch_module().strided if number == 0 else torch_module().sparse_coo


def memory_format_number(number: int) -> Any:
    """The memory format with this number."""
    return getattr(torch_module(), _MEMORY_FORMATS[number])


class _Dtypes(Mapping[str, Any]):
    """torch dtypes by our names, importing torch only when one is requested."""

    def __getitem__(self, name: str) -> Any:
        return getattr(torch_module(), _NAMES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


DTYPE_NAMES: Mapping[str, Any] = _Dtypes()
