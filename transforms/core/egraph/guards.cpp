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

bool has(Bits bits, int32_t var) { return bits >> var & 1; }

} // namespace

bool independent(const EGraph &g, const Facts &x, const Facts &y) {
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
  const Regions starts = starts_of(head_y);
  return independent_across(g, x, y, head_x.var) && disjoint(g.tables, starts, x.reads) &&
         disjoint(g.tables, starts, x.writes) && disjoint(g.tables, starts, starts_of(head_x));
}

std::optional<std::pair<LoopHead, LoopHead>> may_fission(const EGraph &g, const LoopHead &head,
                                                         const Facts &x, const Facts &y) {
  LoopHead first{head.var, {}}, second{head.var, {}};
  for (const auto &start : head.inits) {
    const Regions region{start.first};
    const bool in_x = !disjoint(g.tables, region, x.reads) || !disjoint(g.tables, region, x.writes);
    const bool in_y = !disjoint(g.tables, region, y.reads) || !disjoint(g.tables, region, y.writes);
    if (in_x && in_y)
      return std::nullopt;
    (in_x ? first : second).inits.push_back(start);
  }
  if (!may_fuse(g, x, y, first, second))
    return std::nullopt;
  return std::pair(first, second);
}

bool may_insert_after(const EGraph &g, const LoopHead &head, const Facts &body, const Facts &loop,
                      const Facts &s) {
  if (has(s.free, head.var))
    return false;
  if (g.weak(Guard::Insertion)) // the paper: no RAW and WAW from the body to s, in different iterations
    return disjoint(g.tables, body.writes, s.writes, head.var);
  return idempotent(g, s) && disjoint(g.tables, s.writes, body.reads) &&
         disjoint(g.tables, s.writes, body.writes) && disjoint(g.tables, s.writes, loop.writes);
}

bool may_insert_before(const EGraph &g, const LoopHead &head, const Facts &loop, const Facts &s) {
  if (has(s.free, head.var))
    return false;
  if (g.weak(Guard::Insertion))
    return disjoint(g.tables, s.writes, loop.writes) && disjoint(g.tables, s.reads, loop.writes);
  return idempotent(g, s) && disjoint(g.tables, s.reads, loop.writes) &&
         disjoint(g.tables, s.writes, loop.writes);
}

bool is_invariant(const EGraph &g, const LoopHead &head, const Facts &body) {
  if (!head.inits.empty() || has(body.free, head.var))
    return false;
  return g.weak(Guard::Idempotence) || idempotent(g, body);
}

bool may_factor(const EGraph &g, const LoopHead &head, int32_t b, Id value, Id factor, Id scale, Id whole) {
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

bool constant_along(const EGraph &g, Id a, Id b, int from_end) {
  if (g.weak(Guard::DivisionAxis))
    return true;
  const Shape &whole = g.tables.shapes[g.facts(a).shape], &part = g.tables.shapes[g.facts(b).shape];
  if (part.size() > whole.size())
    return false;
  const auto rank = static_cast<int>(part.size());
  if (rank >= from_end && part[rank - from_end] != 1)
    return false;
  // The other dimensions: at most those of a, or the quotient would be larger than a.
  for (int i = 1; i <= rank; ++i)
    if (part[rank - i] != 1 && part[rank - i] != whole[whole.size() - i])
      return false;
  return true;
}

bool may_propagate(const EGraph &g, int32_t region, const Facts &value, const Facts &consumer) {
  const Regions stored{region};
  if (g.weak(Guard::Propagation))
    return true;
  if (!disjoint(g.tables, value.reads, stored) || !disjoint(g.tables, consumer.writes, stored) ||
      !disjoint(g.tables, consumer.writes, value.reads))
    return false;
  return std::ranges::all_of(
      consumer.reads, [&](int32_t read) { return read == region || !overlap(g.tables, read, region); });
}

bool is_single_trip(const EGraph &g, const LoopHead &head) {
  return head.inits.empty() && g.tables.vars[head.var].trips() == 1;
}

bool may_reindex(const EGraph &g, int32_t h, int32_t n) {
  const Var &from = g.tables.vars[h], &to = g.tables.vars[n];
  if (h == n)
    return false;
  if (g.weak(Guard::Reindexing))
    return true;
  return from.trips() > 0 && from.trips() == to.trips();
}

} // namespace superopt::egraph
