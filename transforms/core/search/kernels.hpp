// Custom kernels over the values: which operators, which inputs, which loops.
#pragma once

#include "search/values.hpp"

#include <cmath>
#include <functional>

namespace superopt::search {

struct Step {
  ValueId value;
  Derivation how;
  bool operator==(const Step &) const = default;
};

// For each factor, its extent in one block (tile) and in the whole kernel (full).
struct Extents {
  std::vector<std::int64_t> tile, full;
  std::vector<std::vector<std::uint32_t>> shared; // tile factors of axes that one grid dimension cuts
  double seconds = 0;
  double score = 0; // orders kernels that take the same time: traffic and work, in seconds
};

// What one kernel computes, with its labels; its extents are chosen later.
struct Kernel : Extents {
  bool custom = true;
  std::vector<ValueId> outputs;
  std::vector<ValueId> leaves;           // read from device memory
  std::vector<Step> steps;               // operands before results
  Mask loops = 0;                        // loop factors of the axes that the kernel loops over
  Mask reduced = 0;                      // every factor that some step reduces
  std::vector<std::uint32_t> loop_order; // the same, outermost first, if there are several
  std::int64_t split = 0; // extent of the split factors, 0 where the kernel does not depend on it
};

// The loops of a kernel, outermost first: a loop that a sum ends is inside every other loop over which the
// summands vary. Empty where two loops would have to enclose each other.
std::optional<std::vector<std::uint32_t>> nesting(const Values &values, const Kernel &kernel);

// The loops of a kernel that run for values varying over these: these and the enclosing ones.
Mask enclosing(const Kernel &kernel, Mask loops);

struct KernelCounts {
  std::uint64_t states = 0;
  std::uint64_t graphs = 0;       // complete choices of derivations
  std::uint64_t by_operators = 0; // cut: more operators than a block may have
  std::uint64_t by_states = 0;    // cut: more states than allowed, the space is not exhausted
  std::uint64_t by_labels = 0;    // cut: an axis both looped and reduced whole, too many loops
  std::uint64_t by_traffic = 0;   // cut: even the required reads and writes take too long
  std::uint64_t by_place = 0;     // cut: mixes values inside and after a loop, or saves one inside
  std::uint64_t by_dominance = 0; // cut: others reached the same with no more steps and work
  std::uint64_t labelled = 0;
};

class Kernels {
public:
  Kernels(const Values &values, const Options &options, Clock &clock);

  using Sink = std::function<void(Kernel &&)>;

  // Hand every labelled kernel with exactly these outputs to `sink`, each once, until the clock has expired
  // or the allowed states are used up. Kernels that compute what they need come before those that load it.
  void enumerate(const std::vector<ValueId> &outputs, const Sink &sink);

  // Kernels that read and write more bytes than this, or compute for as long, are left out. The sink may
  // lower it.
  double most_bytes = INFINITY;
  // A value that another kernel must make before it is loaded costs a launch, its write and the reads of its
  // inputs: the bytes that are moved in the time of a launch, or 0 where there are other kernels anyway.
  double launch_bytes = 0;
  // The number of visited states at which to stop.
  std::uint64_t states_end = 0;
  // Whether the latest enumeration got less than its share of them.
  bool starved() const { return last_state_ == states_end; }
  // Whether kernels load only values that the program itself computes.
  void load_only_own(bool only);
  bool own_only() const { return own_only_; }

  // Position in an order with operands before results.
  std::uint32_t rank(ValueId v) const { return rank_[v]; }
  KernelCounts counts;

private:
  struct Labels { // how each axis is reduced; bit: axis
    Mask looped = 0, whole = 0, inner = 0, split_only = 0, joined = 0, apart = 0;
  };
  struct State;
  double least_bytes(const State &state) const;
  void expand(State &state);
  void derive(State &state, std::uint32_t top);
  Labels labels_of(Mask reduced) const;
  bool consistent(const Labels &labels) const;
  bool dominated(const State &state);
  double work_of(const Derivation &how) const;
  void complete(const State &state);

  const Values &values_;
  const Options &options_;
  Clock &clock_;
  std::vector<std::uint32_t> rank_, order_; // the rank of a value, and the value of a rank
  struct Effect {                           // of a derivation
    Labels labels;
    Mask ends;            // loops that it ends
    Mask varies;          // loop factors that its operands have
    double work;          // seconds, at nominal extents
    double product_bytes; // that could be moved while it computes its matrix product
  };
  std::vector<std::vector<Effect>> effects_; // by rank, of each derivation
  std::vector<double> bytes_;                // by rank, least size in device memory
  std::vector<double> made_products_;        // by rank, movable while the products of every way to it run
  std::vector<bool> loadable_;               // by rank
  std::vector<std::uint32_t> operators_;     // by rank, least number in a kernel that does not load it
  bool own_only_ = false;
  Mask loop_factors_ = 0;
  Mask saved_ = 0;           // loop factors that an output has: nothing loops over them
  std::vector<Mask> inside_; // by rank, of needed values: the loops that they must not follow
  // By remaining work, the steps and work of the states that reached it first.
  struct Trace {
    std::uint32_t steps;
    float work;
  };
  std::unordered_map<Key, std::vector<Trace>, KeyHash> seen_;
  const Sink *sink_ = nullptr;
  std::uint64_t last_state_ = 0; // where the enumeration for the present outputs ends
};

} // namespace superopt::search
