#include "egraph/program.hpp"

#include <algorithm>
#include <stdexcept>

namespace superopt::egraph {

const char *op_name(Op op) {
  static const char *const names[OP_COUNT] = {
      "seq", "loop", "store", "load",   "const", "+",    "-",       "*",       "/",     "max",
      "min", "exp",  "unary", "matmul", "rsum",  "rmax", "permute", "reshape", "bcast", "concat"};
  return names[static_cast<int>(op)];
}

int32_t Tables::add_var(const Var &var) {
  if (vars.size() == 64)
    throw std::length_error("expected at most 64 loop variables in one program");
  if (var.end < 1 || var.step < 0 || var.nominal < 1)
    throw std::invalid_argument("expected a loop with a positive extent and width");
  vars.push_back(var);
  return static_cast<int32_t>(vars.size() - 1);
}

int32_t Tables::add_tensor(const Tensor &tensor) {
  const auto number = static_cast<int32_t>(tensors.size());
  tensors.push_back(tensor);
  auto &members = tensors.back().members;
  if (members.empty())
    members.push_back(number);
  std::ranges::sort(members);
  return number;
}

double Tables::elements(int32_t shape) const {
  double product = 1;
  for (const int32_t extent : shapes[shape])
    product *= extent_in_elements(extent);
  return product;
}

int32_t Tables::access_shape(int32_t access) {
  const Access &region = accesses[access];
  Shape shape;
  for (size_t d = 0; d < region.dims.size(); ++d) {
    const DimIndex &dim = region.dims[d];
    switch (dim.kind) {
    case DimIndex::Full:
      shape.push_back(tensors[region.tensor].shape.at(d));
      break;
    case DimIndex::Tile:
      shape.push_back(width(dim.a));
      break;
    case DimIndex::Elem:
      shape.push_back(dim.c);
      break;
    case DimIndex::Range:
      shape.push_back(dim.b);
      break;
    }
  }
  return shapes(shape);
}

Bits Tables::access_vars(int32_t access) const {
  Bits out = 0;
  for (const DimIndex &dim : accesses[access].dims)
    if (dim.kind == DimIndex::Tile || dim.kind == DimIndex::Elem)
      out |= Bits{1} << dim.a;
  return out;
}

namespace {

std::optional<Shape> broadcast(const Shape &a, const Shape &b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const int32_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1)
      return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

std::optional<Shape> matmul(const Shape &a, const Shape &b) {
  if (a.size() < 2 || b.size() < 2 || a[a.size() - 1] != b[b.size() - 2])
    return std::nullopt;
  auto out = broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!out)
    return std::nullopt;
  out->push_back(a[a.size() - 2]);
  out->push_back(b.back());
  return out;
}

} // namespace

std::optional<int32_t> Tables::infer(const Node &node, int32_t a, int32_t b) {
  const Op op = node.op;
  if (op == Op::Load)
    return access_shape(node.payload);
  if (op == Op::Const)
    return constants[node.payload].shape;
  const Shape x = shapes[a];
  if (op == Op::Exp || (op == Op::Unary && b < 0))
    return a;
  if (is_binary(op) || op == Op::Unary || op == Op::Matmul) {
    const auto out = op == Op::Matmul ? matmul(x, shapes[b]) : broadcast(x, shapes[b]);
    return out ? std::optional(shapes(*out)) : std::nullopt;
  }
  const auto rank = static_cast<int32_t>(x.size());
  if (op == Op::Sum || op == Op::Maximum) {
    Shape out = x;
    for (const int32_t d : lists[node.payload]) {
      if (d >= 0 || -d > rank)
        return std::nullopt;
      out[rank + d] = 1;
    }
    return shapes(out);
  }
  if (op == Op::Transpose) {
    const auto &perm = lists[node.payload];
    if (static_cast<int32_t>(perm.size()) != rank)
      return std::nullopt;
    Shape out;
    for (const int32_t d : perm)
      out.push_back(x.at(d));
    return shapes(out);
  }
  if (op == Op::Reshape) {
    // Exact where a symbolic extent remains: the symbols must agree, and the numbers have equal products.
    std::multimap<int32_t, int> symbols;
    double before = 1, after = 1;
    for (const int32_t e : x)
      e < 0 ? (void)symbols.emplace(e, 0) : (void)(before *= e);
    for (const int32_t e : shapes[node.payload]) {
      if (e >= 0) {
        after *= e;
        continue;
      }
      const auto it = symbols.find(e);
      if (it == symbols.end())
        return std::nullopt;
      symbols.erase(it);
    }
    return symbols.empty() && before == after ? std::optional(node.payload) : std::nullopt;
  }
  if (op == Op::Broadcast) {
    const auto out = broadcast(x, shapes[node.payload]);
    return out && *out == shapes[node.payload] ? std::optional(node.payload) : std::nullopt;
  }
  if (op == Op::Concat) {
    const Shape y = shapes[b];
    const int32_t d = rank + node.payload;
    if (y.size() != x.size() || d < 0 || d >= rank || x[d] < 0 || y[d] < 0)
      return std::nullopt;
    Shape out = x;
    for (int32_t i = 0; i < rank; ++i)
      if (i != d && x[i] != y[i])
        return std::nullopt;
    out[d] = x[d] + y[d];
    return shapes(out);
  }
  return std::nullopt;
}

} // namespace superopt::egraph
