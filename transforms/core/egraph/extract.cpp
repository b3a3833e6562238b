#include "egraph/extract.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace superopt::egraph {

namespace {

// Multiprocessors that a grid is spread over in the estimate; the cost model uses the real number.
constexpr double UNITS = 128;
constexpr size_t KERNELS = 6;          // forms of a statement whose cost as a kernel is computed
constexpr size_t LIBRARY = UINT16_MAX; // in place of a rank: the library's form of a statement

} // namespace

bool is_parallel(const EGraph &g, const LoopHead &head, const Facts &body) {
  if (!head.inits.empty())
    return false;
  for (const int32_t w : body.writes) {
    const auto meets = [&](int32_t other) { return overlap(g.tables, w, other, head.var); };
    if (std::ranges::any_of(body.reads, meets))
      return false;
    const bool own = g.tables.tensors[g.tables.accesses[w].tensor].kind == TensorKind::Temporary;
    if (!own && std::ranges::any_of(body.writes, meets))
      return false;
  }
  return true;
}

namespace {

struct Entry {
  double cost = 0;   // of one execution, over all units
  double spread = 1; // units it can use, if it is a nest of parallel loops
  uint64_t hash = 0; // equal for terms that differ in the order of statements only
  Id number = NONE;
  uint16_t a = 0, b = 0; // positions in the children's lists
  double key() const { return cost / std::min(spread, UNITS); }
  bool operator==(const Entry &) const = default;
};

// The rest of a program: its first statement as one kernel, then an entry for what follows.
struct Outer {
  double seconds = 0;
  uint64_t hash = 0;
  Id number = NONE;      // the sequence; NONE: the statement is the last one
  uint16_t a = 0, b = 0; // positions in the statement's inner list and in the list of what follows
  uint8_t b_kernels = 0;
  int32_t live = 0;    // tensors needed before it
  int32_t written = 0; // tensors that its kernels pass on
};

class Best {
public:
  Best(const EGraph &g, int kernels, int k, const TargetNumbers &target, const std::vector<int32_t> &widths,
       const std::vector<LibraryForm> &library, Watch &watch)
      : g_(g), kernels_(kernels), k_(static_cast<size_t>(k)), target_(target), widths_(widths),
        watch_(watch) {
    for (const LibraryForm &form : library) {
      const LibraryForm *&known = library_[g.find(form.id)];
      if (!known || form.seconds < known->seconds)
        known = &form;
    }
    roots_ = g.roots();
    const Smallest smallest(g);
    // Children mostly before parents, so that the fixpoint takes few rounds.
    std::ranges::stable_sort(roots_, {}, [&](Id id) { return smallest.size(id); });
    inner_.resize(roots_.empty() ? 0 : *std::ranges::max_element(roots_) + 1);
    outer_.resize(inner_.size());
    kernel_numbers_.resize(inner_.size());
    fill();
    TensorSet outputs;
    for (size_t t = 0; t < g.tables.tensors.size(); ++t)
      if (g.tables.tensors[t].kind == TensorKind::Output && g.tables.tensors[t].members.size() == 1)
        outputs.push_back(static_cast<int32_t>(t));
    sets_({}); // number 0
    outputs_ = sets_(outputs);
  }

  std::vector<Candidate> from(Id root) {
    root = g_.find(root);
    std::vector<Candidate> out;
    for (int kernels = 1; kernels <= kernels_; ++kernels) {
      const auto &list = outer(root)[kernels];
      for (size_t rank = 0; rank < list.size(); ++rank) {
        Writer writer;
        const Id id = write_outer(writer, root, kernels, rank);
        out.push_back({kernels, list[rank].seconds, writer.done(id)});
      }
    }
    return out;
  }

private:
  const EGraph &g_;
  int kernels_;
  size_t k_;
  const TargetNumbers &target_;
  const std::vector<int32_t> &widths_;
  Watch &watch_;
  std::vector<Id> roots_;
  struct InContext {
    double seconds = -1;
    int32_t live = 0;    // before the kernel
    int32_t results = 0; // passed on to later kernels
  };

