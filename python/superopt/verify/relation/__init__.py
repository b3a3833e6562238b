"""The exact relation of multilinear programs, and where two of them differ; see `difference`."""

from superopt.verify.relation.region import Abstained, Box, Region, difference, equal_sizes, members

__all__ = ["Abstained", "Box", "Region", "difference", "equal_sizes", "members"]
