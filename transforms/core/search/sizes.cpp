#include "search/sizes.hpp"

#include <algorithm>
#include <bit>

namespace superopt::search {
namespace {

constexpr std::int64_t dot_extent = 16;               // smallest side of a matrix instruction
constexpr std::int64_t largest_tile = 512;            // of a partitioned axis
constexpr std::int64_t accumulator_bytes = 128 << 10; // fp32, half of the register file
constexpr int grid_dimensions = 3;

std::int64_t product(Mask mask, const std::vector<std::int64_t> &extents) {
  std::int64_t p = 1;
  for (Mask rest = mask; rest; rest &= rest - 1)
    p *= extents[static_cast<std::size_t>(std::countr_zero(rest))];
  return p;
}

// Powers of two that divide `extent`, up to the largest tile, and `extent` itself where it is none.
std::vector<std::int64_t> tiles(std::int64_t extent, std::int64_t smallest) {
  std::vector<std::int64_t> out;
  for (std::int64_t t = 1; t <= std::min(extent, largest_tile) && extent % t == 0; t *= 2)
    if (t >= smallest || t == extent)
      out.push_back(t);
  if (out.empty() || (out.back() != extent && !std::has_single_bit(static_cast<std::uint64_t>(extent)) &&
                      extent <= 2 * largest_tile))
    out.push_back(extent);
  return out;
}

bool is_dot(const Step &step) { return step.how.op == Op::Contract; }

} // namespace

struct Sizes::Unit {
  std::uint32_t tile_factor; // the factor whose tile extent is chosen
  std::int64_t loop_factor;  // the factor that takes the rest as trips, or -1 (the rest is the grid)
  std::int64_t extent;
  std::vector<std::int64_t> choices;
};

std::int64_t Sizes::bytes_of(ValueId v) const {
  const Value &value = values_.all()[v];
  if (value.leaf && !value.constant)
    return values_.problem().roles[value.derivations[0].function].element_bytes;
  return options_.intermediate_bytes;
}

// Matrix instructions want 16 rows, columns and depth: tiles go below only where the program does.
bool Sizes::fits_dots(const Kernel &kernel) const {
  for (const Step &step : kernel.steps) {
    if (!is_dot(step))
      continue;
    const Mask a = values_.all()[step.how.a].mask, b = values_.all()[step.how.b].mask;
    for (Mask side : {step.how.reduced, a & ~b, b & ~a}) {
      side &= ~kernel.loops;
      std::int64_t whole = product(side, kernel.full);
      if (step.how.reduced & side) // a looped axis: what it could be is all of it
        whole *= product(kernel.loops & ~side, kernel.full);
      if (product(side, kernel.tile) < std::min(dot_extent, whole))
        return false;
    }
  }
  return true;
}

// The most bytes live at once. Loaded tiles that vary are double-buffered; accumulators live from the start.
std::int64_t Sizes::block_bytes(const Kernel &kernel) const {
  const auto n = static_cast<int>(kernel.steps.size());
  std::vector<std::int64_t> change(static_cast<std::size_t>(n) + 2, 0);
  const auto hold = [&](int from, int to, std::int64_t bytes) {
    change[static_cast<std::size_t>(from)] += bytes;
    change[static_cast<std::size_t>(to) + 1] -= bytes;
  };
  int loop_end = 0;
  for (int i = 0; i < n; ++i)
    if (kernel.steps[static_cast<std::size_t>(i)].how.reduced & kernel.loops)
      loop_end = i;
  const auto last_use = [&](ValueId v, int from) {
    int last = from;
    for (int i = 0; i < n; ++i)
      if (const Derivation &how = kernel.steps[static_cast<std::size_t>(i)].how; how.a == v || how.b == v)
        last = i;
    return last;
  };
  for (ValueId leaf : kernel.leaves) {
    const Mask mask = values_.all()[leaf].mask;
    const bool varies = mask & kernel.loops;
    const std::int64_t bytes = product(mask, kernel.tile) * bytes_of(leaf);
    const int last = last_use(leaf, 0);
    hold(0, std::max(last, loop_end), varies ? 2 * bytes : bytes);
  }
  for (int i = 0; i < n; ++i) {
    const Step &step = kernel.steps[static_cast<std::size_t>(i)];
    const bool accumulates = step.how.reduced & kernel.loops;
    const bool output =
        std::find(kernel.outputs.begin(), kernel.outputs.end(), step.value) != kernel.outputs.end();
    const std::int64_t bytes =
        product(values_.all()[step.value].mask, kernel.tile) * options_.intermediate_bytes;
    hold(accumulates ? 0 : i, output ? n - 1 : last_use(step.value, i), bytes);
  }
  std::int64_t live = 0, peak = 0;
  for (std::int64_t c : change)
    peak = std::max(peak, live += c);
  return peak;
}

KernelTraffic Sizes::traffic(const Kernel &kernel) const {
  KernelTraffic t;
  Mask outer = ~Mask{0};
  for (ValueId output : kernel.outputs)
    outer &= values_.saved_mask(output);
  outer &= ~kernel.reduced;
  const std::int64_t trips = product(kernel.loops, kernel.full);
  std::int64_t blocks = 1;
  for (std::size_t f = 0; f < kernel.tile.size(); ++f)
    if (outer >> f & 1)
      blocks *= kernel.full[f] / kernel.tile[f];
  t.blocks = blocks;
  t.loop_trips = kernel.loops ? trips : 0;
  const auto iterations = [&](Mask mask) { return product(mask & kernel.loops, kernel.full); };
  if (kernel.custom)
    t.shared_bytes = block_bytes(kernel);
  const TargetNumbers &target = options_.target;
  const std::int64_t resident =
      std::clamp<std::int64_t>(t.shared_bytes ? target.shared_per_multiprocessor / t.shared_bytes : 64, 1,
                               target.blocks_per_multiprocessor);
  const double waves =
      std::ceil(static_cast<double>(blocks) / static_cast<double>(target.multiprocessors * resident));
  for (ValueId leaf : kernel.leaves) {
    const Mask mask = values_.all()[leaf].mask;
    const auto bytes = static_cast<double>(bytes_of(leaf));
    const double once = bytes * static_cast<double>(product(mask, kernel.full));
    const double loaded = bytes * static_cast<double>(product(mask, kernel.tile) * iterations(mask) * blocks);
    // What does not stay in L2 is read again by each wave of blocks; those of one wave share it.
    t.dram_bytes += once <= target.l2_capacity ? once : std::min(loaded, once * std::max(waves, 1.0));
    t.l2_bytes += loaded;
  }
  for (ValueId output : kernel.outputs) {
    const double bytes = static_cast<double>(options_.intermediate_bytes) *
                         static_cast<double>(product(values_.all()[output].mask, kernel.full));
    t.dram_bytes += bytes;
    t.l2_bytes += bytes;
  }
  for (const Step &step : kernel.steps) {
    const Mask a = values_.all()[step.how.a].mask, b = values_.all()[step.how.b].mask;
    const double times = static_cast<double>(iterations(a | b) * blocks);
    if (is_dot(step)) {
      double flops = 2 * static_cast<double>(product(a & b & ~step.how.reduced, kernel.tile));
      for (Mask side : {step.how.reduced, a & ~b, b & ~a})
        flops *= static_cast<double>(std::max(dot_extent, product(side, kernel.tile)));
      t.tensor_flops += times * flops;
    } else {
      const bool opaque = step.how.op == Op::Unary || step.how.op == Op::Binary;
      const double each = opaque ? values_.problem().functions[step.how.function].flops : 1;
      t.vector_flops += times * each * static_cast<double>(product(a | b, kernel.tile));
    }
  }
  if (!kernel.custom) { // a library splits what would leave multiprocessors idle
    t.blocks = std::max(t.blocks, options_.target.multiprocessors);
    t.loop_trips = 0;
  }
  return t;
}

bool Sizes::optimize(Kernel &kernel, double limit, std::int64_t split) {
  const Problem &problem = values_.problem();
  kernel.tile.assign(problem.factors.size(), 1);
  kernel.full.assign(problem.factors.size(), 1);
  Mask present = 0, outer = ~Mask{0};
  for (ValueId leaf : kernel.leaves)
    present |= values_.all()[leaf].mask;
  for (const Step &step : kernel.steps)
    present |= values_.all()[step.value].mask;
  for (ValueId output : kernel.outputs)
    outer &= values_.saved_mask(output);
  outer &= ~kernel.reduced;

  std::vector<Unit> units;
  for (const Axis &axis : problem.axes) {
    if (!(axis.mask & present))
      continue;
    const std::uint32_t tile_factor = axis.factors.back();
    std::int64_t extent = axis.extent;
    // The split factor stands apart where some value has it alone, or the rest of the axis is reduced without
    // it.
    if (const std::uint32_t f = axis.factors[0]; problem.factors[f].level == Level::Split) {
      const Mask bit = Mask{1} << f;
      const auto has_it_alone = [&](ValueId v) { return (values_.all()[v].mask & axis.mask) == bit; };
      const bool apart = ((axis.mask & kernel.reduced) && !(kernel.reduced & bit)) ||
                         std::any_of(kernel.leaves.begin(), kernel.leaves.end(), has_it_alone) ||
                         std::any_of(kernel.steps.begin(), kernel.steps.end(),
                                     [&](const Step &s) { return has_it_alone(s.value); });
      if (apart) {
        if (extent % split != 0 || extent / split < 2)
          return false;
        extent /= split;
        kernel.full[f] = split;
        kernel.tile[f] = outer & bit ? 1 : split;
        if ((axis.mask & present) == bit)
          continue;
      }
    }
    std::int64_t loop_factor = -1;
    for (std::uint32_t f : axis.factors)
      if (problem.factors[f].level == Level::Loop && (kernel.loops >> f & 1))
        loop_factor = f;
    if (loop_factor < 0 && !(outer >> tile_factor & 1)) {
      kernel.full[tile_factor] = kernel.tile[tile_factor] = extent;
      continue;
    }
    Unit unit{tile_factor, loop_factor, extent, tiles(extent, 1)};
    if (loop_factor >= 0)
      std::erase_if(unit.choices,
                    [&](std::int64_t t) { return t == extent || (t < dot_extent && extent >= 128); });
    else
      kernel.full[tile_factor] = extent;
    if (unit.choices.empty())
      return false;
    units.push_back(std::move(unit));
  }

  // What no choice of extents can avoid: a launch, and every byte once.
  double compulsory = 0;
  for (const auto &list : {kernel.leaves, kernel.outputs})
    for (ValueId v : list) {
      double bytes = static_cast<double>(bytes_of(v));
      for (const Axis &axis : problem.axes) {
        const Mask part = values_.all()[v].mask & axis.mask;
        if (part)
          bytes *= static_cast<double>(part == axis.mask ? axis.extent : split);
      }
      compulsory += bytes;
    }
  if (options_.target.launch_seconds + compulsory / options_.target.dram_bytes_per_second > limit) {
    ++counts_.by_bound;
    return false;
  }

  double best = 0, best_score = 0;
  bool any = false, any_size = false;
  std::vector<std::int64_t> best_tile, best_full;
  const auto search = [&](auto &self, std::size_t at) -> void {
    if (at == units.size()) {
      int grid = 0;
      std::int64_t accumulators = 0;
      for (std::size_t f = 0; f < kernel.tile.size(); ++f)
        grid += (outer >> f & 1) && kernel.full[f] > kernel.tile[f];
      if (grid > grid_dimensions || !fits_dots(kernel))
        return;
      for (const Step &step : kernel.steps)
        if (step.how.reduced & kernel.loops)
          accumulators += 4 * product(values_.all()[step.value].mask, kernel.tile);
      if (accumulators > accumulator_bytes)
        return;
      ++counts_.size_points;
      any_size = true;
      const KernelTraffic t = traffic(kernel);
      const double seconds = kernel_seconds(options_.target, t);
      // Among equals the one that moves and computes less.
      const double score = seconds * 1000 + t.l2_bytes / options_.target.l2_bytes_per_second +
                           t.tensor_flops / options_.target.tensor_flops +
                           t.vector_flops / options_.target.vector_flops;
      if (seconds <= limit && (!any || score < best_score)) {
        best = seconds;
        best_score = score;
        best_tile = kernel.tile;
        best_full = kernel.full;
        any = true;
      }
      return;
    }
    const Unit &unit = units[at];
    for (std::int64_t t : unit.choices) {
      kernel.tile[unit.tile_factor] = t;
      if (unit.loop_factor >= 0) {
        kernel.full[unit.tile_factor] = t;
        kernel.full[static_cast<std::size_t>(unit.loop_factor)] = unit.extent / t;
      }
      self(self, at + 1);
    }
  };
  search(search, 0);
  if (!any) {
    ++(any_size ? counts_.by_bound : counts_.by_memory);
    return false;
  }
  ++counts_.sized;
  kernel.tile = std::move(best_tile);
  kernel.full = std::move(best_full);
  kernel.seconds = best;
  kernel.score = best_score;
  return true;
}

} // namespace superopt::search
