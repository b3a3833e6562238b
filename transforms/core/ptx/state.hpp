// What a block has: registers, memory, who touched it last, and what is counted.
#pragma once

#include <array>
#include <vector>

#include "ptx/program.hpp"

namespace superopt::ptx {

// What a register holds for one thread.
// Address: in device memory, an offset of bytes (`values_`) from a buffer (`highs_`), or from scratch after
// the last one. It has no bits: where memory lies differs from launch to launch.
// Tensor: the same in tensor memory, lanes above columns, from an allocation's start: other blocks share it.
// Shared: an integer that moves with where shared memory starts (place.cpp).
enum class Tag : u8 { Undefined, Bits, Number, Mixed, Address, Shared, Tensor };

// Sixteen bits of anything: 3 bits of tag, then the bits themselves or a number's handle.
using Cell = u32;
// Low, High: the words of an fp32 number; Map: two bytes of a tensor map, by its number and their place, or
// what an atomic returned (`kOld`), which nobody may read, or a word of where tensor memory was allocated
// (from `kAllocated` on); Bytes: a pair of `Byte`s, by its number.
enum class Part : u8 { Undefined, Bits, Half, Brain, Low, High, Map, Bytes };
constexpr bool isNumber(Part part) { return part >= Part::Half && part <= Part::High; }
constexpr Cell cell(Part part, u32 value) { return static_cast<u32>(part) << 29 | value; }
constexpr Part partOf(Cell c) { return static_cast<Part>(c >> 29); }
constexpr u32 valueOf(Cell c) { return c & ((1u << 29) - 1); }

// Eight bits of anything, tagged in the same way: bits, the handle of an fp8 number or of a truth value, or a
// byte of an integer that was loaded, by the number of its `Whole`.
enum class Byte : u8 { Undefined, Bits, E4M3, E5M2, Truth, Whole };
constexpr Cell byte(Byte tag, u32 value) { return static_cast<u32>(tag) << 29 | value; }
constexpr Byte tagOf(Cell c) { return static_cast<Byte>(c >> 29); }
constexpr u32 kOld = static_cast<u32>(Part::Map) << 29 | ((1u << 29) - 1);
constexpr u32 kAllocated = static_cast<u32>(Part::Map) << 29 | 1u << 28; // two for each allocation

// Byte `at` of an integer of `size` bytes that was loaded: data, whose bits nobody knows. At `size`, a byte
// that its sign fills.
struct Whole {
  u32 of; // the number's handle
  u8 at, size;
};

// Who wrote something: a thread, several of one warp (this and the warp's number), of several warps, or
// nobody.
constexpr u16 kNobody = 0xffff, kSeveral = 0xfffe, kSomeOfWarp = 0x8000;
// Once there are so many numbers, or twice those that were held last, those that nothing holds are dropped:
// few enough for a cache. And how many may be held.
constexpr std::size_t kCompactAt = std::size_t{1} << 19, kMostHeld = std::size_t{1} << 22;
constexpr unsigned kBufferBits = 40;    // of offsets in a buffer, in what `Machine::globalAddress` returns
constexpr unsigned kAligned = 16;       // bytes; the launcher promises no more
constexpr u64 kMostWork = u64{1} << 34; // so that steps fit 32 bits
constexpr u64 kPlaceStep = 1024;        // bytes; shared memory starts at a multiple

constexpr std::size_t kWarp = 32, kStreams = 2, kParts = 4; // warps of a warp group
constexpr std::size_t kMostDepth = 32;                      // of a product of the tensor core

// Who accessed sixteen bits last: enough to say whether the next access is ordered after.
struct Slot {
  Cell held = 0;
  u32 writeEpoch = 0, writeWarpEpoch = 0, writeStep = 0;
  u32 readEpoch = 0, readWarpEpoch = 0;
  u16 writer = kNobody, reader = kNobody, readWarp = kNobody;
  bool inFlight = false, barrier = false;
  // Whether the upper byte was written by itself: by whom and when, where the above says so of the lower one.
  // Of a slot that atomics change, `upper` is the write before the first of them.
  bool split = false;
  u8 atomic = 0; // the atomic that wrote it last, from one; 0 for none
  struct {
    u32 epoch = 0, warpEpoch = 0, step = 0;
    u16 writer = kNobody;
  } upper{};
  std::array<u32, kStreams> asyncRead{}; // the last asynchronous operation of each stream that reads it
  u32 bulkWrite = 0;                     // the bulk copy that wrote it last, from one; 0 for none
  u32 bulkReads = 0;                     // bulk copies that read it and were not waited for
};

// What tensormap.replace has set (PTX ISA, "Tensor-map"), in the units of its operands; `rank` is one less.
struct TensorMap {
  u64 address = 0;
  u32 rank = 0, type = 0, interleave = 0, swizzle = 0, fill = 0;
  std::array<u64, 5> box{}, extent{}, elementStride{}, stride{}; // bytes, from the second dimension on
};
enum class MapField : u8 {
  Address,
  Rank,
  Box,
  Extent,
  Stride,
  ElementStride,
  Type,
  Interleave,
  Swizzle,
  Fill
};

// The same for 32 bits of tensor memory; `pending` is an asynchronous write, by the tensor core.
struct TensorCell {
  Cell low = 0, high = 0;
  u32 writeEpoch = 0, readEpoch = 0, pending = 0, reading = 0;
  u64 product = 0; // where the matrix begins that is pending, and its shape
  u16 writer = kNobody, reader = kNobody;
  bool storing = false, loading = false; // until its thread waits
};

struct Buffer {
  std::size_t elements;
  Type type; // F32, F16, BF16, E4M3, E5M2 or an integer
  bool writable;
  const u64 *p, *q;   // contents, or null: never stored; `q` alone may be null
  std::size_t period; // contents repeat after so many elements
  // Where not empty, contents are drawn when they are read: the key of each residue.
  std::vector<u64> keys{};
};

struct Stored {
  Number value;
  u32 epoch, step;
  u16 thread;
  u32 warpEpoch = 0;
  bool bulk = false; // by a bulk copy, which ends some time later
  u8 atomic = 0; // what atomics have made of contributions so far, by their operation from one; 0 for none
};

struct Read {
  u32 epoch, warpEpoch;
  u16 thread;
};

// What a launch is charged for; see cost/counted.py.
struct Counts {
  std::array<u64, 3> sectors{}, neededSectors{};      // load, store, copy
  std::array<u64, 4> wavefronts{}, idealWavefronts{}; // load, store, copy, matrix
  std::vector<u64> executed;                          // by instruction: warps that executed it
  std::vector<u64> waits,
      inFlight; // by instruction: waits for copies, and bytes that were then under way in all
};

} // namespace superopt::ptx
