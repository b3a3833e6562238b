// Numbers: what registers hold of them, and arithmetic.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

constexpr u32 kNan = 0x7fc00000;

// The number that two cells are the words of.
Handle Machine::number(Cell low, Cell high) {
  if (low == kOld || high == kOld)
    throw Unknown("a number that an atomic returns, which depends on the order of threads");
  if (partOf(low) == Part::Undefined || partOf(high) == Part::Undefined)
    return numbers_.constant32(kNan);
  if (partOf(low) == Part::Bits && partOf(high) == Part::Bits)
    return numbers_.constant32(valueOf(low) | valueOf(high) << 16);
  if (partOf(low) == Part::Low && partOf(high) == Part::High && valueOf(low) == valueOf(high))
    return valueOf(low);
  throw Illegal("expected an fp32 number, got parts of others");
}

Handle Machine::number(const Arg &a, u16 t) {
  if (a.reg < 0)
    return numbers_.constant32(static_cast<u32>(a.imm));
  const std::size_t i = at(a.reg, t);
  if (tags_[i] == Tag::Number)
    return static_cast<Handle>(values_[i]);
  Cell held[4];
  cells(a, t, 32, held);
  return number(held[0], held[1]);
}

Handle Machine::half(Cell c, Type type) {
  const bool brain = type == Type::BF16 || type == Type::BF16x2;
  switch (partOf(c)) {
  case Part::Undefined:
    return numbers_.constant32(kNan);
  case Part::Bits: {
    const u16 bits = static_cast<u16>(valueOf(c));
    return brain ? numbers_.constantBrain(bits) : numbers_.constant16(bits);
  }
  case Part::Half:
  case Part::Brain:
    if ((partOf(c) == Part::Brain) == brain)
      return valueOf(c);
    [[fallthrough]];
  default:
    if (partOf(c) == Part::Bytes && type == Type::F16) { // E5M2 is the upper byte of fp16
      const std::array<Cell, 2> held = split(c);
      if (held[0] == byte(Byte::Bits, 0) && tagOf(held[1]) == Byte::E5M2)
        return valueOf(held[1]);
    }
    if (c == kOld)
      throw Unknown("a number that an atomic returns, which depends on the order of threads");
    throw Illegal("expected a 16-bit number, got a part of another");
  }
}

Handle Machine::evaluate(Op op, Handle a, Handle b, Handle c) {
  switch (op) {
  case Op::fadd:
    return numbers_.add(a, b);
  case Op::fsub:
    return numbers_.sub(a, b);
  case Op::fmul:
    return numbers_.mul(a, b);
  case Op::fma:
    return numbers_.fma(a, b, c);
  case Op::fdiv:
    return numbers_.div(a, b);
  case Op::fmax:
  case Op::fmin:
    return numbers_.extreme(op == Op::fmax, a, b);
  case Op::fneg:
    return numbers_.neg(a);
  case Op::ex2:
    return numbers_.exp2(a);
  case Op::lg2:
    return numbers_.log2(a);
  case Op::sqrt:
    return numbers_.apply(Function::Sqrt, a);
  case Op::rsqrt:
    return numbers_.rsqrt(a);
  case Op::rcp:
    return numbers_.reciprocal(a);
  case Op::log:
    return numbers_.apply(Function::Log, a);
  case Op::sin:
    return numbers_.apply(Function::Sin, a);
  case Op::cos:
    return numbers_.apply(Function::Cos, a);
  default:
    return numbers_.apply(Function::Erf, a);
  }
}

// A predicate of numbers: a bit where the outcome is known, else the number that stands for it.
void Machine::compareNumbers(const Instr &in, std::span<const u16> lanes) {
  if (in.op == Op::fdefined) { // no NaN, but where the outcome is none
    for (u16 t : lanes) {
      const bool defined = numbers_.get(number(arg(in, 1), t)).kind() != kUndefinedNumber &&
                           numbers_.get(number(arg(in, 2), t)).kind() != kUndefinedNumber;
      defined ? setBits(arg(in, 0), t, static_cast<u64>(in.aux)) : setUndefined(arg(in, 0), t);
    }
    return;
  }
  const auto how = static_cast<Compare>(in.aux);
  const bool swapped = how == Compare::Lt || how == Compare::Ge;
  const bool negated = how == Compare::Le || how == Compare::Ge;
  const Type type = static_cast<Type>(in.mode);
  const unsigned parts = in.count - 2;
  for (u16 t : lanes) {
    Cell held[2][2];
    if (type != Type::F32)
      for (unsigned i = 0; i < 2; ++i)
        cells(arg(in, parts + i), t, 16 * parts, held[i]);
    for (unsigned j = 0; j < parts; ++j) {
      const Handle a = type == Type::F32 ? number(arg(in, parts), t) : half(held[0][j], type);
      const Handle b = type == Type::F32 ? number(arg(in, parts + 1), t) : half(held[1][j], type);
      Handle s = swapped ? numbers_.larger(b, a) : numbers_.larger(a, b);
      if (negated)
        s = numbers_.sub(numbers_.integer(1), s);
      if (const auto known = numbers_.truth(s))
        setBits(arg(in, j), t, *known ? 1 : 0);
      else
        setNumber(arg(in, j), t, s);
    }
  }
}

