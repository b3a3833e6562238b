#include "egraph/estimate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace superopt::egraph {

namespace {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

} // namespace

// Walks a kernel's loops, counting what is moved and computed over all trips.
class Count {
public:
  Count(const KernelTerm &kernel, const TargetNumbers &target, const TensorSet &live,
        const std::vector<int32_t> &widths)
      : k_(kernel), t_(kernel.g_.tables), target_(target), live_(live), widths_(widths), kept_(live),
        shapes_(kernel.term_.size()) {}

  Estimate operator()() {
    for (bool grown = true; grown;) {
      grown = false;
      k_.needed(root(), kept_, grown);
    }
    k_.accesses(root(), all_);
    std::erase_if(all_, [&](const KernelTerm::Access &a) { return !alive(a); });
    Estimate out{0, live_};
    if (all_.empty())
      return out;
    for (const auto &a : all_)
      if (!a.store)
        for (const int32_t m : k_.members(a.region))
          insert(out.live, m);
    Id body = root();
    for (int dims = 0; dims < 3 && k_.term_[body].op == Op::Loop; ++dims) {
      const LoopHead &head = t_.loops[k_.term_[body].payload];
      if (!head.inits.empty() || !parallel(k_.term_[body].a, head.var))
        break;
      blocks_ *= trips(head.var);
      grid_ |= Bits{1} << head.var;
      body = k_.term_[body].a;
    }
    place();
    frames_.push_back({-1, blocks_, k_.writes_, 0, {}});
    visit(body);
    out.seconds = fits_ ? seconds() : INFINITE;
    return out;
  }

private:
  struct Frame {
    int32_t var;
    double times;
    TensorSet writes;
    double loaded = 0;                           // bytes of the tiles that one trip loads
    std::vector<std::pair<Id, uint64_t>> values; // available values, each with the state of what it reads
  };

  const KernelTerm &k_;
  const Tables &t_;
  const TargetNumbers &target_;
  const double largest_tile_ = static_cast<double>(target_.registers); // elements that fit in registers
  const TensorSet &live_;
  const std::vector<int32_t> &widths_; // of every variable's tiles
  TensorSet kept_;
  std::vector<std::vector<double>> shapes_; // of values, in elements
  std::vector<KernelTerm::Access> all_;
  std::map<int32_t, std::vector<int32_t>> regions_; // of the tensors that the kernel writes
  TensorSet outer_;                                 // read before they are written
  double blocks_ = 1, trips_ = 0, shared_ = 0;
  KernelTraffic traffic_;
  Bits grid_ = 0, open_ = 0;
  std::vector<Frame> frames_;
  std::map<std::pair<int32_t, double>, double> moved_; // bytes by tensor, and by how many are in a row
  std::map<int32_t, uint64_t> version_;
  uint64_t clock_ = 0;
  bool fits_ = true;

  Id root() const { return static_cast<Id>(k_.term_.size() - 1); }
  double trips(int32_t var) const { return (t_.vars[var].end + widths_[var] - 1) / widths_[var]; }

  bool alive(const KernelTerm::Access &a) const {
    if (a.store)
      return meet(k_.members(a.region), kept_);
    return true; // loads of dead stores are few, and hoisted
  }

  std::vector<double> shape_of_region(int32_t region) const {
    const Access &access = t_.accesses[region];
    std::vector<double> out;
    for (size_t d = 0; d < access.dims.size(); ++d) {
      const DimIndex &dim = access.dims[d];
      out.push_back(dim.kind == DimIndex::Full    ? t_.tensors[access.tensor].shape[d]
                    : dim.kind == DimIndex::Tile  ? widths_[dim.a]
                    : dim.kind == DimIndex::Range ? dim.b
                                                  : dim.c);
    }
    return out;
  }

  static double product(const std::vector<double> &shape) {
    double size = 1;
    for (const double extent : shape)
      size *= extent;
    return size;
  }

