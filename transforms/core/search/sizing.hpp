// How the extents of one kernel are chosen: shared by the files that size kernels.
//
//   units.cpp   which axes are cut, and into which tiles
//   terms.cpp   the parts of the cost, as terms over the units
//   memory.cpp  what a block holds at once
//   sizes.cpp   every assignment of extents, and the cheapest of them
#pragma once

#include "search/sizes.hpp"

#include <array>
#include <map>

namespace superopt::search {

constexpr std::size_t most_units = 8; // axes whose extents are chosen

// How many tiles cover an axis.
inline std::int64_t trips(std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; }

// A tile's extent once it is padded.
inline double padded_tile_extent(std::int64_t tile) { return padded(static_cast<double>(tile)); }

// One kernel whose extents are being chosen. The parts of its cost are expressed once as terms over the
// units (the axes whose extents are open): a constant times tile extents and trips (of the loop or the
// grid) of some units. An assignment of extents then costs a few table look-ups per term.
class Sizing {
public:
  Sizing(const Sizes &sizes, SizeCounts &counts);

  bool run(const Kernel &kernel, double limit, std::int64_t split, Extents &out);

private:
  // Whether a step runs on matrix units: blocks multiply a single row element by element.
  bool is_dot(const Step &step) const;
  struct Unit {                // an axis that one number cuts
    std::uint32_t tile_factor; // the factor whose tile extent is chosen
    std::int64_t loop_factor;  // the factor that takes the rest as trips, or -1 (the rest is the grid)
    std::int64_t extent;
    std::vector<std::int64_t> choices;
    std::size_t leader; // itself, or the unit whose grid dimension it shares: it has as many tiles
  };
  struct Term {
    double constant = 1;
    std::uint8_t tiles = 0, trips = 0; // sets of units
  };
  struct Part { // of a run of elements in memory: an axis cut by a unit, or a number of elements
    std::int64_t unit, extent;
    bool whole;
  };
  struct Leaf {
    Term once, loaded;
    double bytes;
    std::vector<Part> run; // innermost first
  };
  struct Saved {
    Term once;
    double bytes;
    std::vector<Part> run;
  };
  struct Work { // of one step: done `times`, on `elements` each
    Term times, elements;
    bool dot;
    double each, special;      // operations on an element, and those of them for the special function units
    std::array<Term, 3> sides; // of a matrix product: depth, and the extents of either operand alone
    std::int64_t operand_bytes = 0;
  };
  struct Side {
    Term tile, whole;
  };
  struct Held { // bytes live between two steps
    Term bytes;
    int from, to;
  };

  double value(const Term &t) const { return t.constant * tile_of_[t.tiles] * trips_of_[t.trips]; }
  // Of a term of `padded_tile`.
  double padded_value(const Term &t) const { return t.constant * padded_of_[t.tiles]; }

  // Extent of these factors in a block.
  Term tile(Mask mask) const;
  // Elements that it takes on chip. A dimension of several axes is padded only once.
  Term padded_tile(Mask mask) const;
  template <typename Extent> Term tile(Mask mask, Extent extent) const;
  // Extent of these factors in all of the kernel.
  Term full(Mask mask) const;
  Term iterations(Mask mask) const { return full(enclosing(*kernel_, mask)); }
  static Term times(Term a, const Term &b) {
    a.constant *= b.constant;
    a.tiles |= b.tiles;
    a.trips |= b.trips;
    return a;
  }
  // The dimensions of an input or an output of the program; null for other values, whose layout is chosen
  // later.
  const std::vector<std::vector<std::uint32_t>> *dims_of(ValueId v) const;
  // The axes of a value that lie one after the other in memory, up to the first that a block does not hold
  // whole.
  std::vector<Part> run_of(ValueId v) const;
  double run_bytes(const std::vector<Part> &run, double bytes) const;
  // Both have one dtype. What a step makes may have a narrower one than the widest that is stored.
  std::int64_t operand_bytes(const Step &step) const;
  void prepare();

  const std::vector<std::int64_t> &tiles_of(std::int64_t extent, bool side);
  bool choose_units(std::int64_t split);
  // Axes that only some outputs have, by the grid dimension that they share: it cuts one of each output.
  std::vector<std::vector<std::size_t>> shared_dimensions() const;
  void share(const std::vector<std::size_t> &axes, Mask sides);

  // Live ranges, as the program's checker counts them: from where a tile is made (an accumulator: from the
  // start) to its last use; what a loop does not change stays until the loop's end. Loads precede their
  // first use.
  void prepare_memory();
  double peak_bytes();
  const Step &step(int i) const { return kernel_->steps[static_cast<std::size_t>(i)]; }

  void choose(std::size_t at, std::int64_t extent);
  void assign(std::size_t at);
  bool wide_enough(const Side &side) const;
  bool drop_narrow();
  bool fits();
  bool legal() const;
  void look();

  const Sizes &sizes_;
  const Values &values_;
  const Problem &problem_;
  const TargetNumbers &target_;
  const double dot_extent_, accumulator_bytes_;
  const Kernel *kernel_ = nullptr;
  std::vector<std::int64_t> tile_, full_; // of the factors that are not units
  std::map<std::pair<std::int64_t, bool>, std::vector<std::int64_t>> tiles_;
  SizeCounts &counts_;
  Mask outer_ = 0;
  std::vector<Unit> units_;
  Term blocks_, trips_;
  std::ptrdiff_t fixed_grid_ = 0;
  std::vector<Leaf> leaves_;
  std::vector<Saved> saved_;
  std::vector<Term> accumulators_;
  std::vector<Work> work_;
  std::vector<Side> sides_;
  std::vector<Held> held_;
  std::vector<double> change_;
  std::vector<double> bytes_of_; // an element of each value in a block
  std::array<double, std::size_t{1} << most_units> tile_of_, padded_of_, trips_of_; // by set of units
  std::array<std::int64_t, most_units> chosen_{}, best_{};
  double limit_ = 0, best_seconds_ = 0, best_score_ = 0;
  std::int64_t peak_ = 0; // bytes of shared memory that the current tiles take
  bool any_ = false, any_size_ = false;
};

} // namespace superopt::search
