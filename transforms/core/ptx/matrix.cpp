// Exchange within a warp, and mma.sync. Fragments: PTX ISA, "Matrix multiply-accumulate operation using mma".
#include "ptx/machine.hpp"

namespace superopt::ptx {

void Machine::shuffle(const Instr &in, std::span<const u16> lanes) {
  const Arg &members = arg(in, in.count - 1);
  for (u16 t : lanes)
    if (static_cast<u32>(bits(members, t)) != ~0u)
      throw Unknown("an exchange among some threads of a warp");
  warps(lanes, [&](u16 first) {
    if (in.op == Op::elect) {
      for (std::size_t i = 0; i < kWarp; ++i) {
        setBits(arg(in, 0), static_cast<u16>(first + i), 0);
        setBits(arg(in, 1), static_cast<u16>(first + i), i == 0);
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

// D = A B + C with m = 16, n = 8 and k = 8 or 16.
void Machine::mma(const Instr &in, std::span<const u16> lanes) {
  const Type type = static_cast<Type>(in.mode);
  const std::size_t k = static_cast<std::size_t>(in.aux), na = k / 4, nb = k / 8;
  warps(lanes, [&](u16 first) {
    std::array<std::array<Handle, 16>, 16> a{};
    std::array<std::array<Handle, 16>, 8> b{}; // by column
    std::array<std::array<Handle, 8>, 16> c{};
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      const u16 t = static_cast<u16>(first + lane);
      const std::size_t g = lane / 4, j = 2 * (lane % 4);
      Cell held[2];
      for (std::size_t i = 0; i < na; ++i) {
        cells(arg(in, 4 + i), t, 32, held);
        for (std::size_t h = 0; h < 2; ++h)
          a[g + 8 * (i % 2)][j + h + 8 * (i / 2)] = half(held[h], type);
      }
      for (std::size_t i = 0; i < nb; ++i) {
        cells(arg(in, 4 + na + i), t, 32, held);
        for (std::size_t h = 0; h < 2; ++h)
          b[g][j + h + 8 * i] = half(held[h], type);
      }
      for (std::size_t i = 0; i < 4; ++i)
        c[g + 8 * (i / 2)][j + i % 2] = number(arg(in, 4 + na + nb + i), t);
    }
    std::array<std::array<Number, 16>, 16> rows{};
    std::array<std::array<Number, 16>, 8> columns{};
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t l = 0; l < k; ++l)
        rows[i][l] = numbers_.get(a[i][l]);
    for (std::size_t i = 0; i < 8; ++i)
      for (std::size_t l = 0; l < k; ++l)
        columns[i][l] = numbers_.get(b[i][l]);
    for (std::size_t lane = 0; lane < kWarp; ++lane)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        const Number x =
            numbers_.dot(rows[row].data(), columns[column].data(), k, numbers_.get(c[row][column]));
        setNumber(arg(in, i), static_cast<u16>(first + lane), numbers_.put(x));
      }
  });
}

} // namespace superopt::ptx
