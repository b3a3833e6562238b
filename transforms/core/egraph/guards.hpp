// When a rule may fire: the safety conditions of the rules, apart from the rewriting itself.
//
// The paper's conditions (Trinity, Appendix A, right column) are not all sufficient; the comment above each
// guard says what it requires instead, and why. Tests can switch every guard off to show what it prevents.
#pragma once

#include "egraph/egraph.hpp"

namespace superopt::egraph {

// A guard's name, and what it requires; {0} and {1} stand for the variables that it tests.
struct Description {
  const char *name, *asks;
};
Description described(Guard guard);

// No W/R, W/W or R/W dependence between x and y at one point in time: `x; y` is `y; x`.
bool independent(const EGraph &g, const Facts &x, const Facts &y);

// No dependence between iteration i of x and iteration j != i of y, for loops over `var`. All three kinds are
// needed: with the paper's no_raw_waw, `B = A + rsum(A[:])` and `A = C` would fuse (y overwrites what later
// iterations of x read).
bool independent_across(const EGraph &g, const Facts &x, const Facts &y, int32_t var);

// Whether `x; x` is `x`: it does not read what it writes. Without it accumulators would collapse.
bool idempotent(const EGraph &g, const Facts &x);

// `for v: x` then `for v: y` -> `for v: x; y`. The regions that y's loop starts from (`starts`) move before
// x's.
bool may_fuse(const EGraph &g, const Facts &x, const Facts &y, const LoopHead &head_x,
              const LoopHead &head_y);

// The heads of `for v: x` and `for v: y` made from `for v: (x; y)`: a start goes to x where x touches it.
std::pair<LoopHead, LoopHead> split_starts(const EGraph &g, const LoopHead &head, const Facts &x);

// `for v: (x; y)` -> `for v: x` then `for v: y`, with the heads of `split_starts`: each start belongs to one
// of them, and the two could be fused again.
bool may_fission(const EGraph &g, const Facts &x, const Facts &y, const LoopHead &first,
                 const LoopHead &second);

// `(for v: body); s` -> `for v: (body; s)`: s may read what the loop writes (its last run sees all of it),
// but the loop must not see or overwrite what the earlier runs of s write, and s must be idempotent.
bool may_insert_after(const EGraph &g, const LoopHead &head, const Facts &body, const Facts &loop,
                      const Facts &s);

// `s; (for v: body)` -> `for v: (s; body)`: every run of s must do what the first did, so the loop may write
// neither what s reads nor what s writes.
bool may_insert_before(const EGraph &g, const LoopHead &head, const Facts &loop, const Facts &s);

// `for v: body` -> `body`: v does not occur, body is idempotent, nothing is started before the loop.
bool is_invariant(const EGraph &g, const LoopHead &head, const Facts &body);

// `for v: b += value / factor` -> `(for v: b += value); b /= factor`: b starts at 0 (a region of the loop's
// head), neither value, factor nor the accumulator's scale reads b, the factor does not vary with v, and
// value has the shape of the quotient.
bool may_factor(const EGraph &g, const LoopHead &head, int32_t b, Id value, Id factor, Id scale, Id whole);

// a / b with b of extent 1 along the contracted axis of a (the columns of a left operand, the rows of a right
// one), and a of the quotient's shape.
bool constant_columns(const EGraph &g, Id a, Id b);
bool constant_rows(const EGraph &g, Id a, Id b);

bool same_shape(const EGraph &g, Id a, Id b);

// No element of x is 0 (both operands are x).
bool nonzero(const EGraph &g, Id x, Id);

// A value stored to `region` may stand for a load of `region` in `consumer`: the value does not read the
// region, the consumer reads the region exactly or not at all, and writes nothing of what the value reads
// nor of the region.
bool may_propagate(const EGraph &g, int32_t region, const Facts &value, const Facts &consumer);

// Loops over h may become loops over n: both of known and equal trip counts.
bool may_reindex(const EGraph &g, int32_t h, int32_t n);

// `for v: x[v]` -> `x[:]`: one trip, and nothing is started before the loop. `untiled` refuses tiles at v
// that are not all of a dimension.
bool is_single_trip(const EGraph &g, const LoopHead &head);

} // namespace superopt::egraph
