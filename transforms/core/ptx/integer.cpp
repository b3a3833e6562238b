// Integers, and moves of anything between registers.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr u64 mask(unsigned width) { return width >= 64 ? ~u64{0} : (u64{1} << width) - 1; }
constexpr i64 extended(u64 x, unsigned width) {
  return width >= 64 ? static_cast<i64>(x) : static_cast<i64>(x << (64 - width)) >> (64 - width);
}

} // namespace

u64 Machine::compute(const Instr &in, u64 a, u64 b, u64 c) const {
  const unsigned w = in.width;
  const bool isSigned = in.mode != 0;
  const auto s = [&](u64 x) { return extended(x, w); };
  const auto u = [&](u64 x) { return x & mask(w); };
  switch (in.op) {
  case Op::add:
    return a + b;
  case Op::sub:
    return a - b;
  case Op::mul:
    return a * b;
  case Op::mad:
    return a * b + c;
  case Op::mul_wide:
  case Op::mad_wide:
    return (isSigned ? static_cast<u64>(s(a) * s(b)) : u(a) * u(b)) + (in.op == Op::mad_wide ? c : 0);
  case Op::mul_hi:
    if (w != 32)
      throw Unknown("mul.hi of other than 32 bits");
    return isSigned ? static_cast<u64>(s(a) * s(b)) >> 32 : u(a) * u(b) >> 32;
  case Op::shl:
    return (b & 0xffffffff) >= w ? 0 : a << (b & 63);
  case Op::shr: {
    const u64 by = std::min<u64>(b & 0xffffffff, w);
    if (isSigned)
      return static_cast<u64>(s(a) >> std::min<u64>(by, 63));
    return by >= w ? 0 : u(a) >> by;
  }
  case Op::and_:
    return a & b;
  case Op::or_:
    return a | b;
  case Op::xor_:
    return a ^ b;
  case Op::not_:
    return ~a;
  case Op::neg:
    return u64{0} - a;
  case Op::abs:
    return s(a) < 0 ? u64{0} - a : a;
  case Op::min:
    return isSigned ? (s(a) < s(b) ? a : b) : (u(a) < u(b) ? a : b);
  case Op::max:
    return isSigned ? (s(a) > s(b) ? a : b) : (u(a) > u(b) ? a : b);
  case Op::bfe: {
    const u64 from = b & 255, count = c & 255;
    if (count == 0)
      return 0;
    const u64 field = from >= w ? (isSigned && s(a) < 0 ? ~u64{0} : 0)
                                : (isSigned ? static_cast<u64>(s(a) >> from) : u(a) >> from);
    if (count >= 64)
      return field;
    return isSigned ? static_cast<u64>(extended(field, static_cast<unsigned>(count)))
                    : field & mask(static_cast<unsigned>(count));
  }
  case Op::div:
  case Op::rem: {
    if (u(b) == 0)
      throw Illegal("expected a divisor, got zero");
    const bool div = in.op == Op::div;
    if (!isSigned)
      return div ? u(a) / u(b) : u(a) % u(b);
    if (s(b) == -1)
      return div ? u64{0} - a : 0;
    return static_cast<u64>(div ? s(a) / s(b) : s(a) % s(b));
  }
  case Op::convert: {
    const unsigned from = static_cast<unsigned>(in.aux);
    return isSigned ? static_cast<u64>(extended(a, from)) : a & mask(from);
  }
  case Op::setp: {
    const auto holds = [&](auto x, auto y) {
      switch (static_cast<Compare>(in.aux)) {
      case Compare::Eq:
        return x == y;
      case Compare::Ne:
        return x != y;
      case Compare::Lt:
        return x < y;
      case Compare::Le:
        return x <= y;
      case Compare::Gt:
        return x > y;
      default:
        return x >= y;
      }
    };
    return isSigned ? holds(s(a), s(b)) : holds(u(a), u(b));
  }
  default:
    throw Unknown(kOps[static_cast<std::size_t>(in.op)]);
  }
}

