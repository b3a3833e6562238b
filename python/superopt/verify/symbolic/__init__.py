"""Equality for all extents at once, by normal forms of sums of products over named axes; see `prove`."""

from superopt.verify.symbolic.derive import Proof, prove

__all__ = ["Proof", "prove"]