  // Elements that are computed: tiles are padded.
  static double padded_product(const std::vector<double> &shape) {
    double size = 1;
    for (const double extent : shape)
      size *= padded(extent);
    return size;
  }

  double elements(int32_t region) const { return product(shape_of_region(region)); }

  // An iteration's writes are disjoint from what others touch, or private.
  bool parallel(Id body, int32_t var) const {
    if (t_.vars[var].trips() == 1)
      return true;
    std::vector<KernelTerm::Access> found;
    k_.accesses(body, found);
    std::erase_if(found, [&](const KernelTerm::Access &a) { return !alive(a); });
    TensorSet written, first_read, seen;
    for (const auto &a : found)
      for (const int32_t m : k_.members(a.region)) {
        if (insert(seen, m) && !a.store)
          insert(first_read, m);
        if (a.store)
          insert(written, m);
      }
    return std::ranges::all_of(written, [&](int32_t m) {
      if (!in(live_, m) && !in(first_read, m))
        return true;
      for (size_t d = 0; d < t_.tensors[m].shape.size(); ++d) {
        std::optional<DimIndex> at;
        bool apart = true;
        for (const auto &a : found) {
          if (!in(k_.members(a.region), m))
            continue;
          const DimIndex &dim = t_.accesses[a.region].dims[d];
          const bool moves = (dim.kind == DimIndex::Tile || dim.kind == DimIndex::Elem) && dim.a == var;
          apart = apart && moves && (!at || *at == dim);
          at = dim;
        }
        if (apart)
          return true;
      }
      return false;
    });
  }

  void place() {
    TensorSet seen;
    for (const auto &a : all_)
      for (const int32_t m : k_.members(a.region)) {
        if (insert(seen, m) && !a.store)
          insert(outer_, m);
        if (!in(k_.writes_, m))
          continue;
        auto &list = regions_[m];
        if (std::ranges::find(list, a.region) == list.end())
          list.push_back(a.region);
      }
    for (const auto &[m, list] : regions_) {
      if (list.size() == 1)
        shared_ += elements(list[0]) * t_.tensors[m].bytes;
      else if (in(outer_, m))
        fits_ = false; // would update in pieces what an earlier kernel wrote
    }
  }

  bool on_chip(int32_t m) const {
    const auto it = regions_.find(m);
    return it != regions_.end() && it->second.size() == 1;
  }

