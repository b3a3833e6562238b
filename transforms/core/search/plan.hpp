// Whole programs: which values are stored in device memory, and which kernel makes each.
#pragma once

#include "search/sizes.hpp"

#include <map>
#include <span>

namespace superopt::search {

struct Plan {
  double seconds = 0;
  double score = 0;
  std::int64_t split = 0;      // extent of the split factors, 0 where device memory holds none
  std::vector<Kernel> kernels; // in the order they run
};

struct Result {
  std::vector<Plan> plans;    // cheapest first
  double program_seconds = 0; // the program as given, one library kernel per operator
  bool complete = true;       // false where the budget ended or the caller stopped the search
  double values_seconds = 0, plan_seconds = 0;
  double first_seconds = 0; // until the first plan with a custom kernel
};

class Planner {
public:
  Planner(const Values &values, const Options &options, Clock &clock);

  Result run();
  KernelCounts counts;
  SizeCounts sizes;

private:
  struct Part { // the cheapest ways to make some values, as links into `pool_`
    double seconds, score;
    std::int32_t kernel, rest; // -1: nothing left to make
  };
  struct Left { // how many kernels a plan may still have
    std::uint32_t customs, kernels;
    auto operator<=>(const Left &) const = default;
  };
  using Needed = std::vector<ValueId>;
  using Made = std::vector<std::int32_t>; // kernels, by their place in `made_`

  // Cheapest ways to make what is needed within `allowance` seconds.
  const std::vector<Part> &best(const Needed &needed, Left left, double allowance);
  // Custom kernels with exactly these outputs; `alone`: nothing else is needed.
  const Made &customs_for(const Needed &outputs, double allowance, bool alone);
  double least_seconds(const Needed &needed) const;
  const Made &library_for(ValueId v);
  void size(std::vector<Kernel> &batch, double limit, bool alone,
            std::map<std::pair<std::vector<ValueId>, std::int64_t>, std::vector<Kernel>> &kept);
  Made store(std::vector<Kernel> kernels);
  std::size_t parts_kept() const { return options_.candidates + 1; } // one may be the program itself
  struct Pass {
    Left left;
    bool own_only; // device memory holds only values of the program
  };
  std::vector<Pass> passes() const;
  std::span<const std::int64_t> splits_now() const;
  Needed without_leaves(Needed needed) const;
  double program_seconds();
  void collect(Result &result, const std::vector<Part> &parts) const;

  const Values &values_;
  const Options &options_;
  Clock &clock_;
  Kernels kernels_;
  Sizes sizes_;
  std::vector<Sizer> sizers_;        // one per thread
  double limit_ = 0;                 // slower plans are useless
  std::vector<std::int64_t> splits_; // extents that split factors may have
  std::size_t pass_ = 0;
  bool cut_ = false;       // whether the current pass relies on a search that was cut short
  std::int64_t split_ = 1; // of the current pass
  Needed outputs_;
  std::vector<Kernel> made_;
  std::vector<Part> pool_;
  template <typename T> struct Within { // what was found, looking no further than the allowance
    double allowance = -1;
    T found;
    std::size_t cut = 0;  // the pass in which the search for it was cut short; another one may try again
    bool starved = false; // others had used up the states of that pass
  };
  std::map<std::pair<Needed, bool>, Within<Made>> customs_;
  std::map<ValueId, Made> library_;
  std::map<std::pair<Needed, Left>, Within<std::vector<Part>>> best_;
  std::chrono::steady_clock::time_point start_;
  double first_ = 0;
};

} // namespace superopt::search
