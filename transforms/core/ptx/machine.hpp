// One block of a kernel, run instruction by instruction, all its threads side by side.
//
// Threads run by least program counter until a barrier. What is checked is not this schedule but the order
// that holds under every schedule (`Slot`): a block without races stores the same under all of them.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>

#include "ptx/program.hpp"

namespace superopt::ptx {

// What a register holds for one thread.
enum class Tag : u8 { Undefined, Bits, Number, Mixed };

// Sixteen bits of anything: 3 bits of tag, then the bits themselves or a number's handle.
using Cell = u32;
enum class Part : u8 { Undefined, Bits, Half, Brain, Low, High }; // Low, High: the words of an fp32 number
constexpr Cell cell(Part part, u32 value) { return static_cast<u32>(part) << 29 | value; }
constexpr Part partOf(Cell c) { return static_cast<Part>(c >> 29); }
constexpr u32 valueOf(Cell c) { return c & ((1u << 29) - 1); }

constexpr u16 kNobody = 0xffff, kSeveral = 0xfffe;
constexpr u32 kSharedBase = 1024;
constexpr std::size_t kWarp = 32, kStreams = 2;

// Who accessed sixteen bits last: enough to say whether the next access is ordered after.
struct Slot {
  Cell held = 0;
  u32 writeEpoch = 0, writeWarpEpoch = 0, writeStep = 0;
  u32 readEpoch = 0, readWarpEpoch = 0;
  u16 writer = kNobody, reader = kNobody, readWarp = kNobody;
  bool inFlight = false, barrier = false;
  std::array<u32, kStreams> asyncRead{}; // the last asynchronous operation of each stream that reads it
};

// The same for 32 bits of tensor memory; `pending` is an asynchronous write, by the tensor core.
struct TensorCell {
  Cell low = 0, high = 0;
  u32 writeEpoch = 0, readEpoch = 0, pending = 0, reading = 0;
  u16 writer = kNobody, reader = kNobody;
  bool storing = false, loading = false; // until its thread waits
};

struct Buffer {
  u64 base;
  std::size_t elements;
  Type type; // F32, F16 or BF16
  bool writable;
  const u64 *p, *q;   // contents, or null: never stored; `q` alone may be null
  std::size_t period; // contents repeat after so many elements
};

struct Stored {
  Number value;
  u32 epoch, step;
  u16 thread;
};

struct Read {
  u32 epoch;
  u16 thread;
};

// What a launch is charged for; see cost/counted.py.
struct Counts {
  std::array<u64, 3> sectors{}, neededSectors{};      // load, store, copy
  std::array<u64, 4> wavefronts{}, idealWavefronts{}; // load, store, copy, matrix
  std::vector<u64> executed;                          // by instruction: warps that executed it
};

class Machine {
public:
  Machine(const Program &program, Numbers &numbers, std::vector<Buffer> buffers, std::size_t threads,
          std::size_t sharedBytes);

  // Runs one block; registers named in `preset` start as these bits, the same for all threads or one each.
  void run(const std::vector<std::pair<u32, std::vector<u64>>> &preset);
  const std::vector<std::unordered_map<u64, Stored>> &stored() const { return stored_; }
  const Counts &counts() const { return counts_; }
  // From now on, what other instructions at these places would make different is undefined: what a fault does
  // is dead if the block stores the same.
  void setFaults(std::map<u32, Instr> faults) { faults_ = std::move(faults); }
  // How many registers, slots and cells the faults have changed in all blocks.
  u64 differences() const { return differences_; }
  u64 steps() const { return step_; }

private:
  struct Group {
    u32 pc;
    std::vector<u16> lanes;
    bool stalled = false;
  };

  // control
  void loop();
  bool step(Group &group);
  std::size_t perform(const Instr &in, std::span<const u16> lanes);
  void arrive(Group &group);
  void branch(Group &group, const Instr &in);
  void merge();
  template <class F> void warps(std::span<const u16> lanes, F f) const;
  void execute(const Instr &in, std::span<const u16> lanes);
  void joinKnowledge(std::size_t from, std::size_t to);

  // registers
  std::size_t at(i32 reg, u16 t) const { return static_cast<std::size_t>(reg) * threads_ + t; }
  const Arg &arg(const Instr &in, std::size_t i) const { return program_.args[in.first + i]; }
  u64 bits(const Arg &a, u16 t) const;
  bool allBits(const Arg &a, std::span<const u16> lanes) const;
  void setBits(const Arg &a, u16 t, u64 value);
  void setNumber(const Arg &a, u16 t, Handle h);
  void cells(const Arg &a, u16 t, unsigned width, Cell *out) const;
  void setCells(const Arg &a, u16 t, unsigned width, const Cell *in);
  void setUndefined(const Arg &a, u16 t);
  Handle number(Cell low, Cell high);
  Handle number(const Arg &a, u16 t);
  Handle half(Cell c, Type type);
  bool predicate(const Arg &a, u16 t) const;
  bool poisoned(const Arg &a, u16 t) const;
  void touch(const Instr &in, std::span<const u16> lanes);