void Machine::integer(const Instr &in, std::span<const u16> lanes) {
  const Arg &d = arg(in, 0);
  bool plain = true;
  for (std::size_t i = 1; i < in.count; ++i)
    plain = plain && allBits(arg(in, i), lanes);
  const bool wide = in.op == Op::mul_wide || in.op == Op::mad_wide;
  const u64 keep = in.op == Op::setp ? 1 : mask(wide ? 2u * in.width : in.width);
  if (!plain) {
    for (u16 t : lanes)
      cellwise(in, t);
    return;
  }
  const auto from = [&](std::size_t i) -> std::pair<const u64 *, u64> {
    if (i >= in.count)
      return {nullptr, 0};
    const Arg &a = arg(in, i);
    return a.reg < 0
               ? std::pair<const u64 *, u64>{nullptr, a.imm}
               : std::pair<const u64 *, u64>{values_.data() + static_cast<std::size_t>(a.reg) * threads_, 0};
  };
  const auto [a, ai] = from(1);
  const auto [b, bi] = from(2);
  const auto [c, ci] = from(3);
  if (d.reg < 0)
    return;
  u64 *out = values_.data() + static_cast<std::size_t>(d.reg) * threads_;
  Tag *tags = tags_.data() + static_cast<std::size_t>(d.reg) * threads_;
  const auto each = [&](auto f) {
    for (u16 t : lanes)
      out[t] = f(a ? a[t] : ai, b ? b[t] : bi, c ? c[t] : ci) & keep;
  };
  switch (in.op) { // the common ones without a switch inside
  case Op::add:
    each([](u64 x, u64 y, u64) { return x + y; });
    break;
  case Op::and_:
    each([](u64 x, u64 y, u64) { return x & y; });
    break;
  case Op::xor_:
    each([](u64 x, u64 y, u64) { return x ^ y; });
    break;
  case Op::or_:
    each([](u64 x, u64 y, u64) { return x | y; });
    break;
  default:
    each([&](u64 x, u64 y, u64 z) { return compute(in, x, y, z); });
  }
  for (u16 t : lanes)
    tags[t] = Tag::Bits;
}

// Whether an operand is an address in device memory: moved by a number, it is another one. Anything else that
// is computed of it would depend on where memory lies.
bool Machine::moveAddress(const Instr &in, u16 t) {
  std::size_t found = 0;
  for (std::size_t i = 1; i < in.count; ++i)
    if (const Arg &a = arg(in, i); a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Address) {
      if (found != 0)
        throw Unknown("a computation on two addresses in device memory");
      found = i;
    }
  if (found == 0)
    return false;
  const bool wide = in.op == Op::mad_wide && in.width == 32 && found == 3;
  if (!wide && (in.width != 64 || !(in.op == Op::add || (in.op == Op::sub && found == 1))))
    throw Unknown("an address in device memory used as an integer");
  const Arg &d = arg(in, 0);
  const std::size_t from = at(arg(in, found).reg, t);
  std::array<u64, 3> x{};
  for (std::size_t i = 1; i < in.count; ++i) {
    const Arg &a = arg(in, i);
    if (a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Undefined)
      return setUndefined(d, t), true;
    x[i - 1] = i == found ? values_[from] : bits(a, t);
  }
  if (d.reg < 0)
    return true;
  const std::size_t to = at(d.reg, t);
  highs_[to] = highs_[from];
  values_[to] = compute(in, x[0], x[1], x[2]);
  tags_[to] = Tag::Address;
  return true;
}

