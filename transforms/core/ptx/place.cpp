// Places in shared memory. Where it starts is up to the hardware: an unknown number of kilobytes, as swizzles
// need (`kPlaceStep`), behind what CUDA keeps for itself. A register that holds a place is a linear function
// of that number: `values_` where shared memory starts at zero, and `highs_` more for each kilobyte, modulo
// two to its width. Addresses move by 1,024 and the fields of descriptors by 64; nothing else can depend on
// it.
#include "ptx/machine.hpp"

#include <algorithm>
#include <bit>

namespace superopt::ptx {
namespace {

constexpr u64 kSpace = u64{1} << 18; // bytes; what descriptors can address
constexpr u64 kField = 0x3fff;       // of a descriptor: an address in units of 16 bytes
constexpr u64 mask(unsigned width) { return width >= 64 ? ~u64{0} : (u64{1} << width) - 1; }

} // namespace

bool Machine::isPlace(const Arg &a, u16 t) const { return a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Shared; }

// Whether two threads have the same integer.
bool Machine::sameBits(const Arg &a, u16 t, u16 u) const {
  if (a.reg < 0)
    return true;
  const std::size_t i = at(a.reg, t), j = at(a.reg, u);
  return tags_[i] == tags_[j] && values_[i] == values_[j] && (!isPlace(a, t) || highs_[i] == highs_[j]);
}

// The most that a place can be: it does not wrap around below.
u64 Machine::mostOf(u64 value, u64 slope) const {
  const unsigned __int128 most =
      static_cast<unsigned __int128>(slope) * ((kSpace - 2 * shared_.size()) / kPlaceStep) + value;
  return most >> 64 != 0 ? ~u64{0} : static_cast<u64>(most);
}

// Whether an operand is a place: then the result is one, too, or the instruction is refused.
bool Machine::movePlace(const Instr &in, u16 t) {
  bool any = false;
  std::array<u64, 3> x{}, s{};
  for (std::size_t i = 1; i < in.count; ++i)
    any = any || isPlace(arg(in, i), t);
  if (!any)
    return false;
  for (std::size_t i = 1; i < in.count && i <= 3; ++i) {
    const Arg &a = arg(in, i);
    if (a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Undefined)
      return setUndefined(arg(in, 0), t), true;
    const bool place = isPlace(a, t);
    x[i - 1] = place ? values_[at(a.reg, t)] : bits(a, t);
    s[i - 1] = place ? highs_[at(a.reg, t)] : 0;
  }
  const auto refuse = [] { throw Unknown("a place in shared memory used as an integer"); };
  // Bits below the lowest that moves stay as they are, as do those above the highest one.
  const auto moving = [&](u64 value, u64 slope) {
    return mask(static_cast<unsigned>(std::bit_width(mostOf(value, slope)))) &
           ~mask(static_cast<unsigned>(std::countr_zero(slope)));
  };
  const unsigned w = in.width;
  const auto fits = [&](unsigned width) { return mostOf(x[0], s[0]) <= mask(width); };
  u64 slope = 0;
  switch (in.op) {
  case Op::add:
    slope = s[0] + s[1];
    break;
  case Op::sub:
    slope = s[0] - s[1];
    break;
  case Op::mad:
    if (s[0] != 0 || s[1] != 0)
      refuse();
    slope = s[2];
    break;
  case Op::convert:
    // From fewer bits: what does not wrap around there, nor has a sign.
    if (const auto from = static_cast<unsigned>(in.aux); from < w && !fits(from - (in.mode != 0 ? 1 : 0)))
      refuse();
    slope = s[0];
    break;
  case Op::bfe:
  case Op::shr: {
    const u64 by = in.op == Op::bfe ? x[1] & 255 : x[1] & 0xffffffff, count = x[2] & 255;
    if (s[1] != 0 || s[2] != 0 || in.mode != 0 || by >= w || !fits(w) ||
        (s[0] & mask(static_cast<unsigned>(by))) != 0)
      refuse();
    slope = s[0] >> by;
    if (in.op == Op::bfe && (count == 0 || mostOf(x[0] >> by, slope) > mask(static_cast<unsigned>(count))))
      refuse();
    break;
  }
  case Op::and_:
  case Op::or_: {
    const std::size_t i = s[0] != 0 ? 0 : 1;
    const u64 changed = in.op == Op::and_ ? ~x[1 - i] : x[1 - i];
    if (s[1 - i] != 0 || (changed & moving(x[i], s[i])) != 0)
      refuse();
    slope = s[i];
    break;
  }
  default:
    refuse();
  }
  setPlace(arg(in, 0), t, compute(in, x[0], x[1], x[2]) & mask(w), slope & mask(w));
  return true;
}

// Two places moved by each other are bits.
void Machine::setPlace(const Arg &a, u16 t, u64 value, u64 slope) {
  if (a.reg < 0)
    return;
  tags_[at(a.reg, t)] = slope == 0 ? Tag::Bits : Tag::Shared;
  values_[at(a.reg, t)] = value;
  highs_[at(a.reg, t)] = slope;
}

// How far an address, operands `i` and `i + 1` of an instruction, is from the start of shared memory.
u64 Machine::sharedAddress(const Instr &in, std::size_t i, u16 t) const {
  const Arg &a = arg(in, i);
  if (isPlace(a, t) && highs_[at(a.reg, t)] == kPlaceStep)
    return (values_[at(a.reg, t)] + arg(in, i + 1).imm) & 0xffffffff;
  if (!isPlace(a, t))
    bits(a, t);
  throw Illegal("out of bounds: an access to no place in shared memory");
}

// A descriptor of the tensor core where shared memory starts at zero; its first field is a place.
u64 Machine::descriptor(const Arg &a, u16 t) const {
  if (!isPlace(a, t)) {
    bits(a, t);
    throw Illegal("out of bounds: a matrix descriptor of no place in shared memory");
  }
  const u64 value = values_[at(a.reg, t)], slope = highs_[at(a.reg, t)];
  if (slope * 16 != kPlaceStep || mostOf(value & kField, slope) > kField)
    throw Unknown("a matrix descriptor whose fields depend on where shared memory starts");
  return value;
}

std::size_t Machine::slot(u64 address, unsigned bytes) const {
  if (address % bytes != 0)
    throw Illegal("expected an address in shared memory that is a multiple of " + std::to_string(bytes) +
                  ", got " + std::to_string(address));
  if (address + bytes > 2 * shared_.size())
    throw Illegal("out of bounds: an access to byte " + std::to_string(static_cast<i32>(address)) + " of " +
                  std::to_string(2 * shared_.size()) + " in shared memory");
  return address / 2;
}

} // namespace superopt::ptx