// A selection of 16-bit numbers. Of two constants the bits do not say what they are: it is what the arguments
// hold, and reading the result as anything else is illegal.
void Machine::chooseHalf(const Instr &in, u16 t, Handle s) {
  Cell a[1], b[1];
  cells(arg(in, 1), t, 16, a);
  cells(arg(in, 2), t, 16, b);
  bool brain = false, known = false;
  for (Cell c : {a[0], b[0]})
    if (partOf(c) == Part::Half || partOf(c) == Part::Brain) {
      brain = partOf(c) == Part::Brain;
      known = true;
    }
  if (!known) {
    const auto holds = [this](Type type) {
      return std::ranges::any_of(buffers_, [type](const Buffer &x) { return x.type == type; });
    };
    brain = holds(Type::BF16);
    if (brain == holds(Type::F16))
      throw Unknown("a selection of 16-bit constants of an unknown type");
  }
  const Type type = brain ? Type::BF16 : Type::F16;
  const Cell out[1] = {
      cell(brain ? Part::Brain : Part::Half, numbers_.chosen(s, half(a[0], type), half(b[0], type)))};
  setCells(arg(in, 0), t, 16, out);
}

void Machine::floating(const Instr &in, std::span<const u16> lanes) {
  const Type type = static_cast<Type>(in.mode);
  const std::size_t n = in.count - 1;
  std::array<Handle, 3> x{};
  if (type == Type::F32) {
    // add.f32.f16 and the like: what is added is half as wide.
    const std::size_t halves = in.aux == 0 ? 0 : n - 1;
    for (u16 t : lanes) {
      for (std::size_t i = 0; i < n; ++i)
        if (i < halves) {
          Cell held[1];
          cells(arg(in, i + 1), t, 16, held);
          x[i] = half(held[0], static_cast<Type>(in.aux));
        } else {
          x[i] = number(arg(in, i + 1), t);
        }
      if (n == 3 && in.op != Op::fma) // max and min of three
        x[0] = evaluate(in.op, x[0], x[2], 0);
      setNumber(arg(in, 0), t, evaluate(in.op, x[0], x[1], x[2]));
    }
    return;
  }
  const unsigned parts = type == Type::F16 || type == Type::BF16 ? 1 : 2;
  const bool pair = type == Type::F32x2, brain = type == Type::BF16 || type == Type::BF16x2;
  const unsigned width = pair ? 64 : 16 * parts;
  for (u16 t : lanes) {
    Cell held[3][4], out[4];
    for (std::size_t i = 0; i < n; ++i)
      cells(arg(in, i + 1), t, width, held[i]);
    for (unsigned j = 0; j < parts; ++j) {
      for (std::size_t i = 0; i < n; ++i)
        x[i] = pair ? number(held[i][2 * j], held[i][2 * j + 1]) : half(held[i][j], type);
      const Handle h = evaluate(in.op, x[0], x[1], x[2]);
      if (pair) {
        out[2 * j] = cell(Part::Low, h);
        out[2 * j + 1] = cell(Part::High, h);
      } else {
        out[j] = cell(brain ? Part::Brain : Part::Half, h);
      }
    }
    setCells(arg(in, 0), t, width, out);
  }
}

// fp8 to fp16 and back, two at a time.
void Machine::convertPair(const Instr &in, u16 t) {
  const Type from = static_cast<Type>(in.aux), to = static_cast<Type>(in.mode);
  Cell held[2], out[2];
  if (bytesOf(from) == 1) {
    cells(arg(in, 1), t, 16, held);
    for (std::size_t i = 0; i < 2; ++i)
      out[i] = cellOf(eighth(split(held[0])[i], from), to);
    return setCells(arg(in, 0), t, 32, out);
  }
  cells(arg(in, 1), t, 32, held);
  out[0] = join(cellOf(half(held[0], from), to), cellOf(half(held[1], from), to));
  setCells(arg(in, 0), t, 16, out);
}

// Conversions between floating-point types keep the number.
void Machine::convert(const Instr &in, std::span<const u16> lanes) {
  const Type from = static_cast<Type>(in.aux), to = static_cast<Type>(in.mode);
  const Part part = to == Type::BF16 ? Part::Brain : Part::Half;
  for (u16 t : lanes) {
    if (in.op == Op::convert_pair) {
      convertPair(in, t);
      continue;
    }
    if (in.op == Op::pack_halves && to >= Type::E4M3) {
      const Cell out[1] = {join(cellOf(number(arg(in, 2), t), to), cellOf(number(arg(in, 1), t), to))};
      setCells(arg(in, 0), t, 16, out);
      continue;
    }
    if (in.op == Op::pack_halves) { // the first operand is the upper half
      const Cell out[2] = {cell(part, number(arg(in, 2), t)), cell(part, number(arg(in, 1), t))};
      setCells(arg(in, 0), t, 32, out);
      continue;
    }
    Handle h;
    if (in.op == Op::from_integer) {
      h = wholeNumber(in, t);
    } else if (from == Type::F32) {
      h = number(arg(in, 1), t);
    } else {
      Cell held[1];
      cells(arg(in, 1), t, 16, held);
      h = half(held[0], from);
    }
    if (to == Type::F32) {
      setNumber(arg(in, 0), t, h);
    } else {
      const Cell out[1] = {cell(part, h)};
      setCells(arg(in, 0), t, 16, out);
    }
  }
}

} // namespace superopt::ptx
