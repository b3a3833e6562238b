#include "egraph/egraph.hpp"

#include <algorithm>
#include <cmath>

namespace superopt::egraph {

namespace {

void insert_sorted(Regions &regions, int32_t access) {
  const auto it = std::ranges::lower_bound(regions, access);
  if (it == regions.end() || *it != access)
    regions.insert(it, access);
}

Regions united(const Regions &x, const Regions &y) {
  Regions out;
  std::ranges::set_union(x, y, std::back_inserter(out));
  return out;
}

} // namespace

bool overlap(const Tables &t, int32_t x, int32_t y, int32_t different_var) {
  const Access &a = t.accesses[x], &b = t.accesses[y];
  const auto &m = t.tensors[a.tensor].members, &n = t.tensors[b.tensor].members;
  const bool shared = std::ranges::any_of(m, [&](int32_t e) { return std::ranges::binary_search(n, e); });
  if (!shared)
    return false;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    const DimIndex &p = a.dims[d], &q = b.dims[d];
    if (p.kind == DimIndex::Range && q.kind == DimIndex::Range && (p.a + p.b <= q.a || q.a + q.b <= p.a))
      return false;
    // Tiles (elements) of one variable at different iterations lie at least a step (one) apart.
    const bool moves = p.kind == DimIndex::Tile || p.kind == DimIndex::Elem;
    if (different_var >= 0 && moves && p == q && p.a == different_var)
      return false;
  }
  return true;
}

Id EGraph::add(Node node) {
  const int children =
      node.op == Op::Load || node.op == Op::Const                                                  ? 0
      : is_binary(node.op) || node.op == Op::Matmul || node.op == Op::Concat || node.op == Op::Seq ? 2
                                                                                                   : 1;
  if ((children > 0 && node.a == NONE) || (children > 1 && node.b == NONE))
    return NONE;
  node = canonical(node);
  if (const auto it = memo_.find(node); it != memo_.end())
    return find(class_of_[it->second]);
  auto facts = make_facts(node);
  if (!facts)
    return NONE;
  const Id id = static_cast<Id>(classes_.size()), number = static_cast<Id>(nodes_.size());
  parent_.push_back(id);
  stamp_.push_back(now_);
  classes_.push_back({{number}, {}, std::move(*facts)});
  nodes_.push_back(node);
  class_of_.push_back(id);
  dead_.push_back(false);
  ++live_;
  memo_.emplace(node, number);
  for (const Id child : {node.a, node.b})
    if (child != NONE)
      classes_[child].parents.push_back(number);
  return id;
}

Node EGraph::canonical(Node node) const {
  if (node.a != NONE)
    node.a = find(node.a);
  if (node.b != NONE)
    node.b = find(node.b);
  return node;
}

bool EGraph::unite(Id a, Id b) {
  a = find(a), b = find(b);
  if (a == b)
    return false;
  if (classes_[a].facts.shape != classes_[b].facts.shape)
    return false;
  if (classes_[a].nodes.size() + classes_[a].parents.size() <
      classes_[b].nodes.size() + classes_[b].parents.size())
    std::swap(a, b);
  parent_[b] = a;
  stamp_[a] = now_;
  ++unions;
  Class &into = classes_[a];
  Class from = std::move(classes_[b]);
  classes_[b] = {};
  into.nodes.insert(into.nodes.end(), from.nodes.begin(), from.nodes.end());
  // Revisit the parents of both sides: their nodes may have become equal, their facts tighter.
  dirty_.push_back(a);
  into.parents.insert(into.parents.end(), from.parents.begin(), from.parents.end());
  merge_facts(into.facts, from.facts);
  changed_.push_back(a);
  return true;
}

