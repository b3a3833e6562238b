// One block of a kernel, run instruction by instruction, all its threads side by side.
//
// Threads run by least program counter until a barrier. What is checked is not this schedule but the order
// that holds under every schedule (`Slot`): a block without races stores the same under all of them.
#pragma once

#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>

#include "ptx/region.hpp"
#include "ptx/state.hpp"

namespace superopt::ptx {

[[noreturn]] void race(const char *what, const char *with);
std::size_t results(const Instr &in);

class Machine {
public:
  // `pointers` are registers that start as the address of a buffer, or of scratch after the last one, and
  // `sharedStart` one that starts as that of shared memory, or -1.
  Machine(const Program &program, Numbers &numbers, std::vector<Buffer> buffers, std::size_t threads,
          std::size_t sharedBytes, std::vector<std::pair<u32, u32>> pointers, i32 sharedStart);

  // Runs one block; registers named in `preset` start as these bits, the same for all threads or one each.
  void run(const std::vector<std::pair<u32, std::vector<u64>>> &preset);
  // The same, and which blocks around it do the same (affine.cpp): `region` becomes smaller; registers start
  // with these slopes. Throws Split.
  void run(const std::vector<std::pair<u32, std::vector<u64>>> &preset, const Region &region,
           const std::vector<std::pair<u32, Slope>> &slopes);
  const std::optional<Region> &region() const { return region_; }
  // What the last block reached in each buffer, and how that moves from block to block, in elements.
  std::vector<std::pair<u64, u32>> reached(std::size_t buffer) const;
  const std::vector<Slope> &slopes() const { return slopes_; }
  const Slope &scratchSlope() const { return scratchSlope_; }
  const std::vector<std::unordered_map<u64, Stored>> &stored() const { return stored_; }
  const Counts &counts() const { return counts_; }
  // From now on, what other instructions at these places would make different is undefined: what a fault does
  // is dead if the block stores the same.
  void setFaults(std::map<u32, Instr> faults) { faults_ = std::move(faults); }
  // How many registers, slots and cells the faults have changed in all blocks.
  u64 differences() const { return differences_; }
  u64 steps() const { return step_; }
  // Operations of threads, terms of products, and points at which functions of coordinates are tried: so many
  // are left, for all blocks that run from now on.
  void setLeft(u64 operations) { left_ = std::min(operations, kMostWork); }
  u64 left() const { return left_; }
  // The bytes of scratch that the last block used: first and past the last; equal where it used none.
  std::pair<u64, u64> scratch() const { return scratch_; }

private:
  struct Group {
    u32 pc;
    std::vector<u16> lanes;
    bool stalled = false;
  };

  // control
  void start(const std::vector<std::pair<u32, std::vector<u64>>> &preset);
  void spend(u64 operations);
  void loop();
  bool step(Group &group);
  std::size_t perform(const Instr &in, std::span<const u16> lanes);
  void arrive(Group &group, bool waits);
  void release(u64 id);
  void branch(Group &group, const Instr &in);
  void merge();
  template <class F> void warps(std::span<const u16> lanes, F f) const;
  void execute(const Instr &in, std::span<const u16> lanes);
  void joinKnowledge(std::span<const u16> from, std::span<const u16> to);
  [[noreturn]] void disordered(const char *what, const char *with, bool certain = true) const;

