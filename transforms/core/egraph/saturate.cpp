// The schedule: every iteration applies all rules to the current classes, then unites what they found.
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
    // Rules look at most this deep below a node; loop propagation looks deeper and waits for a change nearby.
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
      if (!enabled_[rule] || !std::holds_alternative<ValueRule>(rule_table()[rule].kind))
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
      const auto *on_loop = std::get_if<LoopRule>(&rule_table()[rule].kind);
      if (!enabled_[rule] || !on_loop || on_loop->position == Position::Followed)
        continue;
      for (size_t i = 0; i < loops.size(); ++i) {
        if (i % 256 == 0 && full())
          return;
        const Node loop = g_.node(loops[i]);
        const Id where = g_.add(loop);
        keep(rule, where, on_loop->rewrite({g_, smallest, out_.counts[rule]}, loop), NONE);
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
        if (!enabled_[rule])
          continue;
        const auto &kind = rule_table()[rule].kind;
        const Site site{g_, smallest, out_.counts[rule]};
        if (std::holds_alternative<FlattenRule>(kind))
          canonicalize(rule, where, node);
        else if (const auto *on_pair = std::get_if<PairRule>(&kind))
          pairs(site, rule, *on_pair, where, node.a, next);
        else if (const auto *on_loop = std::get_if<LoopRule>(&kind);
                 on_loop && on_loop->position != Position::Last)
          before_tail(site, rule, *on_loop, where, node);
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

  void pairs(Site site, size_t rule, const PairRule &on_pair, Id where, Id x,
             const std::vector<std::pair<Id, Id>> &next) {
    const Position position = on_pair.position;
    for (const auto &[y, rest] : next)
      if (position == Position::Anywhere || position == (rest == NONE ? Position::Last : Position::Followed))
        keep(rule, where, on_pair.rewrite(site, x, y), rest);
  }

  void before_tail(Site site, size_t rule, const LoopRule &on_loop, Id where, const Node &node) {
    std::vector<Node> loops;
    for (const Id number : g_.at(node.a).nodes)
      if (g_.node(number).op == Op::Loop)
        loops.push_back(g_.node(number));
    for (const Node &loop : loops)
      keep(rule, where, on_loop.rewrite(site, loop), node.b);
  }
};

} // namespace

Outcome saturate(EGraph &g, const std::vector<bool> &enabled, const Limits &limits, Watch &watch) {
  return Run(g, enabled, limits, watch)();
}

} // namespace superopt::egraph
