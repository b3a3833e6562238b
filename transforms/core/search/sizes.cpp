#include "search/sizes.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>

namespace superopt::search {
namespace {

constexpr std::int64_t largest_tile = 512; // of a partitioned axis
constexpr std::int64_t many_ways = 64;     // an axis that this power of two divides has enough tiles
constexpr std::int64_t least_ragged = 16;  // tile that reaches past the end of its axis
constexpr double maximum_bytes = 4;        // of a stored maximum, which rounding would change
constexpr double sum_bytes = 16 << 10;     // of accumulators that are sums of rows
// The least depth of one trip of a library's matrix product, by the operands' bytes.
constexpr std::int64_t library_depth(std::int64_t bytes) { return bytes > 2 ? 32 : 64; }
constexpr std::size_t most_units = 8; // axes whose extents are chosen
constexpr std::ptrdiff_t grid_dimensions = 3;

// The divisors of `extent` up to the largest tile, and `extent` itself where it is not a power of two. The
// divisors of a power of two are powers of two; other tiles are padded to one.
// Padding costs little except on a side of a matrix product, which takes only powers of two.
// Where few of these divide, others reach past the end of the axis.
std::vector<std::int64_t> tiles(std::int64_t extent, bool side) {
  const auto is_power = [](std::int64_t t) { return std::has_single_bit(static_cast<std::uint64_t>(t)); };
  const bool may_reach_past = extent > many_ways && (extent & -extent) < many_ways;
  std::vector<std::int64_t> out;
  for (std::int64_t t = 1; t <= std::min(extent, largest_tile); ++t)
    if ((extent % t == 0 && (!side || is_power(t))) || (may_reach_past && t >= least_ragged && is_power(t)))
      out.push_back(t);
  if (out.back() != extent && !is_power(extent) && extent <= 2 * largest_tile)
    out.push_back(extent);
  return out;
}

// How many tiles cover an axis.
std::int64_t trips(std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; }

constexpr double long_run = 128; // bytes in a row that no layout of a stored value has to fall below

// A tile's extent once it is padded.
double padded_tile_extent(std::int64_t tile) { return padded(static_cast<double>(tile)); }

bool is_dot(const Step &step) { return step.how.op == Op::Contract; }

} // namespace

// The split factor is separate where some value has only it, or the rest of the axis is reduced without it.
bool Sizes::splits(const Kernel &kernel, const Axis &axis) const {
  const std::uint32_t f = axis.factors[0];
  if (values_.problem().factors[f].level != Level::Split)
    return false;
  const Mask bit = Mask{1} << f;
  const auto has_it_alone = [&](ValueId v) { return (values_.all()[v].mask & axis.mask) == bit; };
  return ((axis.mask & kernel.reduced) && !(kernel.reduced & bit)) ||
         std::any_of(kernel.leaves.begin(), kernel.leaves.end(), has_it_alone) ||
         std::any_of(kernel.steps.begin(), kernel.steps.end(),
                     [&](const Step &s) { return has_it_alone(s.value); });
}

bool Sizes::splits(const Kernel &kernel) const {
  const std::vector<Axis> &axes = values_.problem().axes;
  return std::any_of(axes.begin(), axes.end(), [&](const Axis &axis) { return splits(kernel, axis); });
}

// One kernel whose extents are being chosen. The parts of its cost are expressed once as terms over the
// units (the axes whose extents are open): a constant times tile extents and trips (of the loop or the
// grid) of some units. An assignment of extents then costs a few table look-ups per term.
class Sizing {
public:
  Sizing(const Sizes &sizes, SizeCounts &counts)
      : sizes_(sizes), values_(sizes.values_), problem_(sizes.values_.problem()),
        target_(sizes.options_.target), dot_extent_(static_cast<double>(target_.matrix_side)),
        // fp32: half of the register file, plus sums of rows
        accumulator_bytes_(static_cast<double>(target_.registers) * 4 / 2 + sum_bytes), counts_(counts) {
    tile_of_.fill(1);
    padded_of_.fill(1);
    trips_of_.fill(1);
  }