  // registers
  std::size_t at(i32 reg, u16 t) const { return static_cast<std::size_t>(reg) * threads_ + t; }
  const Arg &arg(const Instr &in, std::size_t i) const { return program_.args[in.first + i]; }
  u64 bits(const Arg &a, u16 t) const;
  u64 globalAddress(const Instr &in, std::size_t i, u16 t) const;
  u64 globalAddress(const Arg &a, u16 t, u64 further) const;
  bool moveAddress(const Instr &in, u16 t);
  // places in shared memory
  bool sameBits(const Arg &a, u16 t, u16 u) const;
  bool isPlace(const Arg &a, u16 t) const;
  u64 mostOf(u64 value, u64 slope) const;
  bool movePlace(const Instr &in, u16 t);
  void setPlace(const Arg &a, u16 t, u64 value, u64 slope);
  u64 sharedAddress(const Instr &in, std::size_t i, u16 t) const;
  u64 descriptor(const Arg &a, u16 t) const;
  std::size_t slot(u64 address, unsigned bytes) const;
  bool allBits(const Arg &a, std::span<const u16> lanes) const;
  void setBits(const Arg &a, u16 t, u64 value);
  void setNumber(const Arg &a, u16 t, Handle h);
  void cells(const Arg &a, u16 t, unsigned width, Cell *out) const;
  void setCells(const Arg &a, u16 t, unsigned width, const Cell *in);
  void setUndefined(const Arg &a, u16 t);
  Handle number(Cell low, Cell high);
  Handle number(const Arg &a, u16 t);
  Handle half(Cell c, Type type);
  Handle eighth(Cell c, Type type);
  void elements(const Arg &a, u16 t, Type type, Number *out);
  std::array<Cell, 2> split(Cell c) const;
  Cell join(Cell low, Cell high);
  void readWhole(Handle h, Type type, unsigned from, Cell *out);
  Cell signOf(Cell c);
  bool extendWhole(const Instr &in, u16 t);
  bool truthPredicate(const Instr &in, u16 t);
  Handle wholeNumber(const Instr &in, u16 t);
  Cell cellOf(Handle h, Type type) const;
  Number dot(const Number *a, const Number *b, std::size_t depth, Number c) const;
  bool predicate(const Arg &a, u16 t) const;
  bool poisoned(const Arg &a, u16 t) const;
  void touch(const Instr &in, std::span<const u16> lanes);
  void noteUses(const Instr &in, std::span<const u16> lanes);

