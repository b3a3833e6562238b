// The rules on statements: each takes classes apart, checks its guard, and builds the other side.
#include "egraph/rules.hpp"

#include <algorithm>
#include <set>

namespace superopt::egraph {

namespace {

std::vector<Node> nodes_of(const EGraph &g, Id id, Op op) {
  std::vector<Node> out;
  for (const Id number : g.at(id).nodes)
    if (g.node(number).op == op)
      out.push_back(g.node(number));
  return out;
}

Id loop(EGraph &g, const LoopHead &head, Id body) { return g.add(Op::Loop, g.tables.loops(head), body); }

LoopHead joined(const LoopHead &x, const LoopHead &y) {
  LoopHead out = x;
  out.inits.insert(out.inits.end(), y.inits.begin(), y.inits.end());
  std::ranges::sort(out.inits);
  return out;
}

void keep(Sequences &out, std::vector<Id> sequence) {
  if (std::ranges::none_of(sequence, [](Id id) { return id == NONE; }))
    out.push_back(std::move(sequence));
}

template <class Test> bool guarded(RuleCount &count, const Test &test) {
  ++count.matched;
  const bool fine = test();
  count.refused += !fine;
  return fine;
}

} // namespace

// Sequences move statement by statement.
Sequences commute(Site site, Id x, Id y) {
  auto &[g, smallest, count] = site;
  if (g.find(x) == g.find(y) || !g.has_plain(x) || !g.has_plain(y) ||
      !guarded(count, [&] { return independent(g, g.facts(x), g.facts(y)); }))
    return {};
  return {{y, x}};
}

Sequences fuse(Site site, Id x, Id y) {
  auto &[g, smallest, count] = site;
  Sequences out;
  for (const Node &p : nodes_of(g, x, Op::Loop)) {
    for (const Node &q : nodes_of(g, y, Op::Loop)) {
      const LoopHead first = g.tables.loops[p.payload], second = g.tables.loops[q.payload];
      if (first.var != second.var)
        continue;
      if (guarded(count, [&] { return may_fuse(g, g.facts(p.a), g.facts(q.a), first, second); }))
        keep(out, {loop(g, joined(first, second), g.append(p.a, q.a))});
    }
  }
  return out;
}

Sequences insert_after(Site site, Id x, Id s) {
  auto &[g, smallest, count] = site;
  Sequences out;
  for (const Node &p : nodes_of(g, x, Op::Loop)) {
    const LoopHead head = g.tables.loops[p.payload];
    if (!g.tables.vars[head.var].grid || g.facts(s).bound >> head.var & 1)
      continue; // fusion is for loops over the same variable
    if (guarded(count, [&] { return may_insert_after(g, head, g.facts(p.a), g.facts(x), g.facts(s)); }))
      keep(out, {loop(g, head, g.append(p.a, s))});
  }
  return out;
}

Sequences insert_before(Site site, Id s, Id y) {
  auto &[g, smallest, count] = site;
  Sequences out;
  for (const Node &q : nodes_of(g, y, Op::Loop)) {
    const LoopHead head = g.tables.loops[q.payload];
    if (!g.tables.vars[head.var].grid || g.facts(s).bound >> head.var & 1)
      continue;
    if (guarded(count, [&] { return may_insert_before(g, head, g.facts(y), g.facts(s)); }))
      keep(out, {loop(g, head, g.append(s, q.a))});
  }
  return out;
}

namespace {

// (for v: .. r = e) then (for v: ..r..): descends through fusible loops to the store and its consumer.
Id propagate_into(Site site, Id producer, Id consumer, int depth) {
  auto &[g, smallest, count] = site;
  if (depth > 4)
    return NONE;
  for (const Node &p : nodes_of(g, producer, Op::Store)) {
    const Regions stored{p.payload};
    const bool reads = std::ranges::binary_search(g.facts(consumer).reads, p.payload);
    if (!reads && !g.weak(Guard::Propagatable))
      continue;
    if (!guarded(count, [&] { return may_propagate(g, p.payload, g.facts(p.a), g.facts(consumer)); }))
      continue;
    const Id out = propagated(g, smallest, consumer, p.payload, p.a);
    if (out != NONE && g.find(out) != g.find(consumer))
      return out;
    count.refused += out == NONE;
  }
  for (const Node &p : nodes_of(g, producer, Op::Loop)) {
    for (const Node &q : nodes_of(g, consumer, Op::Loop)) {
      const LoopHead first = g.tables.loops[p.payload], second = g.tables.loops[q.payload];
      if (first.var != second.var || !may_fuse(g, g.facts(p.a), g.facts(q.a), first, second))
        continue;
      if (const Id body = propagate_into(site, p.a, q.a, depth + 1); body != NONE)
        return loop(g, second, body);
    }
  }
  return NONE;
}

Sequences propagate(Site site, Id x, Id y, bool from_store) {
  if (nodes_of(site.g, x, Op::Store).empty() == from_store)
    return {};
  Sequences out;
  keep(out, {x, propagate_into(site, x, y, 0)});
  return out;
}

} // namespace

Sequences propagate_store(Site site, Id x, Id y) { return propagate(site, x, y, true); }

Sequences propagate_through_loops(Site site, Id x, Id y) { return propagate(site, x, y, false); }

// --- online rescaling -------------------------------------------------------------------------------------

namespace {

// Rewrites a value that is proportional to exp(-m) so that it uses `next` in place of m; NONE if it is not.
class Rescale {
public:
  Rescale(EGraph &g, Id m, int32_t region, Id next) : g_(g), m_(g.find(m)), region_(region), next_(next) {}

