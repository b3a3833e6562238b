#include "egraph/estimate.hpp"

#include <algorithm>

namespace superopt::egraph {

bool in(const TensorSet &set, int32_t tensor) { return std::ranges::binary_search(set, tensor); }

bool insert(TensorSet &set, int32_t tensor) {
  const auto it = std::ranges::lower_bound(set, tensor);
  if (it != set.end() && *it == tensor)
    return false;
  set.insert(it, tensor);
  return true;
}

bool meet(const TensorSet &x, const TensorSet &y) {
  return std::ranges::any_of(x, [&](int32_t t) { return in(y, t); });
}

KernelTerm::KernelTerm(const EGraph &g, Term term)
    : g_(g), term_(std::move(term)), reads_(term_.size()), regions_(term_.size()), lanes_(term_.size(), 1),
      bytes_(term_.size(), 4), vars_(term_.size(), 0) {
  for (size_t i = 0; i < term_.size(); ++i) {
    const Node &n = term_[i];
    if (n.op == Op::Load) {
      reads_[i] = members(n.payload);
      regions_[i] = {n.payload};
      vars_[i] = g_.tables.access_vars(n.payload);
      lanes_[i] = static_cast<double>(reads_[i].size());
      bytes_[i] = g_.tables.tensors[reads_[i].front()].bytes;
    }
    for (const Id child : {n.a, n.b}) {
      if (child == NONE || is_statement(n.op))
        continue;
      for (const int32_t t : reads_[child])
        insert(reads_[i], t);
      for (const int32_t r : regions_[child])
        insert(regions_[i], r);
      vars_[i] |= vars_[child];
      lanes_[i] = std::max(lanes_[i], lanes_[child]);
      bytes_[i] = std::min(bytes_[i], bytes_[child]);
    }
  }
  writes_of(static_cast<Id>(term_.size() - 1), writes_);
  free_ = free_widths();
}

// Parameters, and widths that only a reshape in another kernel requires.
std::vector<int32_t> KernelTerm::free_widths() const {
  Bits loops = 0, bound = 0, shaped = 0;
  const auto fix = [&](int32_t region) {
    for (const DimIndex &dim : g_.tables.accesses[region].dims)
      if (dim.kind == DimIndex::Elem || (dim.kind == DimIndex::Tile && dim.b != 0))
        bound |= Bits{1} << dim.a;
  };
  std::vector<bool> reshapes(term_.size(), false);
  for (size_t i = 0; i < term_.size(); ++i) {
    const Node &n = term_[i];
    reshapes[i] = n.op == Op::Reshape || n.op == Op::Broadcast ||
                  (n.op == Op::Const && !g_.tables.shapes[g_.tables.constants[n.payload].shape].empty());
    if (!is_statement(n.op))
      for (const Id child : {n.a, n.b})
        reshapes[i] = reshapes[i] || (child != NONE && reshapes[child]);
    if (n.op == Op::Loop)
      loops |= Bits{1} << g_.tables.loops[n.payload].var;
    if (n.op == Op::Load || n.op == Op::Store)
      fix(n.payload);
    if (n.op == Op::Store && reshapes[n.a])
      shaped |= vars_[n.a] | g_.tables.access_vars(n.payload);
  }
  std::vector<int32_t> out;
  for (int32_t v = 0; v < static_cast<int32_t>(g_.tables.vars.size()); ++v) {
    const Var &var = g_.tables.vars[v];
    if (loops >> v & 1 && (var.step == 0 || (var.step > 1 && !((bound | shaped) >> v & 1))))
      out.push_back(v);
  }
  return out;
}

const TensorSet &KernelTerm::members(int32_t region) const {
  return g_.tables.tensors[g_.tables.accesses[region].tensor].members;
}

void KernelTerm::writes_of(Id at, TensorSet &out) const {
  const Node &n = term_[at];
  if (n.op == Op::Store)
    for (const int32_t t : members(n.payload))
      insert(out, t);
  if (n.op == Op::Loop) {
    for (const auto &[region, kind] : g_.tables.loops[n.payload].inits)
      for (const int32_t t : members(region))
        insert(out, t);
    writes_of(n.a, out);
  } else if (n.op == Op::Seq) {
    writes_of(n.a, out);
    writes_of(n.b, out);
  }
}

// Every access in program order.
void KernelTerm::accesses(Id at, std::vector<Access> &out) const {
  const Node &n = term_[at];
  if (n.op == Op::Seq) {
    accesses(n.a, out);
    accesses(n.b, out);
  } else if (n.op == Op::Loop) {
    for (const auto &[region, kind] : g_.tables.loops[n.payload].inits)
      out.push_back({region, true});
    accesses(n.a, out);
  } else if (n.op == Op::Store) {
    for (const int32_t region : regions_[n.a])
      out.push_back({region, false});
    out.push_back({n.payload, true});
  }
}

// Tensors whose values are needed: those in `kept`, and what their stores read.
void KernelTerm::needed(Id at, TensorSet &kept, bool &grown) const {
  const Node &n = term_[at];
  if (n.op == Op::Store && meet(members(n.payload), kept)) {
    for (const int32_t t : reads_[n.a])
      grown |= insert(kept, t);
  } else if (n.op == Op::Loop) {
    needed(n.a, kept, grown);
  } else if (n.op == Op::Seq) {
    needed(n.a, kept, grown);
    needed(n.b, kept, grown);
  }
}

} // namespace superopt::egraph