  // integers
  void integer(const Instr &in, std::span<const u16> lanes);
  u64 compute(const Instr &in, u64 a, u64 b, u64 c) const;
  void cellwise(const Instr &in, u16 t);
  Cell bitwise(Op op, Cell a, Cell b);
  void permute(const Instr &in, std::span<const u16> lanes);
  void move(const Instr &in, std::span<const u16> lanes);
  // numbers
  void floating(const Instr &in, std::span<const u16> lanes);
  void chooseHalf(const Instr &in, u16 t, Handle s);
  void compareNumbers(const Instr &in, std::span<const u16> lanes);
  Handle evaluate(Op op, Handle a, Handle b, Handle c);
  void convert(const Instr &in, std::span<const u16> lanes);
  void convertPair(const Instr &in, u16 t);
  // memory
  void load(const Instr &in, std::span<const u16> lanes);
  void store(const Instr &in, std::span<const u16> lanes);
  void copy(const Instr &in, std::span<const u16> lanes);
  void copyWait(const Instr &in, std::span<const u16> lanes);
  void matrixMove(const Instr &in, std::span<const u16> lanes);
  void atomic(const Instr &in, std::span<const u16> lanes);
  void atomicShared(const Instr &in, u64 address, u16 t);
  void accumulate(u64 address, unsigned bytes, u16 t, const Cell *in, Atomic how, bool bulk);
  void readable(Slot &s, u16 t);
  void noteRead(Slot &s, u16 t) const;
  Cell readShared(std::size_t i, u16 t);
  void writable(const Slot &s, u16 t, const Cell *value) const;
  void writeShared(std::size_t i, u16 t, Cell value);
  void writeByte(u64 address, u16 t, Cell value);
  void readGlobal(u64 address, unsigned bytes, u16 t, Cell *out);
  void writeGlobal(u64 address, unsigned bytes, u16 t, const Cell *in);
  std::pair<std::size_t, u64> locate(u64 address, unsigned bytes, const char *what) const;
  bool sameCell(Cell a, Cell b) const;
  bool ordered(u16 by, u32 epoch, u32 warpEpoch, u16 t) const;
  bool written(const Slot &s, u16 t) const;
  u16 joined(u16 by, u16 t) const;
  void notRead(const Slot &s, u16 t) const;
  void unread(std::size_t index, u64 place, u16 t) const;
  Number elementOf(const Cell *in, unsigned i, Type type);
  std::optional<Number> contents(const Buffer &b, std::size_t place) const;
  // matrices
  void shuffle(const Instr &in, std::span<const u16> lanes);
  void mma(const Instr &in, std::span<const u16> lanes);
  void useInProduct(const Instr &in, std::size_t stream, std::size_t r);
  void wgmma(const Instr &in, std::span<const u16> lanes);
  void wgmmaWait(const Instr &in, std::span<const u16> lanes);
  u64 operandAddress(u64 descriptor, bool tensor, bool transposed, unsigned row, unsigned k,
                     unsigned bytes) const;
  struct Issue {
    u32 sequence;
    std::size_t stream;
    u16 thread;       // kNobody: a whole warp group
    u32 fenceEpoch;   // of the issuers' last proxy fence; 0 for none
    u32 bulkRead = 0; // a bulk copy that the issuers know to be complete
  };
  bool fenced(const Slot &s, const Issue &issue) const;
  void asyncReadable(const Slot &s, Issue &issue) const;
  Number asyncRead(u64 address, Type type, Issue &issue);
  void unlock(std::size_t stream, u32 upTo);
  u32 completed(std::size_t stream, u16 t) const;
  // mbarriers and bulk copies
  struct Mbarrier {
    u32 count, id; // arrivals of a phase; the place in `known_`
    u32 arrived = 0;
    i64 bytes = 0;                // that this phase still expects
    u32 products = 0;             // those up to which tcgen05.commit has made it wait for all
    std::vector<u32> sequences{}; // by phase that is complete: the products up to which all are then complete
    // Who expected bytes last.
    u16 by = kNobody;
    u32 epoch = 0, warpEpoch = 0;
    u32 phase() const { return static_cast<u32>(sequences.size()); }
  };
  Mbarrier &barrierAt(u64 address, u16 t);
  void arriveAt(Mbarrier &m);
  void mbarrier(const Instr &in, std::span<const u16> lanes);
  void testBarrier(const Instr &in, Mbarrier &m, u64 address, u16 t);
  bool complete(u32 bulk, u16 t) const;
  u16 mapAt(std::size_t first) const;
  void mapReplace(const Instr &in, u16 t);
  void mapPublish(const Instr &in, std::span<const u16> lanes);
  void mapAcquire(const Instr &in, u16 t);
  const TensorMap &acquiredMap(u64 address, u16 t) const;
  struct Piece { // an element of a box: where in shared memory, and where in global memory or that it is
                 // nowhere
    u64 shared, global;
    bool inside;
  };
  std::vector<Piece> pieces(const Instr &in, u16 t, bool isLoad, unsigned &size);
  void bulkLoad(const Instr &in, u16 t);
  void bulkStore(const Instr &in, u16 t);
  void bulkWait(const Instr &in, std::span<const u16> lanes);
  void bulkEnd(std::span<const u16> lanes) const;
  void countWait(u64 bytes);
  void countBulk(const std::vector<Piece> &moved, unsigned size, std::size_t kind);
  void tensor(const Instr &in, std::span<const u16> lanes);
  void unlockLoaded();
  void tensorMove(const Instr &in, std::span<const u16> lanes);
  void tensorMma(const Instr &in, u16 t);
  // Columns of tensor memory, and who allocated them; none once they are freed.
  struct Allocation {
    u32 first, columns;
    u16 thread;
    u32 epoch, warpEpoch;
  };
  // A place there: the number of its allocation, and its lane and column from where that starts.
  struct TensorPlace {
    std::size_t allocation;
    u32 lane, column;
  };
  TensorPlace tensorPlace(const Arg &a, u16 t, u64 further) const;
  TensorCell &tensorCell(const TensorPlace &place);
  void tensorAlloc(const Instr &in, u16 first);
  void tensorFree(const Instr &in, u16 first);
  bool moveTensor(const Instr &in, u16 t);
  // counting
  void countShared(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes);
  void countGlobal(std::size_t kind, std::span<const std::pair<u16, u64>> accesses, unsigned bytes);

