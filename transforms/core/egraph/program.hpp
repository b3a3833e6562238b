// What the nodes of a tile program refer to: variables, tensors, regions of tensors, loops, shapes.
//
// Everything is interned: equal things have equal numbers, so that nodes stay small and comparable. A program
// is a term of `Node`s over these tables (Trinity, section 3): sequences, loops, stores, and the values
// stored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace superopt::egraph {

using Id = uint32_t;
constexpr Id NONE = UINT32_MAX;
using Bits = uint64_t; // a set of variables

enum class Op : uint8_t {
  Seq,
  Loop,
  Store, // statements
  Load,
  Const,
  Add,
  Sub,
  Mul,
  Div,
  Max,
  Min,
  Exp,
  Unary,
  Matmul,
  Sum,
  Maximum,
  Transpose,
  Reshape,
  Broadcast,
  Concat, // values
};
constexpr int OP_COUNT = static_cast<int>(Op::Concat) + 1;
const char *op_name(Op op);

inline bool is_statement(Op op) { return op <= Op::Store; }
inline bool is_binary(Op op) { return op >= Op::Add && op <= Op::Min; }

// payload: Loop: a `LoopHead`; Store, Load: an `Access`; Const: a `Constant`; Unary: a name; Sum, Maximum: a
// list of dimensions (negative, from the end; kept with extent 1); Transpose: a permutation; Reshape,
// Broadcast: a shape; Concat: a negative dimension; else 0.
struct Node {
  Op op;
  int32_t payload = 0;
  Id a = NONE, b = NONE;
  bool operator==(const Node &) const = default;
};

struct NodeHash {
  size_t operator()(const Node &n) const {
    uint64_t h = static_cast<uint64_t>(n.op) * 0x9E3779B97F4A7C15ull + static_cast<uint32_t>(n.payload);
    for (const uint64_t x : {static_cast<uint64_t>(n.a), static_cast<uint64_t>(n.b)})
      h = (h ^ x) * 0xBF58476D1CE4E5B9ull, h ^= h >> 29;
    return h;
  }
};

// A loop variable: it runs over 0, step, 2 step, ... below `end`. A step of 0 is symbolic: a tile parameter,
// whose costs are estimated at `nominal`.
struct Var {
  std::string name;
  int32_t end = 1;
  int32_t step = 0;
  int32_t nominal = 1;
  bool grid = true; // may become a grid dimension, so inserting statements into its loop may pay off
  int32_t width() const { return step > 0 ? step : nominal; }
  // Number of iterations, 0 where the step is symbolic.
  int32_t trips() const { return step > 0 ? (end + step - 1) / step : 0; }
  int32_t nominal_trips() const { return (end + width() - 1) / width(); }
};

enum class TensorKind : uint8_t { Input, Output, Temporary };

// A tensor, or a bundle of tensors with the same indexing; `members` are the single tensors, sorted.
struct Tensor {
  std::string name;
  std::vector<int32_t> shape;
  TensorKind kind;
  std::vector<int32_t> members;
  int32_t bytes = 2; // of one element
};

// One dimension of a region: all of it; the tile at variable `a` (moved by `b`); block number i of `c`
// elements (moved by `b`), i being the iteration of `a` (c = 1: the one element); or `b` elements from `a`
// on.
struct DimIndex {
  enum Kind : uint8_t { Full, Tile, Elem, Range } kind = Full;
  int32_t a = 0, b = 0, c = 1;
  auto operator<=>(const DimIndex &) const = default;
};

struct Access {
  int32_t tensor;
  std::vector<DimIndex> dims;
  auto operator<=>(const Access &) const = default;
};

// `for var: body`, before which every region of `inits` is filled with 0 (second = 0) or minus infinity (1).
struct LoopHead {
  int32_t var;
  std::vector<std::pair<int32_t, int32_t>> inits; // sorted (access, kind)
  auto operator<=>(const LoopHead &) const = default;
};

struct Constant {
  double value;
  int32_t shape;
  auto operator<=>(const Constant &) const = default;
};

// Extents: a number, or -1 - v for the width of the tile at variable v.
using Shape = std::vector<int32_t>;

template <class T> class Interner {
public:
  int32_t operator()(const T &value) {
    const auto [it, fresh] = index_.try_emplace(value, static_cast<int32_t>(items_.size()));
    if (fresh)
      items_.push_back(value);
    return it->second;
  }
  const T &operator[](int32_t i) const { return items_.at(static_cast<size_t>(i)); }
  size_t size() const { return items_.size(); }

private:
  std::map<T, int32_t> index_;
  std::vector<T> items_;
};

// Scalar operations on an element, and those of them that only the special function units do.
struct Work {
  double flops = 1, special = 0;
};

struct Tables {
  std::vector<Var> vars;
  std::vector<Tensor> tensors;
  Interner<Access> accesses;
  Interner<LoopHead> loops;
  Interner<Constant> constants;
  Interner<std::vector<int32_t>> lists;
  Interner<Shape> shapes;
  Interner<std::string> names;
  std::map<int32_t, Work> works; // of the operators with these names

  int32_t add_var(const Var &var);
  int32_t add_tensor(const Tensor &tensor);
  // Extent of a tile at `v`: a number where the step is one.
  int32_t width(int32_t v) const { return vars[v].step > 0 ? vars[v].step : -1 - v; }
  int32_t extent_in_elements(int32_t extent) const {
    return extent >= 0 ? extent : vars[-1 - extent].nominal;
  }
  double elements(int32_t shape) const;
  int32_t access_shape(int32_t access);
  Bits access_vars(int32_t access) const;
  // Shape of a value; empty where the operands do not fit.
  std::optional<int32_t> infer(const Node &node, int32_t a, int32_t b);
};

} // namespace superopt::egraph