  std::vector<std::vector<Entry>> inner_;
  std::vector<std::vector<std::vector<Outer>>> outer_;
  std::unordered_map<Id, const LibraryForm *> library_; // by class
  std::unordered_map<Id, int> on_;                      // classes whose outer lists are being made
  Interner<TensorSet> sets_;
  int32_t outputs_ = 0;
  std::unordered_map<uint64_t, int32_t> unions_;
  std::vector<KernelTerm> kernel_terms_;
  std::vector<std::unordered_map<size_t, int32_t>> kernel_numbers_; // by class and rank in its inner list
  std::unordered_map<uint64_t, InContext> in_context_;              // by kernel and live set
  std::map<std::pair<int32_t, int32_t>, Estimate> by_own_results_;  // of a kernel, some of its results live

  size_t width(Id id) const { return g_.facts(id).shape >= 0 ? 3 : k_; }

  // --- inside a kernel ---

  void fill() {
    for (bool changed = true; changed && !watch_.over();) {
      changed = false;
      for (const Id id : roots_) {
        if (watch_.over())
          return;
        std::vector<Entry> list = combined(id);
        if (list != inner_[id])
          inner_[id] = std::move(list), changed = true;
      }
    }
  }

  std::vector<Entry> combined(Id id) const {
    std::vector<Entry> all;
    for (const Id number : g_.at(id).nodes) {
      const Node &n = g_.node(number);
      static const std::vector<Entry> leaf(1);
      const auto &as = n.a == NONE ? leaf : inner_[g_.find(n.a)];
      const auto &bs = n.b == NONE ? leaf : inner_[g_.find(n.b)];
      for (size_t i = 0; i < as.size(); ++i)
        for (size_t j = 0; j < bs.size() && i + j < k_; ++j)
          all.push_back(entry(n, number, as[i], bs[j], i, j));
    }
    std::ranges::sort(all, [](const Entry &x, const Entry &y) {
      return std::tuple(x.key(), x.hash, x.number, x.a, x.b) <
             std::tuple(y.key(), y.hash, y.number, y.a, y.b);
    });
    std::vector<Entry> out;
    std::set<uint64_t> seen;
    size_t kept[2] = {0, 0}; // sequences and single kernels do not crowd each other out
    for (const Entry &e : all)
      if (kept[is_seq(e)] < width(id) && seen.insert(e.hash).second)
        ++kept[is_seq(e)], out.push_back(e);
    return out;
  }

  Entry entry(const Node &n, Id number, const Entry &a, const Entry &b, size_t i, size_t j) const {
    Entry e;
    e.number = number;
    e.a = static_cast<uint16_t>(i), e.b = static_cast<uint16_t>(j);
    e.cost = own_cost(n) + (n.a == NONE ? 0 : a.cost) + (n.b == NONE ? 0 : b.cost);
    if (n.op == Op::Loop) {
      const LoopHead &head = g_.tables.loops[n.payload];
      const double trips = g_.tables.vars[head.var].nominal_trips();
      e.cost = own_cost(n) + trips * (a.cost + 20);
      if (is_parallel(g_, head, g_.facts(n.a)))
        e.spread = trips * a.spread;
    }
    const uint64_t head =
        mixed(static_cast<uint64_t>(n.op) + 1, static_cast<uint64_t>(static_cast<uint32_t>(n.payload)));
    const bool commutes = n.op == Op::Add || n.op == Op::Mul || n.op == Op::Max;
    if (n.op == Op::Seq)
      e.hash = (is_seq(a) ? a.hash : mixed(7, a.hash)) + (is_seq(b) ? b.hash : mixed(7, b.hash));
    else if (commutes)
      e.hash = mixed(head, a.hash + b.hash);
    else
      e.hash = mixed(mixed(head, n.a == NONE ? 0 : a.hash), n.b == NONE ? 0 : b.hash + 1);
    return e;
  }

  bool is_seq(const Entry &e) const { return g_.node(e.number).op == Op::Seq; }

  double elements(Id id) const { return g_.tables.elements(g_.facts(id).shape); }

