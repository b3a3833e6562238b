"""Subprograms small enough to search, and stitching the results (Mirage, sections 1 and 5)."""

from superopt.transforms.partition.segments import MAX_VALUES, Segment, partition, stitch

__all__ = ["MAX_VALUES", "Segment", "partition", "stitch"]