void EGraph::rebuild() {
  while (!dirty_.empty() || !changed_.empty()) {
    std::vector<Id> todo;
    todo.swap(dirty_);
    for (Id &id : todo)
      id = find(id);
    std::ranges::sort(todo);
    todo.erase(std::ranges::unique(todo).begin(), todo.end());
    for (const Id start : todo) {
      const Id id = find(start);
      std::vector<Id> parents = classes_[id].parents;
      const auto before = static_cast<std::ptrdiff_t>(parents.size());
      std::ranges::sort(parents);
      parents.erase(std::ranges::unique(parents).begin(), parents.end());
      std::vector<Id> kept;
      for (const Id number : parents) {
        if (dead_[number])
          continue;
        const Node fresh = canonical(nodes_[number]);
        if (!(fresh == nodes_[number])) {
          if (const auto it = memo_.find(nodes_[number]); it != memo_.end() && it->second == number)
            memo_.erase(it);
          nodes_[number] = fresh;
        }
        const auto [it, inserted] = memo_.try_emplace(fresh, number);
        if (!inserted && it->second != number) {
          dead_[number] = true;
          --live_;
          unite(class_of_[number], class_of_[it->second]);
        } else {
          kept.push_back(number);
        }
      }
      if (find(id) == id) { // classes united into it meanwhile follow its own parents
        auto &now = classes_[id].parents;
        kept.insert(kept.end(), now.begin() + before, now.end());
        now = std::move(kept);
      }
    }
    std::vector<Id> retell;
    retell.swap(changed_);
    for (Id &id : retell)
      id = find(id);
    std::ranges::sort(retell);
    retell.erase(std::ranges::unique(retell).begin(), retell.end());
    for (const Id id : retell) {
      const std::vector<Id> parents = classes_[find(id)].parents;
      for (const Id number : parents) {
        if (dead_[number])
          continue;
        const auto facts = make_facts(canonical(nodes_[number]));
        const Id owner = find(class_of_[number]);
        if (facts && merge_facts(classes_[owner].facts, *facts)) {
          changed_.push_back(owner);
          stamp_[owner] = now_;
        }
      }
    }
  }
  for (Id id = 0; id < classes_.size(); ++id)
    if (parent_[id] == id)
      std::erase_if(classes_[id].nodes, [&](Id number) { return dead_[number]; });
}

int32_t EGraph::generalize(int32_t access, int32_t var) {
  if (!(tables.access_vars(access) >> var & 1))
    return access;
  Access out = tables.accesses[access];
  for (size_t d = 0; d < out.dims.size(); ++d) {
    DimIndex &dim = out.dims[d];
    if ((dim.kind != DimIndex::Tile && dim.kind != DimIndex::Elem) || dim.a != var)
      continue;
    const Var &v = tables.vars[var];
    const int32_t extent = tables.tensors[out.tensor].shape[d];
    const int32_t size = dim.kind == DimIndex::Tile ? v.end : v.trips() * dim.c;
    if (size == 0 || dim.b + size > extent || (dim.b == 0 && size == extent))
      dim = {};
    else
      dim = {DimIndex::Range, dim.b, size};
  }
  return tables.accesses(out);
}

// Add a region to those certainly overwritten; two adjacent ones become one.
void EGraph::add_must(Regions &musts, int32_t access) {
  for (bool grown = true; grown;) {
    grown = false;
    for (const int32_t other : Regions(musts)) {
      const Access &x = tables.accesses[access], &y = tables.accesses[other];
      if (x.tensor != y.tensor || access == other)
        continue;
      int differing = 0;
      size_t at = 0;
      for (size_t d = 0; d < x.dims.size(); ++d)
        if (x.dims[d] != y.dims[d])
          ++differing, at = d;
      const DimIndex p = x.dims[at], q = y.dims[at];
      if (differing != 1 || p.kind != DimIndex::Range || q.kind != DimIndex::Range)
        continue;
      if (p.a + p.b < q.a || q.a + q.b < p.a)
        continue;
      const int32_t low = std::min(p.a, q.a), high = std::max(p.a + p.b, q.a + q.b);
      Access joined = x;
      joined.dims[at] = {DimIndex::Range, low, high - low};
      if (low == 0 && high == tables.tensors[x.tensor].shape[at])
        joined.dims[at] = {};
      std::erase(musts, other);
      access = tables.accesses(joined);
      grown = true;
      break;
    }
  }
  insert_sorted(musts, access);
}

