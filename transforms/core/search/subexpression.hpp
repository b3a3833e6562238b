// The abstract subexpression test: can a value with this expression contribute to the target?
#pragma once

#include "search/expression.hpp"

#include <map>
#include <set>
#include <utility>

namespace superopt::search {

// E is an abstract subexpression of T exactly when some monomial r makes E * r a sub-multiset of T, or E is a
// subexpression of an argument of a function, or of a denominator, that occurs in T (docs/search.md).
// `Targets` collects T and those arguments and denominators once, as roots, each with the factors that may be
// free there.
//
// The axis-aware test also requires that the free factors of E, and those of r's atoms and denominator, be
// summed in r or free in the root: nothing else could bind them later.
class Targets {
public:
  explicit Targets(Expressions &expressions) : expressions_(expressions) {}

  // Add an output with this expression and exactly these free factors.
  void add(FormId form, Mask free);

  // Whether a value with expression `form` and free factors `free` may be part of a target.
  bool reachable(FormId form, Mask free, bool axis_test);

  std::uint64_t queries = 0, misses = 0; // all queries, and those not answered from the cache

private:
  bool matches(FormId form, Mask free, FormId root, Mask root_free, bool axis_test);

  Expressions &expressions_;
  std::set<std::pair<FormId, Mask>> roots_;
  std::map<std::pair<FormId, Mask>, bool> cache_;
};

} // namespace superopt::search
