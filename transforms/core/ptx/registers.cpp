// What registers hold.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

u64 Machine::bits(const Arg &a, u16 t) const {
  if (a.reg < 0)
    return a.imm;
  const std::size_t i = at(a.reg, t);
  if (tags_[i] == Tag::Bits)
    return values_[i];
  if (tags_[i] == Tag::Undefined)
    throw Illegal("expected an integer, got a register that was never written");
  if (tags_[i] == Tag::Address)
    throw Unknown("an address in device memory used as an integer");
  if (tags_[i] == Tag::Shared)
    throw Unknown("a place in shared memory used as an integer");
  if (tags_[i] == Tag::Tensor)
    throw Unknown("an address in tensor memory used as an integer");
  throw Unknown("a number used as an integer");
}

// The address in device memory that operands `i` and `i + 1` of an instruction are, base and offset.
u64 Machine::globalAddress(const Instr &in, std::size_t i, u16 t) const {
  return globalAddress(arg(in, i), t, arg(in, i + 1).imm);
}

// An address in device memory: the offset in its buffer, above it the buffer's number from one.
u64 Machine::globalAddress(const Arg &a, u16 t, u64 further) const {
  const std::size_t i = a.reg < 0 ? 0 : at(a.reg, t);
  if (a.reg < 0 || tags_[i] != Tag::Address) {
    bits(a, t);
    throw Illegal("out of bounds: an access outside every buffer");
  }
  const u64 offset = values_[i] + further;
  if (offset >> kBufferBits != 0)
    throw Illegal("out of bounds: an access " + std::to_string(static_cast<i64>(offset)) +
                  " bytes from the start of argument " + std::to_string(highs_[i]));
  return (highs_[i] + 1) << kBufferBits | offset;
}

bool Machine::allBits(const Arg &a, std::span<const u16> lanes) const {
  if (a.reg < 0)
    return true;
  const Tag *tags = tags_.data() + static_cast<std::size_t>(a.reg) * threads_;
  return std::ranges::all_of(lanes, [&](u16 t) { return tags[t] == Tag::Bits; });
}

void Machine::setBits(const Arg &a, u16 t, u64 value) {
  if (a.reg < 0)
    return;
  tags_[at(a.reg, t)] = Tag::Bits;
  values_[at(a.reg, t)] = value;
}

void Machine::setNumber(const Arg &a, u16 t, Handle h) {
  if (a.reg < 0)
    return;
  tags_[at(a.reg, t)] = Tag::Number;
  values_[at(a.reg, t)] = h;
}

void Machine::setUndefined(const Arg &a, u16 t) {
  if (a.reg >= 0)
    tags_[at(a.reg, t)] = Tag::Undefined;
}

void Machine::cells(const Arg &a, u16 t, unsigned width, Cell *out) const {
  const unsigned n = width / 16;
  u64 value = a.imm;
  Tag tag = Tag::Bits;
  u64 high = 0;
  if (a.reg >= 0) {
    const std::size_t i = at(a.reg, t);
    tag = tags_[i];
    value = values_[i];
    high = highs_[i];
  }
  for (unsigned i = 0; i < n; ++i)
    switch (tag) {
    case Tag::Undefined:
      out[i] = 0;
      break;
    case Tag::Bits:
      out[i] = cell(Part::Bits, static_cast<u16>(value >> (16 * i)));
      break;
    case Tag::Number:
      out[i] = i == 0   ? cell(Part::Low, static_cast<u32>(value))
               : i == 1 ? cell(Part::High, static_cast<u32>(value))
                        : cell(Part::Bits, 0);
      break;
    case Tag::Address:
      throw Unknown("the bits of an address in device memory");
    case Tag::Shared:
      throw Unknown("the bits of a place in shared memory");
    case Tag::Tensor:
      if (value != 0)
        throw Unknown("the bits of an address in tensor memory");
      out[i] = i < 2 ? kAllocated + 2 * static_cast<u32>(high) + i : cell(Part::Bits, 0);
      break;
    case Tag::Mixed:
      out[i] = static_cast<Cell>((i < 2 ? value : high) >> (32 * (i % 2)));
      break;
    }
}