  // Bytes of a region that lie one after the other.
  double run(int32_t region) const {
    const Access &access = t_.accesses[region];
    const std::vector<int32_t> &whole = t_.tensors[access.tensor].shape;
    const std::vector<double> shape = shape_of_region(region);
    double elements = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      elements *= shape[d];
      if (shape[d] < whole[d])
        break;
    }
    return elements * t_.tensors[access.tensor].bytes;
  }

  void move(int32_t m, int32_t region, double bytes) { moved_[{m, run(region)}] += bytes; }

  bool moved(int32_t m) const {
    const auto it = moved_.lower_bound({m, 0});
    return it != moved_.end() && it->first.first == m;
  }

  void visit(Id at) {
    const Node &n = k_.term_[at];
    if (n.op == Op::Seq) {
      visit(n.a);
      visit(n.b);
    } else if (n.op == Op::Store) {
      if (!meet(k_.members(n.payload), kept_))
        return;
      value(n.a);
      put(n.payload);
    } else {
      const LoopHead &head = t_.loops[n.payload];
      for (const auto &[region, kind] : head.inits)
        put(region);
      Frame frame{head.var, frames_.back().times * trips(head.var), {}, 0, {}};
      fits_ = fits_ && !((open_ | grid_) >> head.var & 1); // a loop inside one over the same variable
      k_.writes_of(n.a, frame.writes);
      for (const int32_t m : frame.writes)
        version_[m] = ++clock_;
      const double before = std::exchange(trips_, 0);
      open_ |= Bits{1} << head.var;
      frames_.push_back(std::move(frame));
      visit(n.a);
      for (const int32_t m : frames_.back().writes)
        version_[m] = ++clock_;
      frames_.pop_back();
      trips_ = before + trips(head.var) * std::max(trips_, 1.0); // one after the other
      open_ &= ~(Bits{1} << head.var);
    }
  }

  void put(int32_t region) {
    fits_ = fits_ && elements(region) <= largest_tile_;
    for (const int32_t m : k_.members(region)) {
      version_[m] = ++clock_;
      if (!in(live_, m))
        continue;
      const double bytes = elements(region) * t_.tensors[m].bytes;
      const bool once = on_chip(m) && !(t_.access_vars(region) & ~grid_);
      if (!once)
        move(m, region, bytes * frames_.back().times);
      else if (!moved(m))
        move(m, region, bytes * blocks_);
    }
  }

  // Compute a value that is not available, as far out as its operands allow.
  void value(Id at) {
    size_t level = 0;
    for (size_t i = 0; i < frames_.size(); ++i)
      if ((frames_[i].var >= 0 && k_.vars_[at] >> frames_[i].var & 1) ||
          meet(k_.reads_[at], frames_[i].writes))
        level = i;
    uint64_t state = 0;
    for (const int32_t m : k_.reads_[at])
      if (const auto it = version_.find(m); it != version_.end())
        state = std::max(state, it->second);
    for (const Frame &frame : frames_)
      if (std::ranges::find(frame.values, std::pair(at, state)) != frame.values.end())
        return;
    frames_[level].values.emplace_back(at, state);
    const Node &n = k_.term_[at];
    const double times = frames_[level].times;
    if (n.op == Op::Load) {
      load(n.payload, frames_[level]);
      return;
    }
    for (const Id child : {n.a, n.b})
      if (child != NONE)
        value(child);
    compute(at, times);
  }

  void load(int32_t region, Frame &frame) {
    fits_ = fits_ && elements(region) <= largest_tile_;
    if (t_.access_vars(region) & ~(grid_ | open_))
      fits_ = false; // a variable outside its loop
    for (const int32_t m : k_.members(region)) {
      const double bytes = elements(region) * t_.tensors[m].bytes;
      if (on_chip(m)) {
        if (in(outer_, m) && !moved(m))
          move(m, region, bytes * blocks_);
        continue;
      }
      frame.loaded += bytes;
      if (!in(k_.writes_, m) || in(live_, m))
        move(m, region, bytes * frame.times);
    }
    // Tiles are prefetched into a second set of buffers.
    fits_ = fits_ && 2 * frame.loaded <= static_cast<double>(target_.shared_per_block);
  }

  // Operations of one tile operator; a bundle's value stands for each of its lanes.
  void compute(Id at, double times) {
    const Node &n = k_.term_[at];
    const double lanes = k_.lanes_[at];
    const std::vector<double> &shape = shape_of(at);
    const double size = product(shape);
    fits_ = fits_ && size <= largest_tile_;
    if (n.op == Op::Matmul) {
      const double depth = shape_of(n.a).back(), rows = shape[shape.size() - 2];
      traffic_.product(target_, rows, shape.back(), depth, size / (rows * shape.back()) * lanes * times,
                       k_.bytes_[at]);
    } else if (n.op != Op::Const && n.op != Op::Transpose && n.op != Op::Reshape && n.op != Op::Broadcast) {
      const bool reduces = n.op == Op::Sum || n.op == Op::Maximum;
      const double points = padded_product(reduces ? shape_of(n.a) : shape) * lanes * times;
      const bool special = n.op == Op::Exp || n.op == Op::Div;
      const Work work = n.op == Op::Unary ? t_.works.at(n.payload) : Work{1, special ? 1.0 : 0.0};
      traffic_.vector_flops += points * work.flops;
      traffic_.special_operations += points * work.special;
    }
  }

  const std::vector<double> &shape_of(Id at) {
    std::vector<double> &out = shapes_[at];
    if (!out.empty())
      return out;
    const Node &n = k_.term_[at];
    static const std::vector<double> nothing;
    const std::vector<double> &a = n.a == NONE ? nothing : shape_of(n.a);
    const std::vector<double> &b = n.b == NONE ? nothing : shape_of(n.b);
    if (n.op == Op::Load) {
      out = shape_of_region(n.payload);
    } else if (n.op == Op::Reshape || n.op == Op::Broadcast) {
      for (const int32_t extent : t_.shapes[n.payload])
        out.push_back(extent >= 0 ? extent : widths_[-1 - extent]);
    } else if (n.op == Op::Sum || n.op == Op::Maximum) {
      out = a;
      for (const int32_t d : t_.lists[n.payload])
        out[out.size() + d] = 1;
    } else if (n.op == Op::Transpose) {
      for (const int32_t d : t_.lists[n.payload])
        out.push_back(a[d]);
    } else if (n.op == Op::Concat) {
      out = a;
      out[out.size() + n.payload] += b[b.size() + n.payload];
    } else {
      out = a.size() >= b.size() ? a : b;
      const std::vector<double> &other = a.size() >= b.size() ? b : a;
      for (size_t i = 1; i <= other.size(); ++i)
        out[out.size() - i] = std::max(out[out.size() - i], other[other.size() - i]);
      if (n.op == Op::Matmul)
        out[out.size() - 2] = a[a.size() - 2], out.back() = b.back();
    }
    if (out.empty())
      out.push_back(1); // a scalar
    return out;
  }

  double seconds() {
    traffic_.blocks = static_cast<int64_t>(blocks_);
    traffic_.shared_bytes = static_cast<int64_t>(shared_);
    traffic_.loop_trips = static_cast<int64_t>(trips_);
    for (const auto &[at, bytes] : moved_) {
      const auto &[m, run] = at;
      double whole = t_.tensors[m].bytes;
      for (const int32_t extent : t_.tensors[m].shape)
        whole *= extent;
      traffic_.move(target_, whole, bytes, run);
    }
    return kernel_seconds(target_, traffic_);
  }
};

