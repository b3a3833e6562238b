// Exchange within a warp, and mma.sync. Fragments: PTX ISA, "Matrix multiply-accumulate operation using mma".
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

void Machine::shuffle(const Instr &in, std::span<const u16> lanes) {
  const Arg &members = arg(in, in.count - 1);
  for (u16 t : lanes)
    if (static_cast<u32>(bits(members, t)) != ~0u)
      throw Unknown("an exchange among some threads of a warp");
  warps(lanes, [&](u16 first) {
    if (in.op == Op::elect) { // the same thread each time (PTX ISA, "elect.sync"): that of `mode`
      for (std::size_t i = 0; i < kWarp; ++i) {
        setBits(arg(in, 0), static_cast<u16>(first + i), in.mode);
        setBits(arg(in, 1), static_cast<u16>(first + i), i == in.mode);
      }
      return;
    }
    if (in.op == Op::reduce) {
      Handle h = number(arg(in, 1), first);
      for (std::size_t i = 1; i < kWarp; ++i)
        h = numbers_.extreme(in.mode != 0, h, number(arg(in, 1), static_cast<u16>(first + i)));
      for (std::size_t i = 0; i < kWarp; ++i)
        setNumber(arg(in, 0), static_cast<u16>(first + i), h);
      return;
    }
    std::array<std::array<Cell, 2>, kWarp> held{};
    for (std::size_t i = 0; i < kWarp; ++i)
      cells(arg(in, 1), static_cast<u16>(first + i), 32, held[i].data());
    for (std::size_t i = 0; i < kWarp; ++i) {
      const u16 t = static_cast<u16>(first + i);
      const u64 by = bits(arg(in, 2), t) & 31;
      if ((bits(arg(in, 3), t) & 0x1f1f) != 31)
        throw Unknown("an exchange among parts of a warp");
      const std::size_t from = in.mode == 0 ? i ^ by : by;
      setCells(arg(in, 0), t, 32, held[from].data());
    }
  });
}

// D = A B + C with m = 16, n = 8 and k = 4 (tf32) to 32 (fp8): a register holds 1, 2 or 4 elements of a row.
void Machine::mma(const Instr &in, std::span<const u16> lanes) {
  const Type type = static_cast<Type>(in.mode), bType = static_cast<Type>(in.aux >> 16);
  const std::size_t each = 4 / bytesOf(type), k = static_cast<std::size_t>(in.aux & 0xffff),
                    nb = k / (4 * each), na = 2 * nb;
  warps(lanes, [&](u16 first) {
    spend(16 * 8 * k);
    std::array<std::array<Number, kMostDepth>, 16> a{};
    std::array<std::array<Number, kMostDepth>, 8> b{}; // by column
    std::array<std::array<Handle, 8>, 16> c{};
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      const u16 t = static_cast<u16>(first + lane);
      const std::size_t g = lane / 4, j = lane % 4;
      for (std::size_t i = 0; i < na; ++i)
        elements(arg(in, 4 + i), t, type, a[g + 8 * (i % 2)].data() + each * (j + 4 * (i / 2)));
      for (std::size_t i = 0; i < nb; ++i)
        elements(arg(in, 4 + na + i), t, bType, b[g].data() + each * (j + 4 * i));
      for (std::size_t i = 0; i < 4; ++i)
        c[g + 8 * (i / 2)][2 * j + i % 2] = number(arg(in, 4 + na + nb + i), t);
    }
    for (std::size_t lane = 0; lane < kWarp; ++lane)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        const Number x = dot(a[row].data(), b[column].data(), k, numbers_.get(c[row][column]));
        setNumber(arg(in, i), static_cast<u16>(first + lane), numbers_.put(x));
      }
  });
}

// The elements that a register of 32 bits holds.
void Machine::elements(const Arg &a, u16 t, Type type, Number *out) {
  if (type == Type::F32) {
    *out = numbers_.get(number(a, t));
    return;
  }
  Cell held[2];
  cells(a, t, 32, held);
  for (Cell c : held)
    if (bytesOf(type) == 2)
      *out++ = numbers_.get(half(c, type));
    else
      for (Cell b : split(c))
        *out++ = numbers_.get(eighth(b, type));
}

// c + sum a[i] b[i], over any number of terms.
Number Machine::dot(const Number *a, const Number *b, std::size_t depth, Number c) const {
  for (std::size_t i = 0; i < depth; i += 16)
    c = numbers_.dot(a + i, b + i, std::min<std::size_t>(16, depth - i), c);
  return c;
}

} // namespace superopt::ptx