  // other blocks
  u32 slopeNumber(const Slope &s);
  const Slope &slope(const Arg &a, u16 t) const;
  bool isLive(const Arg &a, u16 t) const;
  void setSlope(const Arg &a, u16 t, const Slope &s, unsigned width);
  void follow(const Instr &in, std::span<const u16> lanes);
  void followLive(const Instr &in, std::span<const u16> lanes);
  Slope pinned(const Instr &in, u16 t);
  Slope slopeOfResult(const Instr &in, u16 t);
  bool neverZero(const Slope &s, i128 x) const;
  // An instruction, or what a shift by `by` makes of it.
  struct Formula {
    const Instr *of;
    const Instr *then = nullptr;
    u64 by = 0;
    bool operator==(const Formula &) const = default;
  };
  // The high word of a product: its operands, and their slopes.
  struct Half {
    const Instr *product;
    std::array<u64, 3> x;
    std::array<Slope, 3> slopes;
  };
  static u64 ones(const Formula &f);
  u64 apply(const Formula &f, const std::array<u64, 3> &x, const std::array<Slope, 3> &s,
            const std::array<i64, kAxes> &point) const;
  std::optional<Slope> lineOf(const Formula &f, const std::array<u64, 3> &x, const std::array<Slope, 3> &s);
  Slope tried(const Formula &f, const std::array<u64, 3> &x, const std::array<Slope, 3> &s);
  const Half *halfOf(const Instr &in, std::size_t i, u16 t) const;
  bool shifted(const Instr &in, std::size_t i, unsigned width) const;
  void settleHalves(const Instr &in, std::span<const u16> lanes);
  std::optional<Split> splitOf(std::size_t axis, i64 period, bool again) const;
  void reach(std::size_t index, u64 place, unsigned count, const Slope &slope);
  void scratchAt(const Slope &slope);
  void afterGrid(u16 t) const;
  Slope slopeOfBox(const Instr &in, u16 t, const TensorMap &map, const std::array<i64, 5> &start,
                   std::size_t first);

  void compact();
  bool sameRegister(std::size_t i, const Machine &other) const;
  void poison(const Machine &other);

  const Program &program_;
  Numbers &numbers_;
  std::vector<Buffer> buffers_;
  std::size_t threads_;
  std::vector<std::pair<u32, u32>> pointers_;
  i32 sharedStart_;
  u64 left_ = kMostWork;
  Counts counts_;

  std::map<u32, Instr> faults_;
  u64 differences_ = 0;

  std::vector<Tag> tags_;
  std::vector<u64> values_, highs_;
  std::vector<Slot> shared_;
  std::vector<std::unordered_map<u64, Stored>> stored_;
  std::vector<std::unordered_map<u64, Read>> read_;

  std::optional<Region> region_;
  std::vector<Slope> slopes_; // by number; the first one is zero
  std::map<Slope, u32> slopeNumbers_;
  std::vector<u32> slopeOf_;        // of each register and thread
  std::vector<bool> sloped_;        // registers where one may not be zero
  std::vector<Slope> addressSlope_; // of each thread, of the access that is being run
  Slope scratchSlope_{};
  bool scratchUsed_ = false;
  bool moving_ = false; // whether one of these may not be zero
  i64 points_ = 0;      // at which functions of the block were tried for an instruction
  struct Tried {
    Formula f;
    std::array<u64, 3> x;
    std::array<Slope, 3> slopes;
    Slope found;
  };
  std::optional<Tried> lastTried_;
  // High words that are no lines, by register and thread. Their slopes say along which axes they change, no
  // more: whoever reads one settles what it is.
  std::unordered_map<std::size_t, Half> halves_;
  std::optional<Half> half_; // what the instruction has just made
  u32 lastSlope_ = 0;
  static constexpr std::size_t kRow = 16;
  std::vector<std::unordered_map<u64, std::array<u32, kRow>>> reached_; // by rows of places; slopes from one
  std::set<std::tuple<u32, u64, u32>> reachedTwice_;

