// The analytic cost of one kernel: a roofline with waves, launches and loop latency.
//
// One formula for everything: the search sizes and bounds with it, and `superopt.cost` ranks whole programs
// with it. Its inputs are counted elsewhere; its numbers come from a target's data file.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace superopt {

struct TargetNumbers {
  double launch_seconds = 0;    // of an empty kernel, back to back
  double iteration_seconds = 0; // latency of one pipelined loop trip that nothing else hides
  double dram_bytes_per_second = 0;
  double l2_bytes_per_second = 0;
  double l2_capacity = 0;  // bytes
  double tensor_flops = 0; // dense matrix rate, 16-bit operands, fp32 accumulation
  double vector_flops = 0; // fp32 rate outside the matrix units
  int64_t multiprocessors = 1;
  int64_t shared_per_block = 0; // bytes, the opt-in maximum
  int64_t shared_per_multiprocessor = 0;
  int64_t blocks_per_multiprocessor = 1; // resident at most, whatever their memory
};

struct KernelTraffic {
  double dram_bytes = 0;   // each distinct byte once where re-reads hit L2
  double l2_bytes = 0;     // every tile load and store of every block
  double tensor_flops = 0; // of matrix products
  double vector_flops = 0; // of everything else
  int64_t blocks = 1;
  int64_t shared_bytes = 0; // of one block
  int64_t loop_trips = 0;   // of one block, over all its loops
};

// Seconds that a kernel takes, launch included; infinity where a block exceeds the shared memory.
inline double kernel_seconds(const TargetNumbers &target, const KernelTraffic &kernel) {
  if (kernel.shared_bytes > target.shared_per_block)
    return INFINITY;
  const double units = static_cast<double>(target.multiprocessors);
  const double blocks = static_cast<double>(std::max<int64_t>(kernel.blocks, 1));
  const int64_t by_memory = kernel.shared_bytes > 0 ? target.shared_per_multiprocessor / kernel.shared_bytes
                                                    : target.blocks_per_multiprocessor;
  const double resident =
      static_cast<double>(std::clamp<int64_t>(by_memory, 1, target.blocks_per_multiprocessor));

  // Compute runs at the pace of the busiest multiprocessor: whole rounds of one block each.
  const double rounds = std::ceil(blocks / units);
  const double busy = blocks / (rounds * units);
  // Memory saturates once about half of the multiprocessors stream.
  const double streaming = std::min(1.0, 2.0 * std::min(blocks, units) / units);

  const double memory = std::max(kernel.dram_bytes / (target.dram_bytes_per_second * streaming),
                                 kernel.l2_bytes / (target.l2_bytes_per_second * streaming));
  const double compute =
      std::max(kernel.tensor_flops / target.tensor_flops, kernel.vector_flops / target.vector_flops) / busy;
  const double waves = std::ceil(blocks / (units * resident));
  const double latency =
      waves * static_cast<double>(std::max<int64_t>(kernel.loop_trips, 1)) * target.iteration_seconds;
  return target.launch_seconds + std::max({memory, compute, latency});
}

} // namespace superopt
