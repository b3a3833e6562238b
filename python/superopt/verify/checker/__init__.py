"""A second, independent judge of equivalence, and the checker of certificates: plain Python integers, no
numpy maths.

It shares nothing with the searches and nothing with the certifier: not the evaluators, not the fields, not
the reader of canonical texts. It shares only the operator table, which defines what operators mean. It works
the other way round: instead of whole tensors at reduced extents it computes single elements of the outputs at
full extents, on demand, with exponentials kept formal. An element is

    (f_1 [h_1] + ... + f_k [h_k]) / (g_1 [h'_1] + ...),   f, g in Z_p, h in Z_q,   exp(x) = [x],   [a][b] = [a
    + b]

and two elements are compared by cross multiplication. `check_certificate` does this for the two programs in a
certificate, at points that it draws itself, and recomputes the certificate's bounds from their parts.
"""

from __future__ import annotations

from superopt.verify.checker.algebra import Algebra, Element, TooMuchWork
from superopt.verify.checker.check import Check, Comparison, check_certificate, compare
from superopt.verify.checker.elements import Evaluator

__all__ = [
    "Algebra",
    "Check",
    "Comparison",
    "Element",
    "Evaluator",
    "TooMuchWork",
    "check_certificate",
    "compare",
]