  bool run(const Kernel &kernel, double limit, std::int64_t split, Extents &out) {
    kernel_ = &kernel;
    units_.clear();
    leaves_.clear();
    saved_.clear();
    accumulators_.clear();
    work_.clear();
    sides_.clear();
    held_.clear();
    blocks_ = {};
    fixed_grid_ = 0;
    any_ = any_size_ = false;
    // What every choice of extents costs: a launch, and every byte once.
    double compulsory = 0;
    for (const auto *list : {&kernel_->leaves, &kernel_->outputs})
      for (ValueId v : *list)
        compulsory += values_.stored_bytes(v, split);
    if (least_seconds(target_, compulsory) > limit) {
      ++counts_.by_bound;
      return false;
    }
    if (!choose_units(split))
      return false;
    limit_ = limit;
    prepare();
    if (drop_narrow() && (!units_.empty() || fits()))
      assign(0);
    if (!any_) {
      ++(any_size_ ? counts_.by_bound : counts_.by_memory);
      return false;
    }
    ++counts_.sized;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Unit &unit = units_[u];
      tile_[unit.tile_factor] = best_[u];
      if (unit.loop_factor >= 0) {
        full_[unit.tile_factor] = best_[u];
        full_[static_cast<std::size_t>(unit.loop_factor)] = trips(unit.extent, best_[u]);
      }
    }
    out.tile = tile_;
    out.full = full_;
    out.seconds = best_seconds_;
    out.score = best_score_;
    return true;
  }

private:
  struct Unit {                // an axis that one number cuts
    std::uint32_t tile_factor; // the factor whose tile extent is chosen
    std::int64_t loop_factor;  // the factor that takes the rest as trips, or -1 (the rest is the grid)
    std::int64_t extent;
    std::vector<std::int64_t> choices;
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
  Term tile(Mask mask) const {
    return tile(mask, [](std::int64_t extent) { return static_cast<double>(extent); });
  }
  // Elements that it takes on chip. A dimension of several axes is padded only once.
  Term padded_tile(Mask mask) const { return tile(mask, padded_tile_extent); }
  template <typename Extent> Term tile(Mask mask, Extent extent) const {
    Term t;
    for (std::size_t u = 0; u < units_.size(); ++u)
      if (mask >> units_[u].tile_factor & 1) {
        t.tiles |= static_cast<std::uint8_t>(1u << u);
        mask &= ~(Mask{1} << units_[u].tile_factor);
      }
    for (; mask; mask &= mask - 1)
      t.constant *= extent(tile_[static_cast<std::size_t>(std::countr_zero(mask))]);
    return t;
  }
  // Extent of these factors in all of the kernel.
  Term full(Mask mask) const {
    Term t;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Unit &unit = units_[u];
      const bool whole = mask >> unit.tile_factor & 1;
      const bool loop = unit.loop_factor >= 0 && (mask >> unit.loop_factor & 1);
      mask &= ~(Mask{1} << unit.tile_factor);
      if (unit.loop_factor >= 0)
        mask &= ~(Mask{1} << unit.loop_factor);
      if (unit.loop_factor < 0 ? whole : whole && loop)
        t.constant *= static_cast<double>(unit.extent);
      else if (whole)
        t.tiles |= static_cast<std::uint8_t>(1u << u);
      else if (loop)
        t.trips |= static_cast<std::uint8_t>(1u << u);
    }
    for (; mask; mask &= mask - 1)
      t.constant *= static_cast<double>(full_[static_cast<std::size_t>(std::countr_zero(mask))]);
    return t;
  }
  // The dimensions of an input or an output of the program; null for other values, whose layout is chosen
  // later.
  const std::vector<std::vector<std::uint32_t>> *dims_of(ValueId v) const {
    const Value &value = values_.all()[v];
    if (value.leaf)
      return value.constant ? nullptr : &problem_.roles[value.derivations[0].function].dims;
    const auto at = std::find(values_.outputs().begin(), values_.outputs().end(), v);
    if (at == values_.outputs().end() || problem_.output_dims.empty())
      return nullptr;
    return &problem_.output_dims[static_cast<std::size_t>(at - values_.outputs().begin())];
  }
  // The axes of a value that lie one after the other in memory, up to the first that a block does not hold
  // whole.
  std::vector<Part> run_of(ValueId v) const {
    std::vector<Part> run;
    const auto *dims = dims_of(v);
    if (dims == nullptr)
      return run;
    for (std::size_t d = dims->size(); d-- > 0;)
      for (std::size_t i = (*dims)[d].size(); i-- > 0;) {
        const Axis &axis = problem_.axes[(*dims)[d][i]];
        if (!(values_.all()[v].mask & axis.mask)) // an output that is repeated along it
          continue;
        const std::uint32_t factor = axis.factors.back();
        for (std::size_t u = 0; u < units_.size(); ++u)
          if (units_[u].tile_factor == factor) {
            run.push_back({static_cast<std::int64_t>(u), axis.extent, false});
            goto next;
          }
        run.push_back({-1, tile_[factor], tile_[factor] == axis.extent});
        if (!run.back().whole)
          return run;
      next:;
      }
    return run;
  }
  double run_bytes(const std::vector<Part> &run, double bytes) const {
    if (run.empty())
      return long_run;
    double elements = 1;
    for (const Part &part : run) {
      const std::int64_t held = part.unit < 0 ? part.extent : chosen_[static_cast<std::size_t>(part.unit)];
      elements *= static_cast<double>(held);
      if (part.unit < 0 ? !part.whole : held != part.extent)
        break;
    }
    return elements * bytes;
  }
  Term iterations(Mask mask) const { return full(enclosing(*kernel_, mask)); }
  static Term times(Term a, const Term &b) {
    a.constant *= b.constant;
    a.tiles |= b.tiles;
    a.trips |= b.trips;
    return a;
  }

