#include "cost/cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace superopt {

namespace {

double at_least_one(int64_t blocks) { return static_cast<double>(std::max<int64_t>(blocks, 1)); }

// The floor and what exceeds it overlap in part: a smooth maximum, so that less work is always less time.
double above_floor(const TargetNumbers &target, double seconds) {
  return std::sqrt(seconds * seconds + target.floor_seconds * target.floor_seconds);
}

} // namespace

int64_t resident_blocks(const TargetNumbers &target, int64_t shared_bytes) {
  if (shared_bytes <= 0)
    return target.blocks_per_multiprocessor;
  return std::clamp<int64_t>(target.shared_per_multiprocessor / shared_bytes, 1,
                             target.blocks_per_multiprocessor);
}

double waves(const TargetNumbers &target, int64_t blocks, int64_t resident) {
  return std::ceil(at_least_one(blocks) / static_cast<double>(target.multiprocessors * resident));
}

double busy_share(const TargetNumbers &target, int64_t blocks) {
  const double units = static_cast<double>(target.multiprocessors), all = at_least_one(blocks);
  return all / (std::ceil(all / units) * units);
}

double memory_rate(const TargetNumbers &target, double peak, int64_t blocks) {
  const double units = std::min(at_least_one(blocks), static_cast<double>(target.multiprocessors));
  return std::min(peak, units * target.multiprocessor_bytes_per_second);
}

double sector_share(double run) { return std::ceil(run / sector_bytes) * sector_bytes / run; }

double padded(double side) {
  return static_cast<double>(std::bit_ceil(static_cast<uint64_t>(std::max(std::ceil(side), 1.0))));
}

void KernelTraffic::move(const TargetNumbers &target, double tensor_bytes, double moved, double run) {
  moved *= sector_share(run);
  const double times =
      tensor_bytes <= target.l2_capacity ? 1 : waves(target, blocks, resident_blocks(target, shared_bytes));
  dram_bytes += std::min(moved, tensor_bytes * times);
  l2_bytes += moved;
}

void KernelTraffic::product(const TargetNumbers &target, double rows, double columns, double depth,
                            double times, int64_t operand_bytes) {
  const double side = static_cast<double>(target.matrix_side), wide = static_cast<double>(target.matrix_rows);
  rows = padded(rows), columns = padded(columns), depth = padded(depth);
  if (operand_bytes > 2) {
    vector_flops += 2 * rows * columns * depth * times;
    return;
  }
  rows = std::max(rows, side);
  if (rows < wide)
    rows = std::min(2 * rows, wide);
  tensor_flops += 2 * rows * std::max(columns, side) * std::max(depth, side) * times;
}

double kernel_seconds(const TargetNumbers &target, const KernelTraffic &kernel) {
  if (kernel.shared_bytes > target.shared_per_block)
    return std::numeric_limits<double>::infinity();
  const double memory =
      std::max(kernel.dram_bytes / memory_rate(target, target.dram_bytes_per_second, kernel.blocks),
               kernel.l2_bytes / memory_rate(target, target.l2_bytes_per_second, kernel.blocks));
  const double compute =
      (kernel.tensor_flops / target.tensor_flops + kernel.vector_flops / target.vector_flops +
       kernel.special_operations / target.special_operations) /
      busy_share(target, kernel.blocks);
  const double trips = static_cast<double>(std::max<int64_t>(kernel.loop_trips, 1));
  const double latency = waves(target, kernel.blocks, resident_blocks(target, kernel.shared_bytes)) * trips *
                         target.iteration_seconds;
  const double parts =
      trips * std::ceil(at_least_one(kernel.blocks) / static_cast<double>(target.multiprocessors));
  const double streamed = std::max(memory, compute) + std::min(memory, compute) / parts;
  return target.launch_seconds + above_floor(target, std::max(streamed, latency));
}

double least_seconds(const TargetNumbers &target, double bytes) {
  return target.launch_seconds + above_floor(target, bytes / target.dram_bytes_per_second);
}

double most_bytes(const TargetNumbers &target, double seconds) {
  return (seconds - target.launch_seconds) * target.dram_bytes_per_second;
}

double product_bytes(const TargetNumbers &target, double flops) {
  return flops / target.tensor_flops * target.dram_bytes_per_second;
}

double launch_bytes(const TargetNumbers &target) {
  return target.launch_seconds * target.dram_bytes_per_second;
}

} // namespace superopt
