// The rules as one table, and the schedule that applies them until nothing new appears.
#pragma once

#include "egraph/guards.hpp"

#include "egraph/watch.hpp"

#include <variant>

namespace superopt::egraph {

struct RuleCount {
  size_t matched = 0; // places where the left side was found
  size_t refused = 0; // of these, refused by the guard
  size_t fired = 0;   // of these, those that added something new
};

// What a rule on statements sees, and where it counts its results.
struct Site {
  EGraph &g;
  const class Smallest &smallest;
  RuleCount &count;
};
using Sequences = std::vector<std::vector<Id>>; // each: classes of statements, in order

// Where a rule on statements applies: at the end, before other statements, or both.
enum class Position : uint8_t { Last, Followed, Anywhere };

// How a rule is applied.
struct ValueRule {}; // `before` and `after` are patterns
struct PairRule {    // two statements side by side: the sequences that replace both
  Sequences (*rewrite)(Site, Id x, Id y);
  Position position;
};
struct LoopRule { // one loop: the sequences that replace it
  Sequences (*rewrite)(Site, const Node &loop);
  Position position;
};
struct FlattenRule {}; // sequences in right-associative form

// What a rule checks before it fires. A rule on statements checks `guard` itself; a rule on values applies
// `holds` to the classes that its variables `of` stand for.
struct RuleGuard {
  Guard guard;
  bool (*holds)(const EGraph &, Id, Id) = nullptr;
  const char *of[2] = {"", ""};

  std::string asks() const; // in words
};

struct RuleEntry {
  const char *name;
  std::variant<ValueRule, PairRule, LoopRule, FlattenRule> kind;
  const char *before, *after;
  std::vector<RuleGuard> guards;
  const char *source;
  bool by_default; // off: applied only when requested by name (it multiplies the graph)
};

const std::vector<RuleEntry> &rule_table();

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

// A rule rewrote `where` to `equal`.
struct Found {
  Id where;
  Id equal;
};

// algebra.cpp: reads the patterns of all rules, once; throws std::logic_error for an invalid pattern, or a
// variable that the left side does not bind.
void read_patterns();
// The rule at places of the given nodes.
Op pattern_root(size_t rule);
void match_values(EGraph &g, size_t rule, const std::vector<Id> &node_numbers, RuleCount &count,
                  std::vector<Found> &out, Watch &watch);

// loops.cpp: the rules on statements.
Sequences commute(Site site, Id x, Id y);
Sequences fuse(Site site, Id x, Id y);
Sequences insert_after(Site site, Id x, Id s);
Sequences insert_before(Site site, Id s, Id y);
Sequences propagate_store(Site site, Id x, Id y);
Sequences propagate_through_loops(Site site, Id x, Id y);
Sequences rescale(Site site, Id x, Id y);
Sequences fission(Site site, const Node &loop);
Sequences hoist_invariant(Site site, const Node &loop);
Sequences factor_quotient(Site site, const Node &loop);
Sequences factor_product(Site site, const Node &loop);
Sequences reindex(Site site, const Node &loop);
Sequences open_single_trip(Site site, const Node &loop);

// --- substitution (rewrite.cpp) ---------------------------------------------------------------------------

// The smallest member of every class; rewriting follows it, as classes may be cyclic.
class Smallest {
public:
  explicit Smallest(const EGraph &g);
  Id node(Id id) const; // number of the smallest node; NONE without a finite term
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
