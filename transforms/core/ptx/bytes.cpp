// Bytes: 16 bits of which one or both are fp8 numbers.
#include "ptx/machine.hpp"

#include <bit>
#include <cmath>

namespace superopt::ptx {

// fp8 as fp32. E4M3 lacks infinities; E5M2 is the upper byte of fp16.
static Handle constant8(Numbers &numbers, u32 bits, Type type) {
  if (type == Type::E5M2)
    return numbers.constant16(static_cast<u16>(bits << 8));
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(fraction + 8), exponent - 10);
  const float value = exponent == 15 && fraction == 7 ? NAN : bits >> 7 != 0 ? -size : size;
  return numbers.constant32(std::bit_cast<u32>(value));
}

std::array<Cell, 2> Machine::split(Cell c) const {
  const u32 v = valueOf(c);
  switch (partOf(c)) {
  case Part::Undefined:
    return {byte(Byte::Undefined, 0), byte(Byte::Undefined, 0)};
  case Part::Bits:
    return {byte(Byte::Bits, v & 0xff), byte(Byte::Bits, v >> 8)};
  case Part::Bytes:
    return bytes_[v];
  default:
    throw Unknown("a byte of a wider number");
  }
}

Cell Machine::join(Cell low, Cell high) {
  if (tagOf(low) == Byte::Bits && tagOf(high) == Byte::Bits)
    return cell(Part::Bits, valueOf(low) | valueOf(high) << 8);
  if (tagOf(low) == Byte::Undefined && tagOf(high) == Byte::Undefined)
    return cell(Part::Undefined, 0);
  if (bytes_.size() >= kMostNumbers)
    throw Unknown("a block that computes more numbers than fit");
  bytes_.push_back({low, high});
  return cell(Part::Bytes, static_cast<u32>(bytes_.size() - 1));
}

// The fp8 number that a byte is.
Handle Machine::eighth(Cell c, Type type) {
  switch (tagOf(c)) {
  case Byte::Undefined:
    return numbers_.constant32(0x7fc00000);
  case Byte::Bits:
    return constant8(numbers_, valueOf(c), type);
  default:
    if (tagOf(c) != (type == Type::E4M3 ? Byte::E4M3 : Byte::E5M2))
      throw Illegal("expected an fp8 number, got one of another type");
    return valueOf(c);
  }
}

// A number as 16 bits, or as a byte for fp8.
Cell Machine::cellOf(Handle h, Type type) const {
  switch (type) {
  case Type::E4M3:
    return byte(Byte::E4M3, h);
  case Type::E5M2:
    return byte(Byte::E5M2, h);
  default:
    return cell(type == Type::BF16 || type == Type::BF16x2 ? Part::Brain : Part::Half, h);
  }
}

} // namespace superopt::ptx
