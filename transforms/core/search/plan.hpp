// Whole programs: which values stand in device memory, and which kernel makes each.
#pragma once

#include "search/sizes.hpp"

#include <map>

namespace superopt::search {

struct Plan {
  double seconds = 0;
  double score = 0;
  std::int64_t split = 0;      // extent of the split factors, 0 where none stands in device memory
  std::vector<Kernel> kernels; // in the order they run
};

struct Result {
  std::vector<Plan> plans;    // cheapest first
  double program_seconds = 0; // the program as it came, one library kernel an operator
  bool complete = true;       // false where the budget ended or the caller stopped the search
  double values_seconds = 0, plan_seconds = 0;
  double first_seconds = 0; // until the first plan with a custom kernel was known
};

class Planner {
public:
  Planner(const Values &values, const Options &options, Clock &clock);

  Result run();
  KernelCounts counts;

private:
  struct Part { // the cheapest ways to make some values, as links into `pool_`
    double seconds, score;
    std::int32_t kernel, rest; // -1: nothing left to make
  };
  using Needed = std::vector<ValueId>;

  const std::vector<Part> &best(const Needed &needed, std::uint32_t customs);
  const std::vector<std::int32_t> &customs_for(const Needed &outputs);
  const std::vector<std::int32_t> &library_for(ValueId v);
  Needed without_leaves(Needed needed) const;
  double program_seconds();
  static bool cheaper(const Part &a, const Part &b);

  const Values &values_;
  const Options &options_;
  Clock &clock_;
  Kernels kernels_;
  Sizes sizes_;
  double limit_ = 0;
  std::int64_t split_ = 1;
  std::vector<Kernel> made_;
  std::vector<Part> pool_;
  std::map<Needed, std::vector<std::int32_t>> customs_;
  std::map<ValueId, std::vector<std::int32_t>> library_;
  std::map<std::pair<Needed, std::uint32_t>, std::vector<Part>> best_;
  std::chrono::steady_clock::time_point start_;
  double first_ = 0;
};

} // namespace superopt::search
