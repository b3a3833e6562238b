// The analytic cost of one kernel: a roofline with waves, launches and loop latency, and the counting of what
// goes into it.
//
// One formula and one way of counting for everything: the search sizes and bounds kernels with them,
// extraction ranks kernels, and `superopt.cost` ranks whole programs. The numbers come from a target's data
// file.
#pragma once

#include <cstdint>

namespace superopt {

struct TargetNumbers {
  double launch_seconds = 0;    // of an empty kernel, back to back
  double iteration_seconds = 0; // exposed latency of one pipelined loop trip
  double dram_bytes_per_second = 0;
  double l2_bytes_per_second = 0;
  double l2_capacity = 0;  // bytes
  double tensor_flops = 0; // dense matrix rate, 16-bit operands, fp32 accumulation
  double vector_flops = 0; // fp32 rate outside the matrix units
  int64_t multiprocessors = 1;
  int64_t shared_per_block = 0; // bytes, the opt-in maximum
  int64_t shared_per_multiprocessor = 0;
  int64_t blocks_per_multiprocessor = 1; // most resident blocks, whatever their memory
  int64_t registers = 0;                 // of a multiprocessor, 32 bits each; one block may use all
  int64_t matrix_side = 1;               // fewest rows, columns and depth that matrix units multiply
};

// What one kernel moves and computes, over all its blocks.
struct KernelTraffic {
  double dram_bytes = 0;   // each distinct byte once where re-reads hit L2
  double l2_bytes = 0;     // every tile load and store of every block
  double tensor_flops = 0; // of matrix products
  double vector_flops = 0; // of everything else
  int64_t blocks = 1;
  int64_t shared_bytes = 0; // of one block
  int64_t loop_trips = 0;   // of one block, over all its loops

  // Blocks load and store `moved` bytes in all of a tensor. Device memory sees each of its bytes once if the
  // tensor stays in L2. A larger one is moved again by each wave of blocks, as blocks of one wave share what
  // they stream. Call it once `blocks` and `shared_bytes` are set.
  void move(const TargetNumbers &target, double tensor_bytes, double moved);

  // A product of `rows` x `depth` and `depth` x `columns`, `times` times. Matrix units take 16-bit operands,
  // and do as much work where a side is short.
  void product(const TargetNumbers &target, double rows, double columns, double depth, double times,
               int64_t operand_bytes);
};

// Blocks that a multiprocessor holds at once, by their shared memory; at least one.
int64_t resident_blocks(const TargetNumbers &target, int64_t shared_bytes);

// Rounds that the blocks of a kernel take where each multiprocessor holds `resident` at once.
double waves(const TargetNumbers &target, int64_t blocks, int64_t resident);

// The share of the matrix and vector units that the blocks keep busy: compute runs at the pace of the busiest
// multiprocessor, in whole rounds of one block each.
double busy_share(const TargetNumbers &target, int64_t blocks);

// The share of the memory rates that the blocks reach: memory saturates once about half of the
// multiprocessors stream.
double streaming_share(const TargetNumbers &target, int64_t blocks);

// Seconds that a kernel takes, launch included; infinity where a block exceeds the shared memory.
double kernel_seconds(const TargetNumbers &target, const KernelTraffic &kernel);

// The least seconds of a kernel that moves this many bytes of device memory, and the inverse.
double least_seconds(const TargetNumbers &target, double bytes);
double most_bytes(const TargetNumbers &target, double seconds);

// Bytes of device memory that can be moved during this many flops of matrix products, and during a launch.
double product_bytes(const TargetNumbers &target, double flops);
double launch_bytes(const TargetNumbers &target);

} // namespace superopt
