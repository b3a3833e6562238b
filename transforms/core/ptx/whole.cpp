// Integers that are data: loaded, widened and made numbers. Their bits are unknown, so that nothing else can
// be done with them.
#include "ptx/machine.hpp"

namespace superopt::ptx {

// The bytes of an integer that was loaded, from byte `from` of `out` on, which is even for more than one
// byte.
void Machine::readWhole(Handle h, Type type, unsigned from, Cell *out) {
  const unsigned size = bytesOf(type);
  if (type == Type::I1)
    numbers_.truthGiven(h);
  const auto made = [&](unsigned at) {
    if (type == Type::I1)
      return byte(Byte::Truth, h);
    if (wholes_.size() >= kMostNumbers)
      throw Unknown("a block that computes more numbers than fit");
    wholes_.push_back({h, static_cast<u8>(at), static_cast<u8>(size)});
    return byte(Byte::Whole, static_cast<u32>(wholes_.size() - 1));
  };
  if (size == 1) {
    const Cell low = from % 2 == 0 ? made(0) : split(out[from / 2])[0];
    out[from / 2] = from % 2 == 0 ? join(low, byte(Byte::Bits, 0)) : join(low, made(0));
    return;
  }
  for (unsigned at = 0; at < size; at += 2) {
    const Cell low = made(at);
    out[(from + at) / 2] = join(low, made(at + 1));
  }
}

// The byte that is the sign of this one, repeated.
Cell Machine::signOf(Cell c) {
  switch (tagOf(c)) {
  case Byte::Undefined:
    return c;
  case Byte::Bits:
    return byte(Byte::Bits, (valueOf(c) & 0x80) != 0 ? 0xff : 0);
  case Byte::Truth:
    return byte(Byte::Bits, 0);
  case Byte::Whole:
    if (const Whole w = wholes_[valueOf(c)]; w.at + 1u >= w.size) {
      if (wholes_.size() >= kMostNumbers)
        throw Unknown("a block that computes more numbers than fit");
      wholes_.push_back({w.of, w.size, w.size});
      return byte(Byte::Whole, static_cast<u32>(wholes_.size() - 1));
    }
    [[fallthrough]];
  default:
    throw Unknown("the sign of a part of a number");
  }
}

// cvt that fills an integer's upper bytes with its sign; returns whether it is one of data.
bool Machine::extendWhole(const Instr &in, u16 t) {
  const unsigned from = static_cast<unsigned>(in.aux) / 8, to = in.width / 8u;
  if (in.op != Op::convert || in.mode == 0 || from == 0 || to < 2 || to <= from)
    return false;
  std::array<Cell, 4> held{};
  cells(arg(in, 1), t, std::max(8 * from, 16u), held.data());
  for (unsigned i = 0; i < (from + 1) / 2; ++i)
    if (isNumber(partOf(held[i])))
      return false;
  const Cell last = split(held[(from - 1) / 2])[(from - 1) % 2];
  if (tagOf(last) != Byte::Whole)
    return false;
  const Cell mine = signOf(last);
  for (unsigned at = from; at < to; ++at)
    held[at / 2] = at % 2 == 0 ? join(mine, byte(Byte::Bits, 0)) : join(split(held[at / 2])[0], mine);
  setCells(arg(in, 0), t, in.width, held.data());
  return true;
}

// Whether a truth value in memory is zero or one: the predicate is the number that it is.
bool Machine::truthPredicate(const Instr &in, u16 t) {
  const auto how = static_cast<Compare>(in.aux);
  if (in.op != Op::setp || in.width < 16 || (how != Compare::Eq && how != Compare::Ne))
    return false;
  const Arg &other = arg(in, 2);
  if (other.reg >= 0 && tags_[at(other.reg, t)] != Tag::Bits)
    return false;
  const u64 mask = in.width >= 64 ? ~u64{0} : (u64{1} << in.width) - 1, beside = bits(other, t) & mask;
  std::array<Cell, 4> held{};
  cells(arg(in, 1), t, in.width, held.data());
  if (partOf(held[0]) != Part::Bytes || beside > 1)
    return false;
  const std::array<Cell, 2> low = split(held[0]);
  bool plain = tagOf(low[0]) == Byte::Truth && low[1] == byte(Byte::Bits, 0);
  for (unsigned i = 1; i < in.width / 16u; ++i)
    plain = plain && held[i] == cell(Part::Bits, 0);
  if (!plain)
    return false;
  const bool asItIs = (how == Compare::Ne) == (beside == 0);
  const Handle h = valueOf(low[0]);
  setNumber(arg(in, 0), t, asItIs ? h : numbers_.sub(numbers_.integer(1), h));
  return true;
}

// The number that an integer is: a known one, which the result's type must hold, or one that was loaded,
// which is rounded there as any number is.
Handle Machine::wholeNumber(const Instr &in, u16 t) {
  const Arg &a = arg(in, 1);
  const Type to = static_cast<Type>(in.mode);
  const unsigned width = in.width, size = width / 8;
  const bool isSigned = in.aux != 0;
  if (a.reg < 0 || tags_[at(a.reg, t)] == Tag::Bits || tags_[at(a.reg, t)] == Tag::Undefined) {
    const u64 x = bits(a, t), kept = width >= 64 ? x : x & ((u64{1} << width) - 1);
    const u64 sign = u64{1} << (width - 1);
    const i64 value = static_cast<i64>(isSigned ? (kept ^ sign) - sign : kept);
    const i64 most = i64{1} << (to == Type::F32 ? 24 : to == Type::F16 ? 11 : 8);
    if (value > most || value < -most || (!isSigned && value < 0))
      throw Unknown("an integer that its type does not hold");
    return numbers_.integer(value);
  }
  std::array<Cell, 4> held{};
  cells(a, t, std::max(width, 16u), held.data());
  const auto byteAt = [&](unsigned i) {
    if (partOf(held[i / 2]) > Part::Bits && partOf(held[i / 2]) != Part::Bytes)
      throw Unknown("a number used as an integer");
    return split(held[i / 2])[i % 2];
  };
  const Cell first = byteAt(0);
  if (tagOf(first) == Byte::Truth) {
    for (unsigned i = 1; i < size; ++i)
      if (byteAt(i) != byte(Byte::Bits, 0))
        throw Unknown("a truth value beside other bytes as a number");
    return valueOf(first);
  }
  const auto wholeAt = [&](unsigned i) {
    const Cell c = byteAt(i);
    if (tagOf(c) != Byte::Whole)
      throw Unknown("a number used as an integer");
    return wholes_[valueOf(c)];
  };
  const Whole of = wholeAt(0);
  if (!isSigned || of.size > size)
    throw Unknown("a part of an integer, or one without its sign, as a number");
  for (unsigned i = 0; i < size; ++i)
    if (const Whole w = wholeAt(i);
        w.of != of.of || w.at != std::min<unsigned>(i, of.size) || w.size != of.size)
      throw Unknown("bytes of several integers as one number");
  return of.of;
}

} // namespace superopt::ptx
