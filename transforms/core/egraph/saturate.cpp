// The schedule: in every iteration look at the graph as it is, apply every rule everywhere, then rebuild.
#include "egraph/rules.hpp"

namespace superopt::egraph {

namespace {

class Run {
public:
  Run(EGraph &g, const std::vector<bool> &enabled, const Limits &limits, Watch &watch)
      : g_(g), enabled_(enabled), limits_(limits), watch_(watch) {
    out_.counts.resize(rule_table().size());
  }

  Outcome operator()() {
    out_.stopped = "iterations";
    g_.rebuild();
    while (out_.iterations < limits_.iterations) {
      const size_t nodes = g_.node_count(), unions = g_.unions;
      iterate();
      ++out_.iterations;
      if (full())
        break;
      if (g_.memory_bytes() > limits_.bytes) {
        out_.stopped = "memory";
        break;
      }
      if (g_.node_count() == nodes && g_.unions == unions) {
        out_.stopped = "saturated";
        break;
      }
    }
    out_.seconds = watch_.seconds();
    return out_;
  }

private:
  EGraph &g_;
  const std::vector<bool> &enabled_;
  const Limits &limits_;
  Watch &watch_;
  Outcome out_;
  std::vector<std::pair<size_t, Found>> found_;
  bool stop_ = false;
  uint32_t seen_ = 0; // when the graph was last looked at

  bool full() {
    if (stop_)
      return true;
    if (const char *why = g_.node_count() > limits_.nodes ? "nodes" : watch_.over())
      out_.stopped = why, stop_ = true;
    return stop_;
  }

  void iterate() {
    found_.clear();
    const Smallest smallest(g_);
    // Rules look at most so deep below a node; loop propagation looks deeper and waits for a change nearby.
    const std::vector<bool> hot = g_.changed_since(seen_, 4);
    seen_ = g_.now();
    std::vector<std::vector<Id>> by_op(OP_COUNT);
    for (const Id id : g_.roots())
      if (hot[id])
        for (const Id number : g_.at(id).nodes)
          by_op[static_cast<int>(g_.node(number).op)].push_back(number);
    values(by_op);
    singles(smallest, by_op[static_cast<int>(Op::Loop)]);
    sequences(smallest, by_op[static_cast<int>(Op::Seq)]);
    for (const auto &[rule, found] : found_)
      out_.counts[rule].fired += g_.unite(found.where, found.equal);
    g_.rebuild();
  }

  void values(const std::vector<std::vector<Id>> &by_op) {
    for (size_t rule = 0; rule < rule_table().size() && !full(); ++rule) {
      if (!enabled_[rule] || rule_table()[rule].kind != Kind::Pattern)
        continue;
      std::vector<Found> found;
      match_values(g_, rule, by_op[static_cast<int>(pattern_root(rule))], out_.counts[rule], found, watch_);
      for (const Found &f : found)
        found_.emplace_back(rule, f);
    }
  }

  // x1; x2; ...; tail in canonical form.
  Id chain(const std::vector<Id> &sequence, Id tail) {
    for (size_t i = sequence.size(); i-- > 0;)
      tail = tail == NONE ? sequence[i] : g_.append(sequence[i], tail);
    return tail;
  }

  void keep(size_t rule, Id where, const std::vector<std::vector<Id>> &sequences, Id tail) {
    for (const auto &sequence : sequences)
      if (const Id equal = chain(sequence, tail); equal != NONE)
        found_.push_back({rule, {where, equal}});
  }

  void singles(const Smallest &smallest, const std::vector<Id> &loops) {
    for (size_t rule = 0; rule < rule_table().size(); ++rule) {
      const std::string_view name = rule_table()[rule].name;
      if (!enabled_[rule] || rule_table()[rule].kind != Kind::Single || name.ends_with("-tail"))
        continue;
      for (size_t i = 0; i < loops.size(); ++i) {
        if (i % 256 == 0 && full())
          return;
        const Id where = g_.add(g_.node(loops[i]));
        keep(rule, where, rewrite_single(g_, smallest, name, loops[i], out_.counts[rule]), NONE);
      }
    }
  }

  void sequences(const Smallest &smallest, const std::vector<Id> &numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (i % 256 == 0 && full())
        return;
      const Node node = g_.node(numbers[i]);
      const Id where = g_.add(node);
      std::vector<std::pair<Id, Id>> next; // (the statement after node.a, what follows it)
      if (g_.has_plain(node.b))
        next.emplace_back(node.b, NONE);
      std::vector<Node> inner;
      for (const Id number : g_.at(node.b).nodes)
        if (g_.node(number).op == Op::Seq)
          inner.push_back(g_.node(number));
      for (const Node &seq : inner)
        next.emplace_back(seq.a, seq.b);
      for (size_t rule = 0; rule < rule_table().size(); ++rule) {
        const RuleEntry &entry = rule_table()[rule];
        const std::string_view name = entry.name;
        if (!enabled_[rule])
          continue;
        const bool tail = name.ends_with("-tail");
        const std::string_view base = tail ? name.substr(0, name.size() - 5) : name;
        if (base == "sequence-canonicalization")
          canonicalize(rule, where, node);
        else if (entry.kind == Kind::Pair)
          pairs(smallest, rule, base, tail, where, node.a, next);
        else if (entry.kind == Kind::Single && tail)
          before_tail(smallest, rule, base, where, node);
      }
    }
  }

  void canonicalize(size_t rule, Id where, const Node &node) {
    bool nested = false;
    for (const Id number : g_.at(node.a).nodes)
      nested = nested || g_.node(number).op == Op::Seq;
    if (!nested)
      return;
    ++out_.counts[rule].matched;
    if (const Id flat = g_.append(node.a, node.b); flat != NONE)
      found_.push_back({rule, {where, flat}});
  }

  void pairs(const Smallest &smallest, size_t rule, std::string_view base, bool tail, Id where, Id x,
             const std::vector<std::pair<Id, Id>> &next) {
    // Propagation has one entry for both positions.
    const bool both = base == "expression-propagation" || base == "loop-propagation";
    for (const auto &[y, rest] : next) {
      if (!both && tail != (rest != NONE))
        continue;
      if (base == "seq-comm" && (!g_.has_plain(x) || !g_.has_plain(y)))
        continue; // sequences are moved statement by statement
      keep(rule, where, rewrite_pair(g_, smallest, base, x, y, out_.counts[rule]), rest);
    }
  }

  void before_tail(const Smallest &smallest, size_t rule, std::string_view base, Id where, const Node &node) {
    std::vector<Id> loops;
    for (const Id number : g_.at(node.a).nodes)
      if (g_.node(number).op == Op::Loop)
        loops.push_back(number);
    for (const Id number : loops)
      keep(rule, where, rewrite_single(g_, smallest, base, number, out_.counts[rule]), node.b);
  }
};

} // namespace

Outcome saturate(EGraph &g, const std::vector<bool> &enabled, const Limits &limits, Watch &watch) {
  return Run(g, enabled, limits, watch)();
}

} // namespace superopt::egraph
