// The rules as one table, and the schedule that applies them until nothing new appears.
#pragma once

#include "egraph/guards.hpp"

#include "egraph/watch.hpp"

#include <string_view>

namespace superopt::egraph {

enum class Kind : uint8_t {
  Pattern, // `before` and `after` are patterns over values; `guard` names a condition on what they bind
  Pair,    // two adjacent statements of a sequence
  Single,  // one statement
};

struct RuleEntry {
  const char *name;
  Kind kind;
  const char *before, *after;
  const char *guard;
  const char *source;
  bool by_default; // off: applied only when asked for by name (it multiplies the graph)
};

const std::vector<RuleEntry> &rule_table();

struct RuleCount {
  size_t matched = 0; // places where the left side was found
  size_t refused = 0; // of these, stopped by the guard
  size_t fired = 0;   // of these, ones that told something new
};

struct Limits {
  int iterations = 20;
  size_t nodes = 400'000;
  size_t bytes = size_t{3} << 30;
};

struct Outcome {
  int iterations = 0;
  double seconds = 0;
  std::string stopped;           // "saturated", "iterations", "nodes", "memory", "budget", "cancelled"
  std::vector<RuleCount> counts; // in the order of the table
};

// Apply the enabled rules (indices into the table) until saturation or a limit; deterministic.
Outcome saturate(EGraph &g, const std::vector<bool> &enabled, const Limits &limits, Watch &watch);

// --- what the parts share ---------------------------------------------------------------------------------

// `equal` is what a rule made of `where`.
struct Found {
  Id where;
  Id equal;
};

// algebra.cpp: the rule at places of the given nodes.
Op pattern_root(size_t rule);
void match_values(EGraph &g, size_t rule, const std::vector<Id> &node_numbers, RuleCount &count,
                  std::vector<Found> &out, Watch &watch);
// loops.cpp: statements x and y stand side by side; the result is the sequence that replaces both.
std::vector<std::vector<Id>> rewrite_pair(EGraph &g, const class Smallest &smallest, std::string_view rule,
                                          Id x, Id y, RuleCount &count);
std::vector<std::vector<Id>> rewrite_single(EGraph &g, const Smallest &smallest, std::string_view rule,
                                            Id number, RuleCount &count);

// --- substitution (rewrite.cpp) ---------------------------------------------------------------------------

// The smallest member of every class; rewriting follows it, as classes may be cyclic.
class Smallest {
public:
  explicit Smallest(const EGraph &g);
  Id node(Id id) const; // number of the smallest node; NONE where there is no finite term
  uint32_t size(Id id) const;

private:
  const EGraph &g_;
  std::vector<Id> best_;
  std::vector<uint32_t> size_;
};

// The smallest term of `id` with every `elem h` as `elem n`; NONE where h is used in another way, or n
// occurs.
Id reindexed(EGraph &g, const Smallest &smallest, Id id, int32_t h, int32_t n);
// The smallest term of `id` with all of a dimension for every tile at v; NONE where such a tile is not all of
// its dimension, or v is used in another way.
Id untiled(EGraph &g, const Smallest &smallest, Id id, int32_t v);
// The smallest term of `id` with `value` for every load of `region`; NONE where a loop would capture a
// variable.
Id propagated(EGraph &g, const Smallest &smallest, Id id, int32_t region, Id value);

} // namespace superopt::egraph
