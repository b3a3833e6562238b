// Grid, loop and tile extents of a labelled kernel: divisors, memory, cost.
#pragma once

#include "search/kernels.hpp"

#include <memory>

namespace superopt::search {

struct SizeCounts {
  std::uint64_t by_bound = 0;    // not sized: its lower bound is above the limit
  std::uint64_t by_memory = 0;   // no tile sizes fit the shared memory
  std::uint64_t sized = 0;       // kernels with extents
  std::uint64_t size_points = 0; // size assignments looked at

  void add(const SizeCounts &other) {
    by_bound += other.by_bound;
    by_memory += other.by_memory;
    sized += other.sized;
    size_points += other.size_points;
  }
};

// State shared by all threads.
class Sizes {
public:
  Sizes(const Values &values, const Options &options) : values_(values), options_(options) {}

  // Whether the kernel depends on the extent of split factors.
  bool splits(const Kernel &kernel) const;

private:
  friend class Sizing;
  bool splits(const Kernel &kernel, const Axis &axis) const;

  const Values &values_;
  const Options &options_;
};

class Sizing;

// Chooses extents; each thread has its own.
class Sizer {
public:
  explicit Sizer(const Sizes &sizes);
  Sizer(Sizer &&) noexcept;
  ~Sizer();

  // The extents of `kernel` that minimise its seconds; false where none fit or it takes more than `limit`.
  // `split` is the extent of every split factor. For a kernel that is one library operator (not `custom`) the
  // loop of its reduction is implied.
  bool optimize(const Kernel &kernel, double limit, std::int64_t split, Extents &out);

private:
  std::unique_ptr<SizeCounts> counts_ = std::make_unique<SizeCounts>();
  std::unique_ptr<Sizing> work_;

public:
  const SizeCounts &counts() const { return *counts_; }
};

} // namespace superopt::search