// Operations on bits where some are numbers: moves, and nothing else.
void Machine::cellwise(const Instr &in, u16 t) {
  if (moveAddress(in, t) || moveTensor(in, t) || movePlace(in, t))
    return;
  const Arg &d = arg(in, 0);
  const auto refuse = [&]() -> void {
    throw Unknown(std::string(kOps[static_cast<std::size_t>(in.op)]) + " of a number's bits");
  };
  bool undefined = true;
  bool plain = true;
  for (std::size_t i = 1; i < in.count; ++i) {
    const Arg &a = arg(in, i);
    const Tag tag = a.reg < 0 ? Tag::Bits : tags_[at(a.reg, t)];
    plain = plain && tag == Tag::Bits;
    undefined = undefined && (tag == Tag::Bits || tag == Tag::Undefined);
  }
  const auto value = [&](std::size_t i) { return i < in.count ? bits(arg(in, i), t) : 0; };
  if (plain) {
    const bool wide = in.op == Op::mul_wide || in.op == Op::mad_wide;
    const u64 keep = in.op == Op::setp ? 1 : mask(wide ? 2u * in.width : in.width);
    return setBits(d, t, compute(in, value(1), value(2), value(3)) & keep);
  }
  if (truthPredicate(in, t) || extendWhole(in, t))
    return;
  const unsigned n = in.width / 16;
  std::array<Cell, 4> a{}, b{}, out{};
  const bool isBitwise = in.op == Op::and_ || in.op == Op::or_ || in.op == Op::xor_;
  if (isBitwise && n > 0) {
    cells(arg(in, 1), t, in.width, a.data());
    cells(arg(in, 2), t, in.width, b.data());
    for (unsigned i = 0; i < n; ++i)
      out[i] = bitwise(in.op, a[i], b[i]);
    return setCells(d, t, in.width, out.data());
  }
  if ((in.op == Op::shl || (in.op == Op::shr && in.mode == 0)) && n > 0) {
    const u64 by = bits(arg(in, 2), t);
    cells(arg(in, 1), t, in.width, a.data());
    if (by % 16 == 0) {
      for (unsigned i = 0; i < n; ++i) {
        const i64 from =
            in.op == Op::shl ? i64{i} - static_cast<i64>(by / 16) : i64{i} + static_cast<i64>(by / 16);
        out[i] = from < 0 || from >= n ? cell(Part::Bits, 0) : a[static_cast<std::size_t>(from)];
      }
      return setCells(d, t, in.width, out.data());
    }
    if (by % 8 == 0) {
      const i64 shift = static_cast<i64>(by / 8) * (in.op == Op::shl ? -1 : 1);
      const auto at = [&](i64 i) {
        return i < 0 || i >= 2 * static_cast<i64>(n) ? byte(Byte::Bits, 0)
                                                     : split(a[static_cast<std::size_t>(i / 2)])[i % 2];
      };
      for (unsigned i = 0; i < n; ++i)
        out[i] = join(at(2 * i + shift), at(2 * i + 1 + shift));
      return setCells(d, t, in.width, out.data());
    }
  }
  if (in.op == Op::convert && in.mode == 0 && n > 0) {
    out.fill(cell(Part::Bits, 0));
    cells(arg(in, 1), t, std::max(static_cast<unsigned>(in.aux), 16u), out.data());
    if (in.aux < 16)
      out[0] = join(split(out[0])[0], byte(Byte::Bits, 0));
    return setCells(d, t, in.width, out.data());
  }
  if (!undefined)
    refuse();
  setUndefined(d, t);
}

// Sixteen bits of `and`, `or` or `xor`: what keeps or clears a number is a move.
Cell Machine::bitwise(Op op, Cell x, Cell y) {
  if (partOf(x) == Part::Bits && partOf(y) != Part::Bits)
    std::swap(x, y);
  const auto compute = [op](u32 u, u32 v) { return op == Op::and_ ? u & v : op == Op::or_ ? u | v : u ^ v; };
  const auto refuse = [op]() -> Cell {
    throw Unknown(std::string(kOps[static_cast<std::size_t>(op)]) + " of a number's bits");
  };
  const u32 v = valueOf(y);
  if (partOf(x) == Part::Bits)
    return cell(Part::Bits, compute(valueOf(x), v));
  if (partOf(y) == Part::Bits && v == 0)
    return op == Op::and_ ? cell(Part::Bits, 0) : x;
  if (partOf(y) == Part::Bits && op == Op::and_ && v == 0xffff)
    return x;
  if (partOf(x) == Part::Undefined || partOf(y) == Part::Undefined)
    return 0;
  if (partOf(x) != Part::Bytes && partOf(y) != Part::Bytes)
    return refuse();
  const std::array<Cell, 2> a = split(x), b = split(y);
  std::array<Cell, 2> out{};
  for (std::size_t i = 0; i < 2; ++i) {
    Cell p = a[i], q = b[i];
    if (tagOf(p) == Byte::Bits)
      std::swap(p, q);
    const u32 w = valueOf(q);
    if (tagOf(p) == Byte::Bits)
      out[i] = byte(Byte::Bits, compute(valueOf(p), w));
    else if (tagOf(q) == Byte::Bits && w == 0)
      out[i] = op == Op::and_ ? byte(Byte::Bits, 0) : p;
    else if (tagOf(q) == Byte::Bits && op == Op::and_ &&
             (w == 0xff || (tagOf(p) == Byte::Truth && w % 2 == 1)))
      out[i] = p;
    else if (tagOf(p) == Byte::Undefined || tagOf(q) == Byte::Undefined)
      out[i] = 0;
    else
      refuse();
  }
  return join(out[0], out[1]);
}