  double own_cost(const Node &n) const {
    const auto outside = [&](int32_t access) {
      return g_.tables.tensors[g_.tables.accesses[access].tensor].kind != TensorKind::Temporary;
    };
    const auto copies = [&](int32_t access) {
      return static_cast<double>(g_.tables.tensors[g_.tables.accesses[access].tensor].members.size());
    };
    switch (n.op) {
    case Op::Load: {
      const Access &access = g_.tables.accesses[n.payload];
      double size = copies(n.payload);
      for (size_t d = 0; d < access.dims.size(); ++d) {
        const DimIndex &dim = access.dims[d];
        size *= dim.kind == DimIndex::Full    ? g_.tables.tensors[access.tensor].shape[d]
                : dim.kind == DimIndex::Tile  ? g_.tables.vars[dim.a].width()
                : dim.kind == DimIndex::Range ? dim.b
                                              : dim.c;
      }
      return 1 + size * (outside(n.payload) ? 2 : 0.1);
    }
    case Op::Store:
      return 1 + elements(n.a) * copies(n.payload) * (outside(n.payload) ? 2 : 0.1);
    case Op::Matmul: {
      const Shape &a = g_.tables.shapes[g_.facts(n.a).shape];
      const double depth = g_.tables.extent_in_elements(a.back());
      const Shape &b = g_.tables.shapes[g_.facts(n.b).shape];
      const double columns = g_.tables.extent_in_elements(b.back());
      return 1 + elements(n.a) * columns * 2 / 16 + depth;
    }
    case Op::Exp:
      return 1 + 4 * elements(n.a);
    case Op::Const:
      return 0.5;
    case Op::Seq:
    case Op::Loop:
      return 0.01;
    default:
      return 1 + elements(n.a);
    }
  }

  // --- outside: by number of kernels ---

  // The kernel of an inner entry, with `live` read after it.
  InContext estimate(Id id, size_t rank, int32_t live) {
    int32_t &kernel = kernel_numbers_[id].try_emplace(rank, -1).first->second;
    if (kernel < 0) {
      Writer writer;
      const Id root = write_form(writer, id, rank);
      kernel = static_cast<int32_t>(kernel_terms_.size());
      kernel_terms_.emplace_back(g_, writer.done(root));
    }
    InContext &known = in_context_[static_cast<uint64_t>(kernel) << 32 | static_cast<uint32_t>(live)];
    if (known.seconds < 0) {
      TensorSet results, before;
      std::ranges::set_intersection(sets_[live], kernel_terms_[kernel].writes(), std::back_inserter(results));
      const auto [own, first] = by_own_results_.try_emplace({kernel, sets_(results)});
      if (first) {
        own->second = kernel_terms_[kernel].on(target_, results, widths_);
        if (rank == LIBRARY && own->second.seconds > 0)
          own->second.seconds = library_.at(id)->seconds;
      }
      std::ranges::set_union(sets_[live], own->second.live, std::back_inserter(before));
      known = {own->second.seconds, sets_(before), sets_(results)};
    }
    return known;
  }

  // The union of two sets, -1 where they meet.
  int32_t both(int32_t x, int32_t y) {
    const auto [known, fresh] =
        unions_.try_emplace(static_cast<uint64_t>(x) << 32 | static_cast<uint32_t>(y), -1);
    if (fresh) {
      TensorSet all;
      std::ranges::set_union(sets_[x], sets_[y], std::back_inserter(all));
      if (all.size() == sets_[x].size() + sets_[y].size())
        known->second = sets_(all);
    }
    return known->second;
  }

  // Candidate kernels for a statement, by rank and hash: the library's form, and the first `most` others.
  std::vector<std::pair<size_t, uint64_t>> forms(Id id, size_t most) const {
    std::vector<std::pair<size_t, uint64_t>> out;
    if (library_.contains(id))
      out.emplace_back(LIBRARY, mixed(LIBRARY, id));
    most += out.size();
    for (size_t rank = 0; rank < inner_[id].size() && out.size() < most; ++rank)
      if (!is_seq(inner_[id][rank]))
        out.emplace_back(rank, inner_[id][rank].hash);
    return out;
  }