  std::vector<Group> groups_;
  struct NamedBarrier {
    u64 expected = 0;
    std::vector<std::pair<u32, u16>> waiting; // where each thread goes on
    std::vector<u16> arrived;                 // threads that only arrive
    std::vector<u32> clock;                   // what those know
  };
  std::map<u64, NamedBarrier> waiting_;
  struct Release { // of a barrier of some warps: one that waited, and its epoch from then on
    u32 epoch, warpEpoch;
    std::size_t warp;
  };
  std::map<u64, Release> released_; // the last one of each barrier
  std::size_t exited_ = 0;
  const Instr *current_ = nullptr;
  u32 step_ = 0, epoch_ = 1;
  std::size_t compactAt_ = kCompactAt;
  // Of each warp: its epoch, and up to which epoch of each warp it knows everything (vector clocks: Lamport;
  // Mattern, 1989).
  std::vector<u32> warpEpoch_;
  std::vector<std::vector<u32>> clock_;
  bool partial_ = false;        // whether a barrier of some warps was passed
  bool waitsForGrid_ = false;   // whether the program has griddepcontrol.wait
  std::vector<bool> gridReady_; // of each thread

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
  std::vector<std::array<Cell, 2>> bytes_; // what `Part::Bytes` stands for
  std::vector<Whole> wholes_;              // what `Byte::Whole` stands for

  u32 sequence_ = 0;
  // By stream and warp: each warp of a warp group waits for its own part of a product.
  std::array<std::vector<u32>, kStreams * kParts> completed_;
  struct Pending {
    std::vector<u32> groups; // the last operation of each committed group
    u32 open = 0;
    u32 fenceStep = 0;
    bool used = false;
  };
  std::array<Pending, kStreams> pending_;
  // Registers that wgmma reads or accumulates in: the operation, 0 for none.
  std::array<std::vector<u32>, kStreams> accumulating_, reading_;
  // The steps in which a warp group last used a register, and the place that it had among the results of a
  // product.
  struct Use {
    u32 read = 0, written = 0, multiplied = 0, accumulated = 0;
    u32 place = 0;
  };
  std::array<std::vector<Use>, kStreams> uses_;
  bool multiplies_ = false; // whether the program has wgmma, so that uses are noted
  bool locked_ = false;

  std::map<u64, Mbarrier> mbarriers_;
  std::vector<std::vector<u32>> known_; // of each mbarrier, the phases that each thread knows to be complete
  bool testFailed_ = false;
  std::vector<u64> tried_; // of each thread: the phase of an mbarrier that it tested last
  std::vector<TensorCell> tensor_;
  u16 tensorBy_ = kNobody;                          // who issues tcgen05.mma
  std::vector<std::vector<u32>> storing_, loading_; // cells of tensor memory, of each thread
  std::vector<Allocation> allocated_;
  bool mayAllocate_ = true; // until tcgen05.relinquish_alloc_permit

  std::vector<TensorMap> tensorMaps_;
  struct Access {
    u16 thread;
    u32 epoch, warpEpoch;
  };
  struct Published { // a tensor map in scratch: who copied it there, and who has acquired it since
    u32 map;
    Access by;
    std::vector<Access> acquired;
  };
  std::map<u64, Published> published_;
  std::pair<u64, u64> scratch_;
  struct Bulk { // a copy to shared memory: what it is complete with
    u32 barrier, phase;
    u64 bytes;
  };
  std::vector<Bulk> bulk_;
  struct BulkRead {
    std::vector<u32> slots;
    u32 group;
  };
  std::vector<std::vector<BulkRead>> bulkReads_; // of each thread
  std::vector<u32> bulkGroup_;
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