  // integers
  void integer(const Instr &in, std::span<const u16> lanes);
  u64 compute(const Instr &in, u64 a, u64 b, u64 c) const;
  void cellwise(const Instr &in, u16 t);
  void move(const Instr &in, std::span<const u16> lanes);
  // numbers
  void floating(const Instr &in, std::span<const u16> lanes);
  void chooseHalf(const Instr &in, u16 t, Handle s);
  void compareNumbers(const Instr &in, std::span<const u16> lanes);
  Handle evaluate(Op op, Handle a, Handle b, Handle c);
  void convert(const Instr &in, std::span<const u16> lanes);
  // memory
  void load(const Instr &in, std::span<const u16> lanes);
  void store(const Instr &in, std::span<const u16> lanes);
  void copy(const Instr &in, std::span<const u16> lanes);
  void copyWait(const Instr &in, std::span<const u16> lanes);
  void matrixMove(const Instr &in, std::span<const u16> lanes);
  std::size_t slot(u64 address, unsigned bytes) const;
  void readable(Slot &s, u16 t);
  Cell readShared(std::size_t i, u16 t);
  void writable(const Slot &s, u16 t, const Cell *value) const;
  void writeShared(std::size_t i, u16 t, Cell value);
  void readGlobal(u64 address, unsigned bytes, u16 t, Cell *out);
  void writeGlobal(u64 address, unsigned bytes, u16 t, const Cell *in);
  std::pair<std::size_t, u64> locate(u64 address, unsigned bytes, const char *what) const;
  bool sameCell(Cell a, Cell b) const;
  bool ordered(u16 by, u32 epoch, u32 warpEpoch, u16 t) const;
  // matrices
  void shuffle(const Instr &in, std::span<const u16> lanes);
  void mma(const Instr &in, std::span<const u16> lanes);
  void wgmma(const Instr &in, std::span<const u16> lanes);
  void wgmmaWait(const Instr &in, std::span<const u16> lanes);
  u64 operandAddress(u64 descriptor, bool tensor, bool transposed, unsigned row, unsigned k) const;
  struct Issue {
    u32 sequence;
    std::size_t stream;
    u16 thread;     // kNobody: a whole warp group
    u32 fenceEpoch; // of the issuers' last proxy fence; 0 for none
  };
  bool fenced(const Slot &s, const Issue &issue) const;
  Number asyncRead(u64 address, Type type, const Issue &issue);
  void unlock(std::size_t stream, u32 upTo);
  void mbarrier(const Instr &in, std::span<const u16> lanes);
  void tensor(const Instr &in, std::span<const u16> lanes);
  void tensorMove(const Instr &in, std::span<const u16> lanes);
  void tensorMma(const Instr &in, u16 t);
  TensorCell &tensorCell(u32 lane, u32 column);
  // counting
  void countShared(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes);
  void countGlobal(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes);

  void compact();
  bool sameRegister(std::size_t i, const Machine &other) const;
  void poison(const Machine &other);

  const Program &program_;
  Numbers &numbers_;
  std::vector<Buffer> buffers_;
  std::size_t threads_;
  Counts counts_;

  std::map<u32, Instr> faults_;
  u64 differences_ = 0;

  std::vector<Tag> tags_;
  std::vector<u64> values_, highs_;
  std::vector<Slot> shared_;
  std::vector<std::unordered_map<u64, Stored>> stored_;
  std::vector<std::unordered_map<u64, Read>> read_;

  std::vector<Group> groups_;
  std::vector<std::pair<u32, u16>> waiting_; // at the barrier: where each thread goes on
  std::size_t exited_ = 0;
  const Instr *current_ = nullptr;
  u32 step_ = 0, epoch_ = 1;
  std::vector<u32> warpEpoch_;

  struct Copy {
    u32 slot, count, group;
  };
  std::vector<std::vector<Copy>> copies_; // of each thread
  std::vector<u32> copyGroup_;

  struct Fence {
    u32 step, epoch;
  };
  std::vector<std::vector<Fence>> fences_; // of each thread

  // Asynchronous operations are numbered; each thread knows up to which one of a stream all are complete.
  u32 sequence_ = 0;
  std::array<std::vector<u32>, kStreams> completed_;
  struct Pending {
    std::vector<u32> groups; // the last operation of each committed group
    u32 open = 0;
    u32 fenceStep = 0;
    bool used = false;
  };
  std::array<Pending, kStreams> pending_;
  // Registers that wgmma reads or accumulates in: the operation, 0 for none.
  std::array<std::vector<u32>, kStreams> accumulating_, reading_;
  std::vector<u32> registerStep_; // when each was last written, wgmma apart
  bool locked_ = false;

  struct Mbarrier {
    u32 count, arrived, phase, sequence;
  };
  std::map<u64, Mbarrier> mbarriers_;
  bool testFailed_ = false;
  std::vector<u64> tried_; // of each thread: the phase of an mbarrier that it tested last
  std::vector<TensorCell> tensor_;
  std::vector<std::vector<u32>> storing_, loading_; // cells of tensor memory, of each thread
  std::map<u32, u32> allocated_;                    // columns: first and how many
};

// Calls f with the first thread of each warp; the warps must be whole.
template <class F> void Machine::warps(std::span<const u16> lanes, F f) const {
  for (std::size_t i = 0; i < lanes.size(); i += kWarp) {
    if (lanes[i] % kWarp != 0 || i + kWarp > lanes.size() || lanes[i + kWarp - 1] != lanes[i] + kWarp - 1)
      throw Illegal("expected whole warps, got some of their threads");
    f(lanes[i]);
  }
}

} // namespace superopt::ptx
