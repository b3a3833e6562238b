#include "egraph/term.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace superopt::egraph {

namespace {

constexpr int DEEP = 10'000; // deeper than any term; only a cycle nests this deeply

Id write_smallest(const EGraph &g, const Smallest &smallest, Writer &out, Id id) {
  Node node = g.node(smallest.node(id));
  for (Id *child : {&node.a, &node.b})
    if (*child != NONE)
      *child = write_smallest(g, smallest, out, *child);
  return out.put(node);
}

} // namespace

double count_programs(const EGraph &g, Id root) {
  std::unordered_map<Id, double> done;
  std::set<Id> open;
  int depth = 0;
  const auto count = [&](const auto &self, Id id) -> double {
    id = g.find(id);
    if (const auto it = done.find(id); it != done.end())
      return it->second;
    if (!g.weak(Guard::Cycles) && !open.insert(id).second)
      return 0;
    if (++depth > DEEP)
      throw std::runtime_error("expected a finite term, got a cycle of classes");
    double total = 0;
    for (const Id number : g.at(id).nodes) {
      const Node &n = g.node(number);
      double product = 1;
      for (const Id child : {n.a, n.b})
        if (child != NONE)
          product *= self(self, child);
      total += product;
    }
    --depth;
    open.erase(id);
    return done[id] = total;
  };
  return count(count, root);
}

Term smallest_term(const EGraph &g, Id root) {
  Writer out;
  const Id id = write_smallest(g, Smallest(g), out, root);
  return out.done(id);
}

Term sample(const EGraph &g, Id root, uint64_t seed, int depth) {
  const Smallest smallest(g);
  uint64_t state = mixed(0x5EED, seed); // streams of neighbouring seeds are unrelated
  const auto random = [&](size_t n) {
    state += 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(mixed(0, state) % n);
  };
  std::set<Id> open;
  Writer out;
  const auto choose = [&](const auto &self, Id id, int left) -> Id {
    id = g.find(id);
    std::vector<Id> usable;
    for (const Id number : g.at(id).nodes) {
      const Node &n = g.node(number);
      bool fine = true;
      for (const Id child : {n.a, n.b})
        fine = fine && (child == NONE || (g.find(child) != id && !open.contains(g.find(child)) &&
                                          smallest.node(child) != NONE));
      if (fine || g.weak(Guard::Cycles))
        usable.push_back(number);
    }
    if (g.weak(Guard::Cycles) && left < -DEEP)
      throw std::runtime_error("expected a finite term, got a cycle of classes");
    if (usable.empty() || (left <= 0 && !g.weak(Guard::Cycles)))
      return write_smallest(g, smallest, out, id);
    Node node = g.node(usable[random(usable.size())]);
    open.insert(id);
    for (Id *child : {&node.a, &node.b})
      if (*child != NONE)
        *child = self(self, *child, left - 1);
    open.erase(id);
    return out.put(node);
  };
  const Id id = choose(choose, root, depth);
  return out.done(id);
}

} // namespace superopt::egraph