  Id operator()(Id id) {
    id = g_.find(id);
    if (const auto it = done_.find(id); it != done_.end())
      return it->second;
    done_[id] = NONE; // while open: a class may contain itself
    Id out = NONE;
    const std::vector<Id> members = g_.at(id).nodes;
    for (const Id number : members)
      if (out = node(g_.node(number)); out != NONE)
        break;
    return done_[id] = out;
  }

private:
  EGraph &g_;
  Id m_;
  int32_t region_;
  Id next_;
  std::unordered_map<Id, Id> done_;

  bool free_of_m(Id id) const {
    return std::ranges::none_of(g_.facts(id).reads,
                                [&](int32_t r) { return overlap(g_.tables, r, region_); });
  }
  bool constant_in(int from_end) const {
    const Shape &shape = g_.tables.shapes[g_.facts(m_).shape];
    const auto rank = static_cast<int>(shape.size());
    return rank < from_end || shape[rank - from_end] == 1;
  }
  Id node(const Node &n) {
    switch (n.op) {
    case Op::Exp:
      for (const Node &difference : nodes_of(g_, n.a, Op::Sub))
        if (g_.find(difference.b) == m_ && free_of_m(difference.a))
          return g_.add(Op::Exp, 0, g_.add(Op::Sub, 0, difference.a, next_));
      return NONE;
    case Op::Mul:
      if (free_of_m(n.b))
        return g_.add(n.op, 0, (*this)(n.a), n.b);
      return free_of_m(n.a) ? g_.add(n.op, 0, n.a, (*this)(n.b)) : NONE;
    case Op::Div:
      return free_of_m(n.b) ? g_.add(n.op, 0, (*this)(n.a), n.b) : NONE;
    case Op::Add:
    case Op::Sub:
      return g_.add(n.op, 0, (*this)(n.a), (*this)(n.b));
    case Op::Sum:
      for (const int32_t d : g_.tables.lists[n.payload])
        if (!constant_in(-d))
          return NONE;
      return g_.add(n.op, n.payload, (*this)(n.a));
    case Op::Matmul:
      return free_of_m(n.b) && constant_in(1) ? g_.add(n.op, 0, (*this)(n.a), n.b) : NONE;
    default:
      return NONE;
    }
  }
};

// A body split into its last statement `m = max(m, r)` and what comes before.
struct Running {
  Id before = NONE; // NONE: nothing
  Node store;
  Id r = NONE;
  Id load = NONE;
};

std::optional<Running> running_maximum(const EGraph &g, const Node &store) {
  for (const Node &larger : nodes_of(g, store.a, Op::Max))
    for (const Node &load : nodes_of(g, larger.a, Op::Load))
      if (load.payload == store.payload)
        return Running{NONE, store, larger.b, larger.a};
  return std::nullopt;
}

std::optional<Running> ends_in_maximum(EGraph &g, Id body, std::set<Id> &open) {
  body = g.find(body);
  if (!open.insert(body).second)
    return std::nullopt;
  for (const Node &store : nodes_of(g, body, Op::Store))
    if (auto found = running_maximum(g, store))
      return found;
  for (const Node &seq : nodes_of(g, body, Op::Seq)) {
    if (auto found = ends_in_maximum(g, seq.b, open)) {
      found->before = found->before == NONE ? seq.a : g.append(seq.a, found->before);
      return found;
    }
  }
  return std::nullopt;
}

// The accumulation may touch nothing of the first loop but the running maximum, and the maximum must touch
// nothing of the accumulation.
bool may_rescale(const EGraph &g, const LoopHead &first, const LoopHead &second, const Running &running,
                 const Facts &body, const Node &sum) {
  if (g.weak(Guard::Rescalable))
    return true;
  const int32_t m = running.store.payload, c = sum.payload;
  const Tables &t = g.tables;
  const Facts &value = g.facts(sum.a);
  if (!std::ranges::binary_search(first.inits, std::pair(m, 1)) || second.inits.size() != 1 ||
      second.inits[0] != std::pair(c, 0) || t.access_vars(m) >> first.var & 1 ||
      t.access_vars(c) >> first.var & 1)
    return false;
  const auto meets = [&](const Regions &regions, int32_t region) {
    return std::ranges::any_of(regions, [&](int32_t r) { return overlap(t, r, region); });
  };
  if (meets(body.reads, c) || meets(body.writes, c) || meets(g.facts(running.r).reads, c) ||
      meets(g.facts(running.r).reads, m))
    return false;
  for (const auto &[access, kind] : first.inits)
    if (overlap(t, access, c))
      return false;
  Facts without = value; // replacement affects exactly the reads of m itself
  std::erase(without.reads, m);
  std::erase(without.reads, c);
  without.writes = {c};
  if (meets(without.reads, m) || meets(without.reads, c))
    return false;
  return independent_across(g, body, without, first.var);
}

} // namespace

Sequences rescale(Site site, Id x, Id y) {
  auto &[g, smallest, count] = site;
  Sequences out;
  for (const Node &p : nodes_of(g, x, Op::Loop)) {
    const LoopHead first = g.tables.loops[p.payload];
    if (std::ranges::none_of(first.inits, [](const auto &init) { return init.second == 1; }))
      continue;
    for (const Node &q : nodes_of(g, y, Op::Loop)) {
      const LoopHead second = g.tables.loops[q.payload];
      if (first.var != second.var || second.inits.empty())
        continue;
      std::set<Id> open;
      const auto running = ends_in_maximum(g, p.a, open);
      if (!running)
        continue;
      const int32_t m = running->store.payload;
      for (const Node &sum : nodes_of(g, q.a, Op::Store)) {
        for (const Node &plus : nodes_of(g, sum.a, Op::Add)) {
          const bool own = std::ranges::any_of(nodes_of(g, plus.a, Op::Load),
                                               [&](const Node &l) { return l.payload == sum.payload; });
          if (!own || std::ranges::none_of(g.facts(plus.b).reads, [&](int32_t r) { return r == m; }))
            continue;
          if (!guarded(count, [&] { return may_rescale(g, first, second, *running, g.facts(p.a), sum); }))
            continue;
          const Id next = g.add(Op::Max, 0, running->load, running->r);
          const Id part = Rescale(g, running->load, m, next)(plus.b);
          const Id scale = g.add(Op::Exp, 0, g.add(Op::Sub, 0, running->load, next));
          const Id scaled = g.add(Op::Mul, 0, plus.a, scale);
          const Id total = part == NONE || scaled == NONE ? NONE : g.add(Op::Add, 0, scaled, part);
          if (total == NONE || g.facts(total).shape != g.facts(sum.a).shape) {
            ++count.refused;
            continue;
          }
          const Id update = g.add(Op::Store, sum.payload, total), step = g.add(Op::Store, m, next);
          Id body = g.add(Op::Seq, 0, update, step);
          if (running->before != NONE)
            body = g.append(running->before, body);
          keep(out, {loop(g, joined(first, second), body)});
        }
      }
    }
  }
  return out;
}

// --- rules on one statement -------------------------------------------------------------------------------

Sequences fission(Site site, const Node &node) {
  auto &[g, smallest, count] = site;
  Sequences out;
  const LoopHead head = g.tables.loops[node.payload];
  for (const Node &body : nodes_of(g, node.a, Op::Seq)) {
    const Facts &x = g.facts(body.a), &y = g.facts(body.b);
    const auto [first, second] = split_starts(g, head, x);
    if (guarded(count, [&, &first = first, &second = second] { return may_fission(g, x, y, first, second); }))
      keep(out, {loop(g, first, body.a), loop(g, second, body.b)});
  }
  return out;
}

Sequences hoist_invariant(Site site, const Node &node) {
  auto &[g, smallest, count] = site;
  const LoopHead head = g.tables.loops[node.payload];
  if (!guarded(count, [&] { return is_invariant(g, head, g.facts(node.a)); }))
    return {};
  return {{node.a}};
}

namespace {

// for v: b = b * scale + value op factor
Sequences factor(Site site, const Node &node, Op op) {
  auto &[g, smallest, count] = site;
  Sequences out;
  const LoopHead head = g.tables.loops[node.payload];
  for (const Node &store : nodes_of(g, node.a, Op::Store)) {
    const int32_t b = store.payload;
    const auto is_b = [&](Id id) {
      return std::ranges::any_of(nodes_of(g, id, Op::Load), [&](const Node &l) { return l.payload == b; });
    };
    for (const Node &sum : nodes_of(g, store.a, Op::Add)) {
      Id scale = NONE;
      bool accumulates = is_b(sum.a);
      for (const Node &scaled : nodes_of(g, sum.a, Op::Mul))
        if (!accumulates && is_b(scaled.a))
          accumulates = true, scale = scaled.b;
      if (!accumulates)
        continue;
      for (const Node &part : nodes_of(g, sum.b, op)) {
        if (!guarded(count, [&] { return may_factor(g, head, b, part.a, part.b, scale, sum.b); }))
          continue;
        const Id inner = g.add(Op::Store, b, g.add(Op::Add, 0, sum.a, part.a));
        const Id load = g.add(Op::Load, b);
        const Id after = g.add(Op::Store, b, g.add(op, 0, load, part.b));
        if (inner == NONE || after == NONE) {
          ++count.refused;
          continue;
        }
        keep(out, {loop(g, head, inner), after});
      }
    }
  }
  return out;
}

} // namespace

Sequences factor_quotient(Site site, const Node &node) { return factor(site, node, Op::Div); }

Sequences factor_product(Site site, const Node &node) { return factor(site, node, Op::Mul); }

Sequences reindex(Site site, const Node &node) {
  auto &[g, smallest, count] = site;
  Sequences out;
  const LoopHead head = g.tables.loops[node.payload];
  if (!head.inits.empty())
    return out;
  const auto vars = static_cast<int32_t>(g.tables.vars.size());
  for (int32_t n = 0; n < vars; ++n) {
    // One way only, from single elements to the tiles they came from, or both forms would be kept.
    if (n == head.var || g.tables.vars[head.var].step != 1 || g.tables.vars[n].step <= 1)
      continue;
    Id body = NONE;
    if (guarded(count, [&] {
          body = may_reindex(g, head.var, n) ? reindexed(g, smallest, node.a, head.var, n) : NONE;
          return body != NONE;
        }))
      keep(out, {loop(g, {n, {}}, body)});
  }
  return out;
}

Sequences open_single_trip(Site site, const Node &node) {
  auto &[g, smallest, count] = site;
  const LoopHead head = g.tables.loops[node.payload];
  Id body = NONE;
  if (!guarded(count, [&] {
        body = is_single_trip(g, head) ? untiled(g, smallest, node.a, head.var) : NONE;
        return body != NONE;
      }))
    return {};
  return {{body}};
}

} // namespace superopt::egraph