bool EGraph::covers(const Regions &musts, int32_t access) const {
  const Access &x = tables.accesses[access];
  const auto &parts = tables.tensors[x.tensor].members;
  return std::ranges::any_of(musts, [&](int32_t must) {
    const Access &y = tables.accesses[must];
    if (!std::ranges::includes(tables.tensors[y.tensor].members, parts))
      return false;
    for (size_t d = 0; d < x.dims.size(); ++d) {
      const DimIndex &p = x.dims[d], &q = y.dims[d];
      const bool inside =
          p.kind == DimIndex::Range && q.kind == DimIndex::Range && q.a <= p.a && p.a + p.b <= q.a + q.b;
      if (q.kind != DimIndex::Full && p != q && !inside)
        return false;
    }
    return true;
  });
}

std::optional<Facts> EGraph::make_facts(const Node &node) {
  Facts out;
  if (node.op == Op::Load) {
    out.reads = {node.payload};
    out.free = tables.access_vars(node.payload);
  } else if (node.op == Op::Store) {
    const Facts &value = classes_[node.a].facts;
    if (value.shape != tables.access_shape(node.payload))
      return std::nullopt;
    out.reads = value.reads;
    out.writes = {node.payload};
    out.musts = {node.payload};
    out.free = value.free | tables.access_vars(node.payload);
    return out;
  } else if (node.op == Op::Seq) {
    const Facts &a = classes_[node.a].facts, &b = classes_[node.b].facts;
    out.reads = a.reads;
    for (const int32_t read : b.reads)
      if (!covers(a.musts, read))
        insert_sorted(out.reads, read);
    out.writes = united(a.writes, b.writes);
    out.musts = a.musts;
    for (const int32_t must : b.musts)
      add_must(out.musts, must);
    out.free = a.free | b.free;
    out.bound = a.bound | b.bound;
    return out;
  } else if (node.op == Op::Loop) {
    const LoopHead head = tables.loops[node.payload];
    const Facts &body = classes_[node.a].facts;
    Regions starts;
    for (const auto &[access, kind] : head.inits) {
      add_must(starts, access);
      out.free |= tables.access_vars(access);
      insert_sorted(out.writes, access);
    }
    for (const int32_t read : body.reads)
      if (const int32_t region = generalize(read, head.var); !covers(starts, region))
        insert_sorted(out.reads, region);
    for (const int32_t write : body.writes)
      insert_sorted(out.writes, generalize(write, head.var));
    out.musts = starts;
    for (const int32_t must : body.musts) {
      int uses = 0;
      for (const DimIndex &dim : tables.accesses[must].dims)
        uses += (dim.kind == DimIndex::Tile || dim.kind == DimIndex::Elem) && dim.a == head.var;
      if (uses <= 1) // tiles along a diagonal do not add up to a region
        add_must(out.musts, generalize(must, head.var));
    }
    out.free |= body.free & ~(Bits{1} << head.var);
    out.bound = body.bound | Bits{1} << head.var;
    return out;
  } else {
    for (const Id child : {node.a, node.b}) {
      if (child == NONE)
        continue;
      const Facts &f = classes_[child].facts;
      out.reads = united(out.reads, f.reads);
      out.free |= f.free;
    }
    const auto fact = [&](Id id) -> const Facts & { return classes_[id].facts; };
    if (node.op == Op::Exp || (node.op == Op::Const && tables.constants[node.payload].value != 0))
      out.nonzero = true;
    else if (node.op == Op::Mul || node.op == Op::Div)
      out.nonzero = fact(node.a).nonzero && fact(node.b).nonzero;
  }
  const auto shape = tables.infer(node, node.a == NONE ? -1 : classes_[node.a].facts.shape,
                                  node.b == NONE ? -1 : classes_[node.b].facts.shape);
  if (!shape)
    return std::nullopt;
  out.shape = *shape;
  return out;
}

