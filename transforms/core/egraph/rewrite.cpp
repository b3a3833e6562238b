#include "egraph/rules.hpp"

#include <algorithm>
#include <limits>

namespace superopt::egraph {

namespace {
constexpr uint32_t INFINITE = std::numeric_limits<uint32_t>::max() / 4;
} // namespace

Smallest::Smallest(const EGraph &g) : g_(g) {
  const std::vector<Id> roots = g.roots();
  const size_t n = roots.empty() ? 0 : roots.back() + 1;
  best_.assign(n, NONE);
  size_.assign(n, INFINITE);
  // Shrinks to the fixpoint; a class has a size once all children of one of its nodes do.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Id id : roots) {
      for (const Id number : g.at(id).nodes) {
        const Node &node = g.node(number);
        uint64_t size = 1;
        for (const Id child : {node.a, node.b})
          if (child != NONE)
            size += size_[g.find(child)];
        if (size < size_[id])
          size_[id] = static_cast<uint32_t>(size), best_[id] = number, changed = true;
      }
    }
  }
}

Id Smallest::node(Id id) const {
  id = g_.find(id);
  return id < best_.size() ? best_[id] : NONE;
}

uint32_t Smallest::size(Id id) const {
  id = g_.find(id);
  return id < size_.size() ? size_[id] : INFINITE;
}

namespace {

// Rebuilds the smallest term bottom-up; `leaf` may replace a node, or veto by returning false.
template <class Enter, class Leaf> class Rebuild {
public:
  Rebuild(EGraph &g, const Smallest &smallest, Enter enter, Leaf leaf)
      : g_(g), smallest_(smallest), enter_(enter), leaf_(leaf) {}

  Id operator()(Id id) {
    id = g_.find(id);
    if (const auto it = done_.find(id); it != done_.end())
      return it->second;
    const Id number = smallest_.node(id);
    Id out = NONE;
    if (number != NONE) {
      Node node = g_.node(number);
      bool fine = enter_(node);
      if (fine && leaf_(node, out)) {
        // replaced
      } else if (fine) {
        for (Id *child : {&node.a, &node.b}) {
          if (*child != NONE) {
            *child = (*this)(*child);
            fine = fine && *child != NONE;
          }
        }
        out = fine ? g_.add(node) : NONE;
      }
    }
    return done_[id] = out;
  }

private:
  EGraph &g_;
  const Smallest &smallest_;
  Enter enter_;
  Leaf leaf_;
  std::unordered_map<Id, Id> done_;
};

} // namespace

namespace {

// The smallest term of `id` with other regions: `move` changes the dimensions of one, or refuses. A loop over
// one of `own` refuses the whole term.
template <class Move>
Id with_regions(EGraph &g, const Smallest &smallest, Id id, std::initializer_list<int32_t> own, Move move) {
  Tables &t = g.tables;
  const auto moved = [&](int32_t access) -> std::optional<int32_t> {
    Access out = t.accesses[access];
    for (size_t d = 0; d < out.dims.size(); ++d)
      if (!move(out, d))
        return std::nullopt;
    return t.accesses(out);
  };
  const auto enter = [&](Node &node) {
    if (node.op == Op::Loop) {
      LoopHead head = t.loops[node.payload];
      if (std::ranges::find(own, head.var) != own.end() && !g.weak(Guard::Capture))
        return false;
      for (auto &[access, kind] : head.inits) {
        const auto to = moved(access);
        if (!to)
          return false;
        access = *to;
      }
      std::ranges::sort(head.inits);
      node.payload = t.loops(head);
    } else if (node.op == Op::Load || node.op == Op::Store) {
      const auto to = moved(node.payload);
      if (!to)
        return false;
      node.payload = *to;
    }
    return true;
  };
  const auto leaf = [](Node &, Id &) { return false; };
  return Rebuild(g, smallest, enter, leaf)(id);
}

} // namespace

Id reindexed(EGraph &g, const Smallest &smallest, Id id, int32_t h, int32_t n) {
  return with_regions(g, smallest, id, {h, n}, [&](Access &access, size_t d) {
    DimIndex &dim = access.dims[d];
    if (dim.kind != DimIndex::Elem && dim.kind != DimIndex::Tile)
      return true;
    if (dim.a == n && !g.weak(Guard::Capture))
      return false; // n is free in the body, so h and n would be confused
    if (dim.a == h && dim.kind == DimIndex::Tile && !g.weak(Guard::Reindexable))
      return false; // a tile at n is wider than one at h
    if (dim.a == h)
      dim.a = n;
    return true;
  });
}

Id untiled(EGraph &g, const Smallest &smallest, Id id, int32_t v) {
  return with_regions(g, smallest, id, {v}, [&](Access &access, size_t d) {
    DimIndex &dim = access.dims[d];
    if ((dim.kind != DimIndex::Elem && dim.kind != DimIndex::Tile) || dim.a != v)
      return true;
    const bool whole = dim.kind == DimIndex::Tile && dim.b == 0 &&
                       g.tables.vars[v].step == g.tables.tensors[access.tensor].shape[d];
    if (!whole && !g.weak(Guard::SingleTrip))
      return false;
    dim = {};
    return true;
  });
}

Id propagated(EGraph &g, const Smallest &smallest, Id id, int32_t region, Id value) {
  Tables &t = g.tables;
  const Bits taken = g.facts(value).free | t.access_vars(region);
  const auto enter = [&](Node &node) {
    return node.op != Op::Loop || g.weak(Guard::Capture) || !(taken >> t.loops[node.payload].var & 1);
  };
  const auto leaf = [&](Node &node, Id &out) {
    if (node.op != Op::Load || node.payload != region)
      return false;
    out = value;
    return true;
  };
  return Rebuild(g, smallest, enter, leaf)(id);
}

} // namespace superopt::egraph