Estimate KernelTerm::on(const TargetNumbers &target, const TensorSet &live,
                        const std::vector<int32_t> &choices) const {
  std::vector<int32_t> widths;
  for (const Var &var : g_.tables.vars)
    widths.push_back(var.width());
  Estimate best = Count(*this, target, live, widths)();
  if (best.seconds == 0)
    return best;
  std::vector<int32_t> chosen = widths;
  const auto attempt = [&] {
    if (Estimate other = Count(*this, target, live, widths)(); other.seconds < best.seconds)
      best = std::move(other), chosen = widths;
  };
  // Tiles reach past the end of an axis only where no width divides it.
  const auto suits = [&](int32_t v, int32_t width) {
    const Var &var = g_.tables.vars[v];
    return var.end % width == 0 || (var.end % var.width() != 0 && width < var.end);
  };
  // All widths equal; then one variable at a time, and two at once by a factor of two, until that no longer
  // helps.
  for (const int32_t width : choices) {
    for (const int32_t v : free_)
      if (suits(v, width))
        widths[v] = width;
    attempt();
  }
  for (double before = 0; best.seconds != before;) {
    before = best.seconds;
    for (const int32_t v : free_)
      for (const int32_t width : choices)
        if (widths = chosen; suits(v, width) && width != widths[v])
          widths[v] = width, attempt();
    if (best.seconds != before)
      continue;
    const auto scaled = [&](int32_t v, bool up) { return up ? 2 * chosen[v] : chosen[v] / 2; };
    const auto offered = [&](int32_t v, int32_t width) {
      return width > 0 && suits(v, width) && std::ranges::find(choices, width) != choices.end();
    };
    for (size_t i = 0; i < free_.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        for (const int both : {0, 1, 2, 3}) {
          const int32_t a = scaled(free_[i], both & 1), b = scaled(free_[j], both & 2);
          if (widths = chosen; offered(free_[i], a) && offered(free_[j], b))
            widths[free_[i]] = a, widths[free_[j]] = b, attempt();
        }
  }
  return best;
}

} // namespace superopt::egraph
