#include "egraph/guards.hpp"

#include <algorithm>

namespace superopt::egraph {

namespace {

bool disjoint(const Tables &t, const Regions &x, const Regions &y, int32_t different_var = -1) {
  return std::ranges::none_of(x, [&](int32_t a) {
    return std::ranges::any_of(y, [&](int32_t b) { return overlap(t, a, b, different_var); });
  });
}

Regions starts_of(const LoopHead &head) {
  Regions out;
  for (const auto &[access, kind] : head.inits)
    out.push_back(access);
  return out;
}

bool meets(const Tables &t, int32_t access, const Facts &facts) {
  const Regions region{access};
  return !disjoint(t, region, facts.reads) || !disjoint(t, region, facts.writes);
}

bool has(Bits bits, int32_t var) { return bits >> var & 1; }

// Whether b has extent 1 in dimension `from_end` of a, counted from the end as in numpy.
bool constant_along(const EGraph &g, Id a, Id b, int from_end) {
  const Shape &whole = g.tables.shapes[g.facts(a).shape], &part = g.tables.shapes[g.facts(b).shape];
  if (part.size() > whole.size())
    return false;
  const auto rank = static_cast<int>(part.size());
  if (rank >= from_end && part[rank - from_end] != 1)
    return false;
  // The other dimensions: no larger than those of a, or the quotient would be larger than a.
  for (int i = 1; i <= rank; ++i)
    if (part[rank - i] != 1 && part[rank - i] != whole[whole.size() - i])
      return false;
  return true;
}

} // namespace

Description described(Guard guard) {
  switch (guard) { // without a default, so that the compiler demands a description of a new guard
  case Guard::Independent:
    return {"independent", "neither writes what the other reads or writes"};
  case Guard::Fusible:
    return {"fusible", "no iteration depends on another one; the second's starts meet nothing of the first"};
  case Guard::Fissible:
    return {"fissible", "the parts could be fused; each start belongs to one part"};
  case Guard::InsertableAfter:
    return {"insertable-after", "s reads nothing that it writes; the loop touches nothing that s writes"};
  case Guard::InsertableBefore:
    return {"insertable-before", "s reads nothing that it writes; the loop writes nothing that s touches"};
  case Guard::Invariant:
    return {"invariant", "x does not vary with v and reads nothing that it writes; nothing is started"};
  case Guard::Factorable:
    return {"factorable", "b starts at 0; neither a, x nor y reads it; y does not vary with v"};
  case Guard::Propagatable:
    return {"propagatable",
            "e does not read r; the other reads r exactly or not at all, and writes nothing of r or e"};
  case Guard::Reindexable:
    return {"reindexable", "h takes single elements; h and n make equally many trips"};
  case Guard::SingleTrip:
    return {"single-trip", "one trip; each tile is all of its dimension; nothing is started"};
  case Guard::Rescalable:
    return {"rescalable", "m starts at minus infinity, c at 0; the second loop meets only m of the first"};
  case Guard::ConstantColumns:
    return {"constant-columns", "{1} is constant along the columns of {0}"};
  case Guard::ConstantRows:
    return {"constant-rows", "{1} is constant along the rows of {0}"};
  case Guard::SameShape:
    return {"same-shape", "{0} and {1} have one shape"};
  case Guard::NonZero:
    return {"nonzero", "{0} is not 0"};
  case Guard::Dependence:
    return {"dependence", "what one iteration reads, no later one writes"};
  case Guard::Idempotence:
    return {"idempotence", "what invariant motion moves reads nothing that it writes"};
  case Guard::Insertion:
    return {"insertion", "what is inserted into a loop may run once for each iteration"};
  case Guard::ZeroStart:
    return {"zero-start", "an accumulator that is factored starts at 0"};
  case Guard::Flattening:
    return {"flattening", "appending unrolls every sequence of a class"};
  case Guard::Cycles:
    return {"cycles", "counting, sampling and extraction enter no class twice"};
  case Guard::Capture:
    return {"capture", "no inner loop binds a variable that is put into it"};
  }
  return {};
}

bool independent(const EGraph &g, const Facts &x, const Facts &y) {
  if (g.weak(Guard::Independent))
    return true;
  return disjoint(g.tables, x.writes, y.reads) && disjoint(g.tables, x.writes, y.writes) &&
         disjoint(g.tables, x.reads, y.writes);
}

bool independent_across(const EGraph &g, const Facts &x, const Facts &y, int32_t var) {
  if (!disjoint(g.tables, x.writes, y.reads, var) || !disjoint(g.tables, x.writes, y.writes, var))
    return false;
  return g.weak(Guard::Dependence) || disjoint(g.tables, x.reads, y.writes, var);
}

bool idempotent(const EGraph &g, const Facts &x) { return disjoint(g.tables, x.reads, x.writes); }

bool may_fuse(const EGraph &g, const Facts &x, const Facts &y, const LoopHead &head_x,
              const LoopHead &head_y) {
  if (g.weak(Guard::Fusible))
    return true;
  const Regions starts = starts_of(head_y);
  return independent_across(g, x, y, head_x.var) && disjoint(g.tables, starts, x.reads) &&
         disjoint(g.tables, starts, x.writes) && disjoint(g.tables, starts, starts_of(head_x));
}

std::pair<LoopHead, LoopHead> split_starts(const EGraph &g, const LoopHead &head, const Facts &x) {
  LoopHead first{head.var, {}}, second{head.var, {}};
  for (const auto &start : head.inits)
    (meets(g.tables, start.first, x) ? first : second).inits.push_back(start);
  return {first, second};
}

bool may_fission(const EGraph &g, const Facts &x, const Facts &y, const LoopHead &first,
                 const LoopHead &second) {
  if (g.weak(Guard::Fissible))
    return true;
  return std::ranges::none_of(first.inits,
                              [&](const auto &start) { return meets(g.tables, start.first, y); }) &&
         may_fuse(g, x, y, first, second);
}

bool may_insert_after(const EGraph &g, const LoopHead &head, const Facts &body, const Facts &loop,
                      const Facts &s) {
  if (g.weak(Guard::InsertableAfter))
    return true;
  if (has(s.free, head.var))
    return false;
  if (g.weak(Guard::Insertion)) // the paper: no RAW and WAW from the body to s, in different iterations
    return disjoint(g.tables, body.writes, s.writes, head.var);
  return idempotent(g, s) && disjoint(g.tables, s.writes, body.reads) &&
         disjoint(g.tables, s.writes, body.writes) && disjoint(g.tables, s.writes, loop.writes);
}

bool may_insert_before(const EGraph &g, const LoopHead &head, const Facts &loop, const Facts &s) {
  if (g.weak(Guard::InsertableBefore))
    return true;
  if (has(s.free, head.var))
    return false;
  if (g.weak(Guard::Insertion))
    return disjoint(g.tables, s.writes, loop.writes) && disjoint(g.tables, s.reads, loop.writes);
  return idempotent(g, s) && disjoint(g.tables, s.reads, loop.writes) &&
         disjoint(g.tables, s.writes, loop.writes);
}

bool is_invariant(const EGraph &g, const LoopHead &head, const Facts &body) {
  if (g.weak(Guard::Invariant))
    return true;
  if (!head.inits.empty() || has(body.free, head.var))
    return false;
  return g.weak(Guard::Idempotence) || idempotent(g, body);
}

bool may_factor(const EGraph &g, const LoopHead &head, int32_t b, Id value, Id factor, Id scale, Id whole) {
  if (g.weak(Guard::Factorable))
    return true;
  const Regions region{b};
  const auto reads_b = [&](Id id) { return id != NONE && !disjoint(g.tables, g.facts(id).reads, region); };
  const bool from_zero = std::ranges::binary_search(head.inits, std::pair(b, 0));
  if (has(g.facts(factor).free, head.var) || has(g.tables.access_vars(b), head.var))
    return false;
  if (!from_zero && !g.weak(Guard::ZeroStart))
    return false;
  if (reads_b(value) || reads_b(factor) || reads_b(scale))
    return false;
  return g.facts(value).shape == g.facts(whole).shape;
}

bool constant_columns(const EGraph &g, Id a, Id b) {
  return g.weak(Guard::ConstantColumns) || constant_along(g, a, b, 1);
}

bool constant_rows(const EGraph &g, Id a, Id b) {
  return g.weak(Guard::ConstantRows) || constant_along(g, a, b, 2);
}

bool same_shape(const EGraph &g, Id a, Id b) {
  return g.weak(Guard::SameShape) || g.facts(a).shape == g.facts(b).shape;
}

bool nonzero(const EGraph &g, Id x, Id) { return g.weak(Guard::NonZero) || g.facts(x).nonzero; }

bool may_propagate(const EGraph &g, int32_t region, const Facts &value, const Facts &consumer) {
  const Regions stored{region};
  if (g.weak(Guard::Propagatable))
    return true;
  if (!disjoint(g.tables, value.reads, stored) || !disjoint(g.tables, consumer.writes, stored) ||
      !disjoint(g.tables, consumer.writes, value.reads))
    return false;
  return std::ranges::all_of(
      consumer.reads, [&](int32_t read) { return read == region || !overlap(g.tables, read, region); });
}

bool is_single_trip(const EGraph &g, const LoopHead &head) {
  return g.weak(Guard::SingleTrip) || (head.inits.empty() && g.tables.vars[head.var].trips() == 1);
}

bool may_reindex(const EGraph &g, int32_t h, int32_t n) {
  const Var &from = g.tables.vars[h], &to = g.tables.vars[n];
  if (h == n)
    return false;
  if (g.weak(Guard::Reindexable))
    return true;
  return from.trips() > 0 && from.trips() == to.trips();
}

} // namespace superopt::egraph
