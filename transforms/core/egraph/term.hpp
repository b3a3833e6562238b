// Terms of a class: their number, a random one, the smallest, and how to write one.
#pragma once

#include "egraph/egraph.hpp"
#include "egraph/rules.hpp"

#include <stdexcept>
#include <unordered_map>

namespace superopt::egraph {

using Term =
    std::vector<Node>; // children are positions in the vector, before their parent; the last is the root

// Number of terms; a lower bound where classes are cyclic, as terms that pass through a class twice are not
// counted.
double count_programs(const EGraph &g, Id root);

// A random term, uniform over nodes at each choice; the smallest one below `depth` choices.
Term sample(const EGraph &g, Id root, uint64_t seed, int depth = 400);

Term smallest_term(const EGraph &g, Id root);

// Writes a term: children first, equal subterms once.
class Writer {
public:
  Id put(Node node) {
    const auto [it, fresh] = index_.try_emplace(node, static_cast<Id>(term_.size()));
    if (fresh)
      term_.push_back(node);
    return it->second;
  }
  // The written term; `root`, written last, is its root.
  Term done(Id root) {
    if (root + 1 != term_.size())
      throw std::logic_error("a root stands last");
    return std::move(term_);
  }

private:
  Term term_;
  std::unordered_map<Node, Id, NodeHash> index_;
};

inline uint64_t mixed(uint64_t h, uint64_t x) {
  h ^= x + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
  h *= 0xBF58476D1CE4E5B9ull;
  return h ^ (h >> 31);
}

} // namespace superopt::egraph
