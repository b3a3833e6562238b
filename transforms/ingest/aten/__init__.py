"""Each PyTorch operator in terms of table operators: one handler per operator, in `HANDLERS`."""

from superopt.transforms.ingest.aten import pointwise, sums, truths, views, windows
from superopt.transforms.ingest.aten.table import HANDLERS

__all__ = ["HANDLERS", "pointwise", "sums", "truths", "views", "windows"]