  // Both have one dtype. What a step makes may have a narrower one than the widest that is stored.
  std::int64_t operand_bytes(const Step &step) const {
    return std::min(values_.element_bytes(step.how.a), values_.element_bytes(step.how.b));
  }

  const std::vector<std::int64_t> &tiles_of(std::int64_t extent, bool side) {
    std::vector<std::int64_t> &known = tiles_[{extent, side}];
    if (known.empty())
      known = tiles(extent, side);
    return known;
  }

  bool choose_units(std::int64_t split) {
    tile_.assign(problem_.factors.size(), 1);
    full_.assign(problem_.factors.size(), 1);
    Mask present = 0, sides = 0; // of matrix products
    std::int64_t least_depth = 0;
    outer_ = ~Mask{0};
    for (ValueId leaf : kernel_->leaves)
      present |= values_.all()[leaf].mask;
    for (const Step &step : kernel_->steps) {
      present |= values_.all()[step.value].mask;
      if (is_dot(step)) {
        sides |= (values_.all()[step.how.a].mask ^ values_.all()[step.how.b].mask) | step.how.reduced;
        if (!kernel_->custom)
          least_depth = library_depth(operand_bytes(step));
      }
    }
    for (ValueId output : kernel_->outputs)
      outer_ &= values_.saved_mask(output);
    outer_ &= ~kernel_->reduced;
    for (const Axis &axis : problem_.axes) {
      if (!(axis.mask & present))
        continue;
      const std::uint32_t tile_factor = axis.factors.back();
      std::int64_t extent = axis.extent;
      if (sizes_.splits(*kernel_, axis)) {
        const std::uint32_t f = axis.factors[0];
        const Mask bit = Mask{1} << f;
        if (extent % split != 0 || extent / split < 2)
          return false;
        extent /= split;
        full_[f] = split;
        tile_[f] = outer_ & bit ? 1 : split;
        if ((axis.mask & present) == bit)
          continue;
      }
      std::int64_t loop_factor = -1;
      for (std::uint32_t f : axis.factors)
        if (problem_.factors[f].level == Level::Loop && (kernel_->loops >> f & 1))
          loop_factor = f;
      if (loop_factor < 0 && !(outer_ >> tile_factor & 1)) {
        full_[tile_factor] = tile_[tile_factor] = extent;
        continue;
      }
      Unit unit{tile_factor, loop_factor, extent, tiles_of(extent, sides >> tile_factor & 1)};
      if (loop_factor >= 0)
        std::erase_if(unit.choices, [&](std::int64_t t) {
          return t == extent || (t < target_.matrix_side && extent >= 128) ||
                 (t < least_depth && extent > least_depth);
        });
      else
        full_[tile_factor] = extent;
      if (unit.choices.empty())
        return false;
      if (units_.size() < most_units)
        units_.push_back(std::move(unit));
      else if (loop_factor < 0) // uncut: bounds the tables below
        tile_[tile_factor] = extent;
      else
        return false;
    }
    return true;
  }