// For each tensor the list with fewer, then more specific regions: each list over-approximates the same set,
// while the intersection of two lists may not.
Regions EGraph::tighter(const Regions &x, const Regions &y) const {
  if (x == y)
    return x;
  std::map<int32_t, std::pair<Regions, Regions>> split;
  for (const int32_t a : x)
    split[tables.accesses[a].tensor].first.push_back(a);
  for (const int32_t a : y)
    split[tables.accesses[a].tensor].second.push_back(a);
  const auto looseness = [&](const Regions &list) {
    int sum = 0;
    for (const int32_t a : list)
      for (const DimIndex &dim : tables.accesses[a].dims)
        sum += dim.kind == DimIndex::Full ? 2 : dim.kind == DimIndex::Range ? 1 : 0;
    return std::tuple(list.size(), sum, list);
  };
  Regions out;
  for (const auto &[tensor, lists] : split) {
    const Regions &best = looseness(lists.first) <= looseness(lists.second) ? lists.first : lists.second;
    out.insert(out.end(), best.begin(), best.end());
  }
  std::ranges::sort(out);
  return out;
}

bool EGraph::merge_facts(Facts &into, const Facts &other) const {
  Facts merged = into;
  merged.reads = tighter(into.reads, other.reads);
  merged.writes = tighter(into.writes, other.writes);
  merged.musts = united(into.musts, other.musts);
  merged.free = into.free & other.free;
  merged.bound = into.bound | other.bound;
  merged.nonzero = into.nonzero || other.nonzero;
  if (merged == into)
    return false;
  into = std::move(merged);
  return true;
}

bool EGraph::has_plain(Id id) const {
  return std::ranges::any_of(at(id).nodes, [&](Id n) { return nodes_[n].op != Op::Seq; });
}

Id EGraph::append(Id first, Id rest) {
  // Sequences inside `first` are unrolled, each class once: suffixes are shared by many sequences. While a
  // class is open its entry is NONE, since classes may be cyclic.
  std::unordered_map<Id, Id> done;
  const auto go = [&](const auto &self, Id id) -> Id {
    id = find(id);
    if (const auto it = done.find(id); it != done.end())
      return it->second;
    done[id] = NONE;
    Id out = has_plain(id) ? add(Op::Seq, 0, id, rest) : NONE;
    const std::vector<Id> members = classes_[id].nodes;
    for (const Id number : members) {
      const Node n = canonical(nodes_[number]);
      if (n.op != Op::Seq)
        continue;
      const Id tail = self(self, n.b);
      const Id chain = tail == NONE ? NONE : add(Op::Seq, 0, n.a, tail);
      if (chain != NONE && out != NONE)
        unite(out, chain);
      else if (chain != NONE)
        out = chain;
      if (out != NONE && weak(Guard::Flattening))
        break;
    }
    return done[id] = out;
  };
  return go(go, first);
}

std::vector<bool> EGraph::changed_since(uint32_t since, int depth) const {
  std::vector<bool> out(parent_.size(), false);
  std::vector<Id> level;
  for (Id id = 0; id < parent_.size(); ++id)
    if (parent_[id] == id && stamp_[id] >= since)
      out[id] = true, level.push_back(id);
  for (; depth > 0 && !level.empty(); --depth) {
    std::vector<Id> above;
    for (const Id id : level)
      for (const Id number : classes_[id].parents)
        if (const Id owner = find(class_of_[number]); !dead_[number] && !out[owner])
          out[owner] = true, above.push_back(owner);
    level = std::move(above);
  }
  return out;
}

std::vector<Id> EGraph::roots() const {
  std::vector<Id> out;
  for (Id id = 0; id < parent_.size(); ++id)
    if (parent_[id] == id)
      out.push_back(id);
  return out;
}

size_t EGraph::class_count() const {
  size_t n = 0;
  for (Id id = 0; id < parent_.size(); ++id)
    n += parent_[id] == id;
  return n;
}

size_t EGraph::memory_bytes() const {
  size_t bytes = nodes_.capacity() * (sizeof(Node) + sizeof(Id)) + memo_.size() * (sizeof(Node) + 32) +
                 classes_.capacity() * sizeof(Class) + parent_.capacity() * sizeof(Id);
  for (const Class &c : classes_)
    bytes +=
        (c.nodes.capacity() + c.parents.capacity()) * sizeof(Id) +
        (c.facts.reads.capacity() + c.facts.writes.capacity() + c.facts.musts.capacity()) * sizeof(int32_t);
  return bytes;
}

} // namespace superopt::egraph
