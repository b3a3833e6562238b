// Custom kernels over the values: which operators, which inputs, which loops.
#pragma once

#include "search/values.hpp"

#include <functional>
#include <map>
#include <string>

namespace superopt::search {

struct Step {
  ValueId value;
  Derivation how;
};

// What one kernel computes, with its labels; sizes come later.
struct Kernel {
  bool custom = true;
  std::vector<ValueId> outputs;
  std::vector<ValueId> leaves; // read from device memory
  std::vector<Step> steps;     // operands before results
  Mask loops = 0;              // loop factors of the axes that the kernel loops over
  Mask reduced = 0;            // every factor that some step reduces
  // Chosen with the sizes: for each factor its extent in one block (tile), and for the whole kernel (full).
  std::vector<std::int64_t> tile, full;
  double seconds = 0;
  double score = 0; // orders kernels that take the same time: traffic and work, in seconds
};

struct KernelCounts {
  std::uint64_t states = 0;
  std::uint64_t graphs = 0;       // complete choices of derivations
  std::uint64_t by_operators = 0; // cut: more operators than a block may have
  std::uint64_t by_states = 0;    // cut: more states than allowed, the space is not exhausted
  std::uint64_t by_labels = 0;    // cut: an axis both looped and reduced whole, too many loops
  std::uint64_t by_place = 0;     // rejected: mixes values inside and after a loop, or saves one inside
  std::uint64_t labelled = 0;
  std::uint64_t by_bound = 0;  // not sized: its lower bound is above the program's cost
  std::uint64_t by_memory = 0; // no tile sizes fit the shared memory
  std::uint64_t sized = 0;
  std::uint64_t size_points = 0; // size assignments evaluated
};

class Kernels {
public:
  Kernels(const Values &values, const Options &options, Clock &clock);

  using Sink = std::function<void(Kernel &&)>;

  // Hand every labelled kernel with exactly these outputs to `sink`, each once, until the clock has expired
  // or the states allowed are used up. Kernels that compute what they need come before those that load it.
  void enumerate(const std::vector<ValueId> &outputs, const Sink &sink);

  // Position in an order where operands come before results.
  std::uint32_t rank(ValueId v) const { return rank_[v]; }
  KernelCounts counts;

private:
  struct State;
  void expand(State &state);
  void derive(const State &state, ValueId top);
  bool label(State &state, Mask reduced) const;
  bool place(Kernel &kernel) const;
  void complete(const State &state);

  const Values &values_;
  const Options &options_;
  Clock &clock_;
  std::vector<std::uint32_t> rank_;
  const Sink *sink_ = nullptr;
  std::uint64_t last_state_ = 0; // where the enumeration for the present outputs ends
};

} // namespace superopt::search
