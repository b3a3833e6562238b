#include "cost/cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace superopt {

namespace {

double at_least_one(int64_t blocks) { return static_cast<double>(std::max<int64_t>(blocks, 1)); }

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

double streaming_share(const TargetNumbers &target, int64_t blocks) {
  const double units = static_cast<double>(target.multiprocessors);
  return std::min(1.0, 2.0 * std::min(at_least_one(blocks), units) / units);
}

void KernelTraffic::move(const TargetNumbers &target, double tensor_bytes, double moved) {
  const double times =
      tensor_bytes <= target.l2_capacity ? 1 : waves(target, blocks, resident_blocks(target, shared_bytes));
  dram_bytes += std::min(moved, tensor_bytes * times);
  l2_bytes += moved;
}

void KernelTraffic::product(const TargetNumbers &target, double rows, double columns, double depth,
                            double times, int64_t operand_bytes) {
  const double side = static_cast<double>(target.matrix_side);
  if (operand_bytes <= 2)
    tensor_flops += 2 * std::max(rows, side) * std::max(columns, side) * std::max(depth, side) * times;
  else
    vector_flops += 2 * rows * columns * depth * times;
}

double kernel_seconds(const TargetNumbers &target, const KernelTraffic &kernel) {
  if (kernel.shared_bytes > target.shared_per_block)
    return std::numeric_limits<double>::infinity();
  const double streaming = streaming_share(target, kernel.blocks);
  const double memory = std::max(kernel.dram_bytes / (target.dram_bytes_per_second * streaming),
                                 kernel.l2_bytes / (target.l2_bytes_per_second * streaming));
  const double compute =
      std::max(kernel.tensor_flops / target.tensor_flops, kernel.vector_flops / target.vector_flops) /
      busy_share(target, kernel.blocks);
  const double latency = waves(target, kernel.blocks, resident_blocks(target, kernel.shared_bytes)) *
                         static_cast<double>(std::max<int64_t>(kernel.loop_trips, 1)) *
                         target.iteration_seconds;
  return target.launch_seconds + std::max({memory, compute, latency});
}

double least_seconds(const TargetNumbers &target, double bytes) {
  return target.launch_seconds + bytes / target.dram_bytes_per_second;
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