// prmt: bytes of two registers, or a byte's sign repeated; pairs that stay together are moved as they are.
void Machine::permute(const Instr &in, std::span<const u16> lanes) {
  for (u16 t : lanes) {
    Cell source[4], out[2];
    cells(arg(in, 1), t, 32, source);
    cells(arg(in, 2), t, 32, source + 2);
    const u64 selector = bits(arg(in, 3), t);
    const auto picked = [&](u32 which) {
      const Cell c = split(source[(which & 7) / 2])[which % 2];
      return which < 8 ? c : signOf(c);
    };
    for (std::size_t i = 0; i < 2; ++i) {
      const u32 low = selector >> (8 * i) & 15, high = selector >> (8 * i + 4) & 15;
      out[i] = low < 8 && low % 2 == 0 && high == low + 1 ? source[low / 2] : join(picked(low), picked(high));
    }
    setCells(arg(in, 0), t, 32, out);
  }
}

void Machine::move(const Instr &in, std::span<const u16> lanes) {
  std::array<Cell, 4> held{};
  for (u16 t : lanes)
    switch (in.op) {
    case Op::mov:
    case Op::selp: {
      if (in.op == Op::selp) {
        const Arg &p = arg(in, 3);
        if (p.reg >= 0 && tags_[at(p.reg, t)] == Tag::Undefined) {
          setUndefined(arg(in, 0), t);
          break;
        }
        if (p.reg >= 0 && tags_[at(p.reg, t)] == Tag::Number) {
          const auto s = static_cast<Handle>(values_[at(p.reg, t)]);
          if (in.width == 16)
            chooseHalf(in, t, s);
          else if (in.width == 32)
            setNumber(arg(in, 0), t, numbers_.chosen(s, number(arg(in, 1), t), number(arg(in, 2), t)));
          else
            throw Unknown("a comparison of numbers that selects other than fp32");
          break;
        }
      }
      const Arg &from = in.op == Op::mov || predicate(arg(in, 3), t) ? arg(in, 1) : arg(in, 2);
      const Arg &d = arg(in, 0);
      if (from.reg < 0) {
        setBits(d, t, from.imm);
      } else if (d.reg >= 0) {
        tags_[at(d.reg, t)] = tags_[at(from.reg, t)];
        values_[at(d.reg, t)] = values_[at(from.reg, t)];
        highs_[at(d.reg, t)] = highs_[at(from.reg, t)];
      }
      break;
    }
    case Op::pack: {
      const unsigned each = in.width / (in.count - 1);
      for (std::size_t i = 1; i < in.count; ++i)
        cells(arg(in, i), t, each, held.data() + (i - 1) * each / 16);
      setCells(arg(in, 0), t, in.width, held.data());
      break;
    }
    default: {
      const std::size_t parts = in.count - 1;
      const unsigned each = in.width / static_cast<unsigned>(parts);
      cells(arg(in, parts), t, in.width, held.data());
      for (std::size_t i = 0; i < parts; ++i)
        setCells(arg(in, i), t, each, held.data() + i * each / 16);
    }
    }
}

} // namespace superopt::ptx
