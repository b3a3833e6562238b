// An e-graph of tile programs: hash-consed nodes, classes of equal terms, and facts about each class.
//
// Two statements are equal when they are the same function of the memory; two values when they are the same
// function of the memory and of the loop variables. The `Facts` of a class over-approximate that one
// function, whichever member they were read off, so the tighter of two summaries may be kept. No rule adds or
// drops a store, so all members of a class write the same regions, on which united must-writes rely.
#pragma once

#include "egraph/program.hpp"

#include <unordered_map>
#include <vector>

namespace superopt::egraph {

using Regions = std::vector<int32_t>; // sorted access numbers

struct Facts {
  Regions reads;  // regions whose contents on entry may matter (upward exposed)
  Regions writes; // regions that may change
  Regions musts;  // regions that are certainly overwritten
  Bits free = 0;  // variables that the function depends on
  Bits bound = 0; // variables that some member binds; grows only
  int32_t shape = -1;
  bool nonzero = false;
  bool operator==(const Facts &) const = default;
};

struct Class {
  std::vector<Id> nodes;   // numbers of the nodes in this class
  std::vector<Id> parents; // numbers of the nodes that have this class as a child
  Facts facts;
};

// What keeps rewriting sound (`described` gives the words). A test may switch each off to see wrong programs
// appear (bit numbers of `EGraph::weakened`).
enum class Guard : uint8_t {
  // what rules check before they fire
  Independent,
  Fusible,
  Fissible,
  InsertableAfter,
  InsertableBefore,
  Invariant,
  Factorable,
  Propagatable,
  Reindexable,
  SingleTrip,
  Rescalable,
  ConstantColumns,
  ConstantRows,
  SameShape,
  NonZero,
  // single conditions within these, and what rewriting and counting ensure
  Dependence,
  Idempotence,
  Insertion,
  ZeroStart,
  Flattening,
  Cycles,
  Capture,
};
constexpr int GUARD_COUNT = static_cast<int>(Guard::Capture) + 1;
static_assert(GUARD_COUNT <= 32); // bits of `EGraph::weakened`

class EGraph {
public:
  Tables tables;
  uint32_t weakened = 0;
  bool weak(Guard g) const { return weakened >> static_cast<int>(g) & 1; }

  Id find(Id id) const {
    while (parent_[id] != id)
      id = parent_[id];
    return id;
  }
  const Class &at(Id id) const { return classes_[find(id)]; }
  const Facts &facts(Id id) const { return at(id).facts; }
  const Node &node(Id number) const { return nodes_[number]; }

  // The class of a node; NONE where its operands do not fit (or one of them is NONE).
  Id add(Node node);
  Id add(Op op, int32_t payload = 0, Id a = NONE, Id b = NONE) { return add(Node{op, payload, a, b}); }
  // Unite two classes; refuses (false) values of different shapes, which no rule may equate.
  bool unite(Id a, Id b);
  // `first; rest` in right-associative form, whatever sequences `first` contains (guard Flattening).
  Id append(Id first, Id rest);
  // Restore congruence and facts after unions.
  void rebuild();

  size_t class_count() const;
  size_t total_ids() const { return parent_.size(); }
  size_t node_count() const { return live_; }
  size_t memory_bytes() const;
  std::vector<Id> roots() const; // canonical classes, ascending
  bool has_plain(Id id) const;   // contains a statement other than a sequence
  // Regions of a loop's body as seen from outside the loop.
  int32_t generalize(int32_t access, int32_t var);
  size_t unions = 0; // made so far
  // Classes that changed since `since` was taken from `now`, and those with such a class within `depth`
  // levels below: where new matches may appear.
  uint32_t now() { return ++now_; }
  std::vector<bool> changed_since(uint32_t since, int depth) const;

private:
  std::vector<Id> parent_;
  std::vector<Class> classes_;
  std::vector<Node> nodes_;
  std::vector<Id> class_of_;
  std::vector<bool> dead_;
  std::vector<uint32_t> stamp_;
  uint32_t now_ = 1;
  size_t live_ = 0;
  std::unordered_map<Node, Id, NodeHash> memo_;
  std::vector<Id> dirty_, changed_;

  Node canonical(Node node) const;
  std::optional<Facts> make_facts(const Node &node);
  bool merge_facts(Facts &into, const Facts &other) const;
  Regions tighter(const Regions &x, const Regions &y) const;
  void add_must(Regions &musts, int32_t access);
  bool covers(const Regions &musts, int32_t access) const;
};

// Whether two regions may share an element, at one point in time, or in different iterations of `var`.
bool overlap(const Tables &t, int32_t x, int32_t y, int32_t different_var = -1);

} // namespace superopt::egraph