  const std::vector<std::vector<Outer>> &outer(Id id) {
    id = g_.find(id);
    auto &lists = outer_[id];
    if (!lists.empty() || on_[id] || watch_.over())
      return lists.empty() ? nothing() : lists;
    on_[id] = 1;
    std::vector<std::vector<Outer>> made(kernels_ + 1);
    const auto put = [&](uint64_t hash, size_t rank, InContext first, Outer rest, int kernels) {
      const bool dead = first.seconds == 0;
      if (kernels + !dead > kernels_ || !std::isfinite(first.seconds))
        return;
      rest.seconds += first.seconds;
      rest.hash += dead ? 0 : mixed(7, hash);
      rest.a = static_cast<uint16_t>(rank);
      rest.live = first.live;
      rest.written = both(first.results, rest.written);
      if (rest.written < 0) // two kernels each write part of a tensor
        return;
      made[kernels + !dead].push_back(rest);
    };
    for (const auto &[rank, hash] : forms(id, k_))
      put(hash, rank, estimate(id, rank, outputs_), {}, 0);
    for (const Id number : g_.at(id).nodes) {
      const Node &n = g_.node(number);
      if (n.op != Op::Seq)
        continue;
      const Id a = g_.find(n.a);
      const auto &bs = outer(n.b);
      size_t x = 0;
      for (const auto &[rank, hash] : forms(a, KERNELS)) {
        for (int j = 0; j <= kernels_; ++j)
          for (size_t y = 0; y < bs[j].size() && x + y < k_; ++y) {
            Outer whole = bs[j][y];
            whole.number = number;
            whole.b = static_cast<uint16_t>(y);
            whole.b_kernels = static_cast<uint8_t>(j);
            put(hash, rank, estimate(a, rank, bs[j][y].live), whole, j);
          }
        x += rank != LIBRARY;
      }
    }
    for (auto &list : made) {
      std::ranges::stable_sort(list, {}, &Outer::seconds);
      // Entries of equal cost to the last bit differ only in form: two of them suffice.
      std::set<uint64_t> seen;
      std::map<double, int> same;
      std::erase_if(list, [&](const Outer &o) {
        return seen.size() >= k_ || same[o.seconds] == 2 || !seen.insert(o.hash).second ||
               ++same[o.seconds] > 2;
      });
    }
    on_[id] = 0;
    return outer_[id] = std::move(made);
  }

  const std::vector<std::vector<Outer>> &nothing() const {
    static const std::vector<std::vector<Outer>> empty(64);
    return empty;
  }

  Id write_inner(Writer &out, Id id, size_t rank) const {
    const Entry &e = inner_[g_.find(id)][rank];
    Node node = g_.node(e.number);
    if (node.a != NONE)
      node.a = write_inner(out, node.a, e.a);
    if (node.b != NONE)
      node.b = write_inner(out, node.b, e.b);
    return out.put(node);
  }

  Id write_form(Writer &out, Id id, size_t rank) const {
    if (rank != LIBRARY)
      return write_inner(out, id, rank);
    std::vector<Id> written;
    for (Node node : library_.at(g_.find(id))->term) {
      for (Id *child : {&node.a, &node.b})
        if (*child != NONE)
          *child = written[*child];
      written.push_back(out.put(node));
    }
    return written.back();
  }

  Id write_outer(Writer &out, Id id, int kernels, size_t rank) {
    const Outer &o = outer(g_.find(id))[kernels][rank];
    if (o.number == NONE)
      return write_form(out, id, o.a);
    Node node = g_.node(o.number);
    node.a = write_form(out, node.a, o.a);
    node.b = write_outer(out, node.b, o.b_kernels, o.b);
    return out.put(node);
  }
};

} // namespace

std::vector<Candidate> best(const EGraph &g, Id root, int kernels, int k, const TargetNumbers &target,
                            const std::vector<int32_t> &widths, const std::vector<LibraryForm> &library,
                            Watch &watch) {
  Best found(g, std::min(kernels, 60), k, target, widths, library, watch);
  auto out = found.from(root);
  return watch.over() ? std::vector<Candidate>{} : out;
}

} // namespace superopt::egraph
