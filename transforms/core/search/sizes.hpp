// Grid, loop and tile extents of a labelled kernel: divisors, memory, cost.
#pragma once

#include "search/kernels.hpp"

namespace superopt::search {

class Sizes {
public:
  Sizes(const Values &values, const Options &options, KernelCounts &counts)
      : values_(values), options_(options), counts_(counts) {}

  // Choose the extents of `kernel`, minimising its seconds; false where none fit or the lower bound is above
  // `limit`. `split` is the extent of every split factor. For a kernel that is one library operator (not
  // `custom`) the loop of its reduction is implied.
  bool optimize(Kernel &kernel, double limit, std::int64_t split);

  // How much memory traffic and work a kernel with its extents chosen does.
  KernelTraffic traffic(const Kernel &kernel) const;

private:
  struct Unit; // a set of factors that one number cuts
  bool fits_dots(const Kernel &kernel) const;
  std::int64_t block_bytes(const Kernel &kernel) const;
  std::int64_t bytes_of(ValueId v) const;

  const Values &values_;
  const Options &options_;
  KernelCounts &counts_;
};

} // namespace superopt::search