void Machine::setCells(const Arg &a, u16 t, unsigned width, const Cell *in) {
  if (a.reg < 0)
    return;
  const unsigned n = width / 16;
  const std::size_t i = at(a.reg, t);
  const auto all = [&](Part part) {
    return std::all_of(in, in + n, [&](Cell c) { return partOf(c) == part; });
  };
  if (all(Part::Bits)) {
    u64 value = 0;
    for (unsigned j = 0; j < n; ++j)
      value |= static_cast<u64>(valueOf(in[j])) << (16 * j);
    tags_[i] = Tag::Bits;
    values_[i] = value;
  } else if (all(Part::Undefined)) {
    tags_[i] = Tag::Undefined;
  } else if (n == 2 && partOf(in[0]) == Part::Low && partOf(in[1]) == Part::High &&
             valueOf(in[0]) == valueOf(in[1])) {
    tags_[i] = Tag::Number;
    values_[i] = valueOf(in[0]);
  } else if (n == 2 && in[0] >= kAllocated && in[0] + 1 < kOld && in[0] % 2 == 0 && in[1] == in[0] + 1 &&
             partOf(in[0]) == Part::Map) {
    tags_[i] = Tag::Tensor;
    values_[i] = 0;
    highs_[i] = (in[0] - kAllocated) / 2;
  } else {
    tags_[i] = Tag::Mixed;
    values_[i] = in[0] | (n > 1 ? static_cast<u64>(in[1]) << 32 : 0);
    highs_[i] = n > 2 ? in[2] | static_cast<u64>(in[3]) << 32 : 0;
  }
}

bool Machine::predicate(const Arg &a, u16 t) const { return (bits(a, t) & 1) != 0; }

// Registers that wgmma still reads or writes may not be touched.
void Machine::touch(const Instr &in, std::span<const u16> lanes) {
  const bool self = in.op == Op::wgmma;
  for (std::size_t s = 0; s < kStreams; ++s) {
    const std::size_t first = s * 128, last = first + 128;
    if (std::ranges::none_of(lanes, [&](u16 t) { return t >= first && t < last; }))
      continue;
    for (std::size_t i = 0; i < in.count; ++i) {
      const i32 reg = arg(in, i).reg;
      if (reg < 0)
        continue;
      if (!self && accumulating_[s][static_cast<std::size_t>(reg)] != 0)
        throw Illegal("expected a wait first, got an access to a register that the tensor core still writes");
      const bool written = i < results(in);
      if (!self && written && reading_[s][static_cast<std::size_t>(reg)] != 0)
        throw Illegal("expected a wait first, got a write to a register that the tensor core still reads");
    }
  }
}

// Drops the numbers that nothing holds.
void Machine::compact() {
  Numbers::Kept kept;
  const auto keep = [&](Handle h) { return numbers_.keep(kept, h); };
  std::vector<std::array<Cell, 2>> bytes;
  std::vector<Whole> wholes;
  std::vector<u32> movedBytes(bytes_.size(), kMostNumbers);
  const auto keepCell = [&](Cell c) {
    if (isNumber(partOf(c)))
      return cell(partOf(c), keep(valueOf(c)));
    if (partOf(c) != Part::Bytes)
      return c;
    u32 &at = movedBytes[valueOf(c)];
    if (at == kMostNumbers) {
      at = static_cast<u32>(bytes.size());
      bytes.push_back(bytes_[valueOf(c)]);
      for (Cell &b : bytes.back())
        if (tagOf(b) == Byte::Whole) {
          const Whole whole = wholes_[valueOf(b)];
          wholes.push_back({keep(whole.of), whole.at, whole.size});
          b = byte(Byte::Whole, static_cast<u32>(wholes.size() - 1));
        } else if (tagOf(b) >= Byte::E4M3) {
          b = byte(tagOf(b), keep(valueOf(b)));
        }
    }
    return cell(Part::Bytes, at);
  };
  const auto keepPair = [&](u64 pair) {
    return keepCell(static_cast<Cell>(pair)) | static_cast<u64>(keepCell(static_cast<Cell>(pair >> 32)))
                                                   << 32;
  };
  for (std::size_t i = 0; i < tags_.size(); ++i)
    if (tags_[i] == Tag::Number) {
      values_[i] = keep(static_cast<Handle>(values_[i]));
    } else if (tags_[i] == Tag::Mixed) {
      values_[i] = keepPair(values_[i]);
      highs_[i] = keepPair(highs_[i]);
    }
  for (Slot &s : shared_)
    s.held = keepCell(s.held);
  for (TensorCell &c : tensor_) {
    c.low = keepCell(c.low);
    c.high = keepCell(c.high);
  }
  numbers_.drop(std::move(kept));
  bytes_ = std::move(bytes);
  wholes_ = std::move(wholes);
  compactAt_ = std::max(kCompactAt, 2 * numbers_.size());
  if (numbers_.size() > kMostHeld)
    throw Unknown("a block that holds more numbers than fit");
}

} // namespace superopt::ptx
