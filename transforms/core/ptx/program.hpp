// A decoded kernel: instructions with their operands, as `superopt.verify.ptx.decode` writes them.
#pragma once

#include <string>
#include <vector>

#include "ptx/number.hpp"

namespace superopt::ptx {

// clang-format off
#define SUPEROPT_PTX_OPS(X) \
  X(mov) X(prmt) X(pack) X(unpack) X(add) X(sub) X(mul) X(mul_wide) X(mul_hi) X(mad) X(mad_wide) X(shl) X(shr) X(and_) \
  X(or_) X(xor_) X(not_) X(neg) X(abs) X(min) X(max) X(bfe) X(div) X(rem) X(setp) X(fsetp) X(fdefined) X(selp) X(convert) \
  X(branch) X(ret) X(barrier) X(arrive) X(warp_barrier) X(grid_wait) X(nop) X(trap) \
  X(fadd) X(fsub) X(fmul) X(fma) X(fdiv) X(fmax) X(fmin) X(fneg) X(ex2) X(lg2) X(sqrt) X(rsqrt) X(rcp) X(erf) X(log) \
  X(sin) X(cos) X(to_float) X(from_integer) X(pack_halves) X(convert_pair) \
  X(load) X(store) X(atomic) X(copy) X(copy_commit) X(copy_wait) X(ldmatrix) X(stmatrix) X(mma) X(shuffle) X(elect) \
  X(reduce) X(proxy_fence) \
  X(wgmma) X(wgmma_fence) X(wgmma_commit) X(wgmma_wait) \
  X(mbarrier_init) X(mbarrier_inval) X(mbarrier_test) X(mbarrier_expect) \
  X(map_replace) X(map_publish) X(map_acquire) X(bulk_load) X(bulk_store) X(bulk_commit) X(bulk_wait) \
  X(tensor_alloc) X(tensor_release) X(tensor_free) X(tensor_load) X(tensor_store) X(tensor_wait) X(tensor_mma) \
  X(tensor_commit)
// clang-format on

enum class Op : u16 {
#define X(name) name,
  SUPEROPT_PTX_OPS(X)
#undef X
};

inline constexpr const char *kOps[] = {
#define X(name) #name,
    SUPEROPT_PTX_OPS(X)
#undef X
};

// I1 is a truth value in a byte.
enum class Type : u8 { F32, F16, BF16, F16x2, BF16x2, F32x2, E4M3, E5M2, I1, I8, I16, I32, I64 };
constexpr bool isWhole(Type type) { return type >= Type::I1; }
// Of one element; tf32 is an fp32 number.
constexpr unsigned bytesOf(Type type) {
  switch (type) {
  case Type::E4M3:
  case Type::E5M2:
  case Type::I1:
  case Type::I8:
    return 1;
  case Type::F32:
  case Type::I32:
    return 4;
  case Type::I64:
    return 8;
  default:
    return 2;
  }
}
enum class Space : u8 { Shared, Global };
enum class Atomic : u8 { Add, Max, Min, And, Or, Xor };
enum class Compare : u8 { Eq, Ne, Lt, Le, Gt, Ge };

struct Arg {
  i32 reg; // -1: the immediate; -2: a result that nobody wants
  u64 imm;
};

// `width` is in bits, `mode` and `aux` depend on the operation; see decode.py, which fills them in.
struct Instr {
  Op op;
  u8 width, mode;
  i32 pred; // register, or -1
  bool negated;
  u32 first, count;
  i64 aux;
  u32 line;
};

struct Program {
  std::vector<Instr> code;
  std::vector<Arg> args;
  std::size_t registers = 0;
};

} // namespace superopt::ptx