  void prepare() {
    for (std::size_t f = 0; f < tile_.size(); ++f) {
      const bool open =
          std::any_of(units_.begin(), units_.end(), [&](const Unit &u) { return u.tile_factor == f; });
      if ((outer_ >> f & 1) && !open) {
        blocks_.constant *= static_cast<double>(full_[f] / tile_[f]);
        fixed_grid_ += full_[f] > tile_[f];
      }
    }
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto bit = static_cast<std::uint8_t>(1u << u);
      if (units_[u].loop_factor < 0)
        blocks_.trips |= bit;
    }
    trips_ = full(kernel_->loops);
    for (ValueId leaf : kernel_->leaves) {
      const Mask mask = values_.all()[leaf].mask;
      leaves_.push_back({full(mask), times(tile(mask), iterations(mask)),
                         static_cast<double>(values_.element_bytes(leaf)), run_of(leaf)});
    }
    const auto stored = static_cast<double>(sizes_.options_.intermediate_bytes);
    for (ValueId output : kernel_->outputs) {
      Term t = full(values_.all()[output].mask);
      saved_.push_back({t, stored, run_of(output)});
    }
    for (const Step &step : kernel_->steps) {
      const Mask a = values_.all()[step.how.a].mask, b = values_.all()[step.how.b].mask;
      Work work{iterations(a | b), {}, is_dot(step), 1, step.how.op == Op::Div ? 1.0 : 0.0, {}, 0};
      if (work.dot) {
        work.elements = padded_tile(a & b & ~step.how.reduced);
        work.operand_bytes = operand_bytes(step);
        std::size_t i = 0;
        // The operand whose axis comes first has the rows, as in the kernel that is built.
        Mask rows = a & ~b, columns = b & ~a;
        if (columns && std::countr_zero(columns) < std::countr_zero(rows)) // none: 64
          std::swap(rows, columns);
        for (Mask side : {step.how.reduced, rows, columns}) {
          work.sides[i++] = tile(side);
          side &= ~kernel_->loops;
          Term whole = full(side);
          if (step.how.reduced & side) // a looped axis can extend to all of it
            whole = times(whole, full(kernel_->loops & ~side));
          sides_.push_back({tile(side), whole});
        }
      } else {
        // What a loop adds up is counted where it is made, but for what it rescales on the way.
        if ((step.how.reduced & kernel_->loops) && kernel_->custom &&
            values_.all()[step.value].degrees.empty())
          work.each = 0;
        work.elements = padded_tile(a | b);
        if (step.how.op == Op::Unary || step.how.op == Op::Binary) {
          work.each = problem_.functions[step.how.function].flops;
          work.special = problem_.functions[step.how.function].special;
        }
      }
      work_.push_back(work);
      if (step.how.reduced & kernel_->loops)
        accumulators_.push_back(padded_tile(values_.all()[step.value].mask));
    }
    if (kernel_->custom)
      prepare_memory();
  }

  // Live ranges, as the program's checker counts them: from where a tile is made (an accumulator: from the
  // start) to its last use; what a loop does not change stays until the loop's end. Loads precede their
  // first use.
  void prepare_memory() {
    const auto n = static_cast<int>(kernel_->steps.size());
    int loop_end = 0;
    for (int i = 0; i < n; ++i)
      if (step(i).how.reduced & kernel_->loops)
        loop_end = i;
    const auto first_use = [&](ValueId v) {
      int first = 0;
      while (first + 1 < n && step(first).how.a != v && step(first).how.b != v)
        ++first;
      return first;
    };
    const auto last_use = [&](ValueId v, int from) {
      for (int i = n - 1; i > from; --i)
        if (step(i).how.a == v || step(i).how.b == v)
          return i;
      return from;
    };
    const auto hold = [&](Mask mask, double bytes, int from, int to) {
      Term t = padded_tile(mask);
      t.constant *= bytes;
      held_.push_back({t, from, to});
    };
    const auto bytes = static_cast<double>(sizes_.options_.intermediate_bytes);
    bytes_of_.assign(values_.all().size(), bytes);
    std::vector<ValueId> after; // a loop
    const auto stays = [&](ValueId v) {
      return kernel_->loops && !(values_.all()[v].mask & kernel_->loops) &&
             std::find(after.begin(), after.end(), v) == after.end();
    };
    Degrees stored; // of some leaf: its maximum is stored with it in fp32, as is what is combined with it
    for (ValueId leaf : kernel_->leaves) {
      const Value &value = values_.all()[leaf];
      const int first = first_use(leaf), last = last_use(leaf, first);
      bytes_of_[leaf] = static_cast<double>(values_.element_bytes(leaf));
      hold(value.mask, bytes_of_[leaf], first, stays(leaf) ? std::max(last, loop_end) : last);
      if (value.degrees.empty())
        continue;
      stored.insert(stored.end(), value.degrees.begin(), value.degrees.end());
      hold(value.mask, 2 * maximum_bytes, first, last);
      hold(values_.saved_mask(leaf), 2 * maximum_bytes, first, last);
      bytes_of_[leaf] = maximum_bytes;
    }
    for (int i = 0; i < n; ++i) {
      const auto &[v, how] = step(i);
      const Mask mask = values_.all()[v].mask;
      const bool accumulates = how.reduced & kernel_->loops;
      if (accumulates || std::find(after.begin(), after.end(), how.a) != after.end() ||
          std::find(after.begin(), after.end(), how.b) != after.end())
        after.push_back(v);
      bytes_of_[v] = std::max(bytes_of_[how.a], bytes_of_[how.b]);
      // An exponential is relative to the maximum of its tile, the running maximum, and their factor; or to a
      // stored maximum.
      if (const Mask over = how.op == Op::Unary ? problem_.functions[how.function].over : 0) {
        if (std::any_of(stored.begin(), stored.end(),
                        [&](const Degree &d) { return d.function == how.function; })) {
          bytes_of_[v] = maximum_bytes;
          hold(mask, maximum_bytes, i, i);
        }
        hold(mask & ~over, 3 * bytes_of_[v], 0, std::max(i, loop_end));
      }
      const bool output =
          std::find(kernel_->outputs.begin(), kernel_->outputs.end(), v) != kernel_->outputs.end();
      const int last = output ? n - 1 : last_use(v, i);
      hold(mask, bytes_of_[v], accumulates ? 0 : i, stays(v) ? std::max(last, loop_end) : last);
    }
    change_.resize(static_cast<std::size_t>(n) + 2);
  }
  const Step &step(int i) const { return kernel_->steps[static_cast<std::size_t>(i)]; }

  double peak_bytes() {
    std::fill(change_.begin(), change_.end(), 0.0);
    for (const Held &h : held_) {
      const double bytes = padded_value(h.bytes);
      change_[static_cast<std::size_t>(h.from)] += bytes;
      change_[static_cast<std::size_t>(h.to) + 1] -= bytes;
    }
    double live = 0, peak = 0;
    for (double c : change_)
      peak = std::max(peak, live += c);
    return peak;
  }

  void choose(std::size_t at, std::int64_t extent) {
    chosen_[at] = extent;
    const std::size_t n = std::size_t{1} << at;
    const auto tile = static_cast<double>(extent);
    const auto count = static_cast<double>(trips(units_[at].extent, extent));
    for (std::size_t i = 0; i < n; ++i) {
      tile_of_[n + i] = tile_of_[i] * tile;
      padded_of_[n + i] = padded_of_[i] * padded_tile_extent(extent);
      trips_of_[n + i] = trips_of_[i] * count;
    }
  }

  // Every assignment of the units that are still open, from this one on. A larger tile needs at least as much
  // memory, so where the smallest of the rest do not fit, nothing does, nor with a larger tile here.
  void assign(std::size_t at) {
    if (at == units_.size()) {
      if (legal())
        look();
      return;
    }
    for (std::int64_t extent : units_[at].choices) {
      choose(at, extent);
      for (std::size_t later = at + 1; later < units_.size(); ++later)
        choose(later, units_[later].choices.front());
      if (!fits())
        break;
      assign(at + 1);
    }
  }

  // Matrix instructions want 16 rows, columns and depth: tiles go below only where the program does.
  bool wide_enough(const Side &side) const {
    return value(side.tile) >= std::min(dot_extent_, value(side.whole));
  }

  // Drop the extents that are too small for a matrix product whatever the others are.
  bool drop_narrow() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      std::erase_if(units_[u].choices, [&](std::int64_t extent) {
        choose(u, extent);
        return std::any_of(sides_.begin(), sides_.end(), [&](const Side &side) {
          const auto alone = [&](std::uint8_t set) { return (set & ~(1u << u)) == 0; };
          return alone(side.tile.tiles) && alone(side.whole.tiles) && alone(side.whole.trips) &&
                 !wide_enough(side);
        });
      });
      if (units_[u].choices.empty())
        return false;
    }
    return true;
  }

  // Whether the current tiles fit the registers and the shared memory.
  bool fits() {
    double accumulators = 0;
    for (const Term &t : accumulators_)
      accumulators += 4 * padded_value(t);
    peak_ = kernel_->custom ? static_cast<std::int64_t>(peak_bytes()) : 0;
    return accumulators <= accumulator_bytes_ && peak_ <= target_.shared_per_block;
  }

  bool legal() const {
    std::ptrdiff_t grid = fixed_grid_;
    for (std::size_t u = 0; u < units_.size(); ++u)
      grid += units_[u].loop_factor < 0 && chosen_[u] < units_[u].extent;
    return grid <= grid_dimensions &&
           std::all_of(sides_.begin(), sides_.end(), [&](const Side &s) { return wide_enough(s); });
  }

  // Cost of the current assignment.
  void look() {
    ++counts_.size_points;
    KernelTraffic t;
    const double blocks = value(blocks_);
    t.blocks = static_cast<std::int64_t>(blocks);
    t.loop_trips = kernel_->loops ? static_cast<std::int64_t>(value(trips_)) : 0;
    t.shared_bytes = peak_;
    any_size_ = true;
    for (const Leaf &leaf : leaves_)
      t.move(target_, leaf.bytes * value(leaf.once), leaf.bytes * value(leaf.loaded) * blocks,
             run_bytes(leaf.run, leaf.bytes));
    for (const Saved &saved : saved_) {
      const double bytes = saved.bytes * value(saved.once);
      t.move(target_, bytes, bytes, run_bytes(saved.run, saved.bytes));
    }
    // The kernel without its computation is a lower bound.
    const double least = kernel_seconds(target_, t);
    if (least > limit_ || (any_ && least * 1000 + t.l2_bytes / target_.l2_bytes_per_second >= best_score_))
      return;
    for (const Work &work : work_) {
      const double times = value(work.times) * blocks;
      if (!work.dot) {
        t.vector_flops += times * work.each * padded_value(work.elements);
        t.special_operations += times * work.special * padded_value(work.elements);
        continue;
      }
      const auto side = [&](std::size_t i) { return value(work.sides[i]); };
      t.product(target_, side(1), side(2), side(0), times * padded_value(work.elements), work.operand_bytes);
    }
    const double seconds = kernel_seconds(target_, t);
    // Among equals, prefer the one that moves and computes less.
    const double work = t.tensor_flops / target_.tensor_flops + t.vector_flops / target_.vector_flops +
                        t.special_operations / target_.special_operations;
    const double score = seconds * 1000 + t.l2_bytes / target_.l2_bytes_per_second + work;
    if (seconds <= limit_ && (!any_ || score < best_score_)) {
      best_seconds_ = seconds;
      best_score_ = score;
      best_ = chosen_;
      any_ = true;
    }
  }

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

Sizer::Sizer(const Sizes &sizes) : work_(std::make_unique<Sizing>(sizes, *counts_)) {}
Sizer::Sizer(Sizer &&) noexcept = default;
Sizer::~Sizer() = default;

bool Sizer::optimize(const Kernel &kernel, double limit, std::int64_t split, Extents &out) {
  return work_->run(kernel, limit, split, out);
}

} // namespace superopt::search
