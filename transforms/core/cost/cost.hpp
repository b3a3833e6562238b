// The analytic cost of one kernel: a roofline with waves, launches and loop latency, and the counting of what
// goes into it.
//
//   seconds = launch + root(floor^2 + max(streamed, latency)^2)
//   streamed = max(memory, compute) + min(memory, compute) / (trips and blocks that a multiprocessor runs)
//   memory  = bytes over the rate of device memory or of L2, of which one multiprocessor gets only so much
//   compute = (matrix + vector + special operations, each over its rate) / share of the multiprocessors busy
//   latency = waves * trips of the loops, one after the other
//
// Nothing is computed before the first part is loaded, nor loaded while the last is computed.
// The three kinds of operations add up: a product waits for the softmax that feeds it, and special functions
// take issue slots from the rest (Shah et al., FlashAttention-3, 2024, section 3.1).
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
  double floor_seconds = 0;     // of a kernel that loads and stores anything at all, beyond its launch
  double dram_bytes_per_second = 0;
  double l2_bytes_per_second = 0;
  double multiprocessor_bytes_per_second = 0; // that one multiprocessor can move, from wherever
  double l2_capacity = 0;                     // bytes
  double tensor_flops = 0;                    // dense matrix rate, 16-bit operands, fp32 accumulation
  double vector_flops = 0;                    // fp32 rate outside the matrix units
  double special_operations = 0; // a second: exponentials, logarithms, roots, quotients (the MUFU pipe)
  int64_t multiprocessors = 1;
  int64_t shared_per_block = 0; // bytes, the opt-in maximum
  int64_t shared_per_multiprocessor = 0;
  int64_t blocks_per_multiprocessor = 1; // most resident blocks, whatever their memory
  int64_t registers = 0;                 // of a multiprocessor, 32 bits each; one block may use all
  int64_t matrix_side = 1;               // fewest rows, columns and depth that matrix units multiply
  int64_t matrix_rows = 1;               // of a tile at which they reach their rate
};

// What one kernel moves and computes, over all its blocks.
struct KernelTraffic {
  double dram_bytes = 0;         // each distinct byte once where re-reads hit L2
  double l2_bytes = 0;           // every tile load and store of every block
  double tensor_flops = 0;       // that the matrix units are busy with, padding included
  double vector_flops = 0;       // of everything else
  double special_operations = 0; // those among them that only the special function units do
  int64_t blocks = 1;
  int64_t shared_bytes = 0; // of one block
  int64_t loop_trips = 0;   // of one block: loops within loops multiply, those one after the other add up

  // Blocks load and store `moved` bytes in all of a tensor, `run` of them one after the other. Memory moves
  // whole sectors. Device memory sees each byte of the tensor once if it stays in L2. A larger one is moved
  // again by each wave of blocks, as blocks of one wave share what they stream. Call it once `blocks` and
  // `shared_bytes` are set.
  void move(const TargetNumbers &target, double tensor_bytes, double moved, double run);

  // Products of tiles, `rows` x `depth` and `depth` x `columns`, `times` of them. Tiles are padded to powers
  // of two, and computed with their padding. Matrix units take 16-bit operands, and do as much work where a
  // side is short; with too few rows for their wide instructions they run at half their rate.
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

// Bytes a second that the blocks move where the memory does `peak`: the multiprocessors that have a block
// pull only so much each.
double memory_rate(const TargetNumbers &target, double peak, int64_t blocks);

inline constexpr double sector_bytes = 32; // of L2 and device memory, on every GPU that CUDA knows

// How many times as many bytes memory moves where `run` bytes lie one after the other: whole sectors of 32.
double sector_share(double run);

// A tile's side as it is computed: the next power of two.
double padded(double side);

// Seconds that a kernel takes, launch included; infinity where a block exceeds the shared memory.
double kernel_seconds(const TargetNumbers &target, const KernelTraffic &kernel);

// The least seconds of a kernel that moves this many bytes of device memory, and the inverse.
double least_seconds(const TargetNumbers &target, double bytes);
double most_bytes(const TargetNumbers &target, double seconds);

// Bytes of device memory that can be moved during this many flops of matrix products, and during a launch.
double product_bytes(const TargetNumbers &target, double flops);
double launch_bytes(const TargetNumbers &target);

} // namespace superopt
