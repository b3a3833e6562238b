// Rules on values: reading, matching and building of patterns.
#include "egraph/rules.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace superopt::egraph {

namespace {

// (op child child) | ?name | number. `concat` may carry a dimension: concat:-1, or concat:?d to bind one.
struct Pattern {
  enum Head { Variable, Number, Apply } head = Variable;
  int variable = -1;
  double number = 0;
  Op op = Op::Add;
  int dim_variable = -1;
  std::optional<int32_t> dim;
  std::vector<Pattern> children;
};

// A guard, and the numbers of the variables that it tests.
struct BoundGuard {
  decltype(RuleGuard::holds) holds;
  size_t x, y;
};

struct Rule {
  Pattern before, after;
  std::vector<std::string> variables;
  std::vector<BoundGuard> guards;
};

class Reader {
public:
  Reader(std::string_view text, std::vector<std::string> &variables) : text_(text), variables_(variables) {}

  Pattern read() {
    skip();
    if (text_.front() != '(')
      return atom(word());
    text_.remove_prefix(1);
    Pattern out;
    out.head = Pattern::Apply;
    std::string name = word();
    if (const auto colon = name.find(':'); colon != std::string::npos) {
      const std::string dim = name.substr(colon + 1);
      if (dim.front() == '?')
        out.dim_variable = variable(dim);
      else
        out.dim = std::stoi(dim);
      name.resize(colon);
    }
    out.op = named(name);
    for (skip(); text_.front() != ')'; skip())
      out.children.push_back(read());
    text_.remove_prefix(1);
    return out;
  }

private:
  std::string_view text_;
  std::vector<std::string> &variables_;

  void skip() {
    while (!text_.empty() && text_.front() == ' ')
      text_.remove_prefix(1);
    if (text_.empty())
      throw std::logic_error("unfinished pattern");
  }
  std::string word() {
    skip();
    const size_t end = std::min(text_.find_first_of(" ()"), text_.size());
    std::string out(text_.substr(0, end));
    text_.remove_prefix(end);
    return out;
  }
  int variable(const std::string &name) {
    for (size_t i = 0; i < variables_.size(); ++i)
      if (variables_[i] == name)
        return static_cast<int>(i);
    variables_.push_back(name);
    return static_cast<int>(variables_.size() - 1);
  }
  Pattern atom(const std::string &name) {
    Pattern out;
    if (name.front() == '?')
      out.variable = variable(name);
    else
      out.head = Pattern::Number, out.number = std::stod(name);
    return out;
  }
  static Op named(const std::string &name) {
    for (int i = 0; i < OP_COUNT; ++i)
      if (name == op_name(static_cast<Op>(i)))
        return static_cast<Op>(i);
    throw std::logic_error("no operator called " + name);
  }
};

struct Bindings {
  std::vector<Id> ids;
  std::vector<int32_t> dims;
};

class Matcher {
public:
  Matcher(EGraph &g, const Rule &rule) : g_(g), rule_(rule) {}

  // All ways in which node `number` is an instance of the rule's left side.
  std::vector<Bindings> at_node(Id number) {
    out_.clear();
    Bindings start{std::vector<Id>(rule_.variables.size(), NONE),
                   std::vector<int32_t>(rule_.variables.size(), 0)};
    node(rule_.before, number, start, [&](Bindings &b) { out_.push_back(b); });
    return out_;
  }

  Id build(const Pattern &p, const Bindings &b, int32_t shape_of_match) {
    if (p.head == Pattern::Variable)
      return b.ids[p.variable];
    if (p.head == Pattern::Number)
      return g_.add(Op::Const, g_.tables.constants({p.number, shape_of_match}));
    Id children[2] = {NONE, NONE};
    for (size_t i = 0; i < p.children.size(); ++i)
      if (children[i] = build(p.children[i], b, shape_of_match); children[i] == NONE)
        return NONE;
    int32_t payload = 0;
    if (p.op == Op::Concat)
      payload = p.dim ? *p.dim : b.dims[p.dim_variable];
    return g_.add(p.op, payload, children[0], children[1]);
  }

private:
  EGraph &g_;
  const Rule &rule_;
  std::vector<Bindings> out_;

  template <class Then> void node(const Pattern &p, Id number, Bindings &b, const Then &then) {
    const Node n = g_.node(number);
    if (n.op != p.op)
      return;
    int32_t saved = 0;
    if (p.op == Op::Concat) {
      if (p.dim && *p.dim != n.payload)
        return;
      if (p.dim_variable >= 0) {
        saved = b.dims[p.dim_variable];
        if (saved != 0 && saved != n.payload)
          return;
        b.dims[p.dim_variable] = n.payload;
      }
    }
    if (p.children.size() == 1)
      match(p.children[0], n.a, b, then);
    else
      match(p.children[0], n.a, b, [&](Bindings &c) { match(p.children[1], n.b, c, then); });
    if (p.op == Op::Concat && p.dim_variable >= 0)
      b.dims[p.dim_variable] = saved;
  }

  template <class Then> void match(const Pattern &p, Id id, Bindings &b, const Then &then) {
    id = g_.find(id);
    if (p.head == Pattern::Variable) {
      const Id before = b.ids[p.variable];
      if (before != NONE && g_.find(before) != id)
        return;
      b.ids[p.variable] = id;
      then(b);
      b.ids[p.variable] = before;
      return;
    }
    for (const Id number : g_.at(id).nodes) {
      if (p.head == Pattern::Apply) {
        matched_node(p, number, b, then);
      } else if (const Node &n = g_.node(number);
                 n.op == Op::Const && g_.tables.constants[n.payload].value == p.number) {
        then(b);
        return;
      }
    }
  }

  // Breaks the template recursion of node -> match -> node with a plain function object.
  template <class Then> void matched_node(const Pattern &p, Id number, Bindings &b, const Then &then) {
    const std::function<void(Bindings &)> erased = [&](Bindings &c) { then(c); };
    node_erased(p, number, b, erased);
  }
  void node_erased(const Pattern &p, Id number, Bindings &b, const std::function<void(Bindings &)> &then) {
    node(p, number, b, then);
  }
};

size_t number(const Rule &rule, const std::string &variable) {
  const auto it = std::ranges::find(rule.variables, "?" + variable);
  if (it == rule.variables.end())
    throw std::logic_error("a guard names " + variable + ", which its rule does not bind");
  return static_cast<size_t>(it - rule.variables.begin());
}

Rule compile(const RuleEntry &entry) {
  Rule rule;
  rule.before = Reader(entry.before, rule.variables).read();
  const size_t bound = rule.variables.size();
  rule.after = Reader(entry.after, rule.variables).read();
  if (rule.variables.size() != bound)
    throw std::logic_error(std::string(entry.name) + ": the right side names what the left does not bind");
  for (const RuleGuard &guard : entry.guards) {
    if (!guard.holds)
      throw std::logic_error(std::string(entry.name) + ": a guard on statements stands at a rule on values");
    rule.guards.push_back({guard.holds, number(rule, guard.of[0]), number(rule, guard.of[1])});
  }
  return rule;
}

const std::vector<Rule> &compiled() {
  static const std::vector<Rule> rules = [] {
    std::vector<Rule> out;
    for (const RuleEntry &entry : rule_table())
      out.push_back(std::holds_alternative<ValueRule>(entry.kind) ? compile(entry) : Rule{});
    return out;
  }();
  return rules;
}

bool holds(const EGraph &g, const Rule &rule, const Bindings &b) {
  return std::ranges::all_of(
      rule.guards, [&](const BoundGuard &guard) { return guard.holds(g, b.ids[guard.x], b.ids[guard.y]); });
}

} // namespace

void read_patterns() { compiled(); }

Op pattern_root(size_t rule) { return compiled()[rule].before.op; }

void match_values(EGraph &g, size_t index, const std::vector<Id> &node_numbers, RuleCount &count,
                  std::vector<Found> &out, Watch &watch) {
  const Rule &rule = compiled()[index];
  Matcher matcher(g, rule);
  for (const Id number : node_numbers) {
    if (watch.over())
      return;
    for (const Bindings &b : matcher.at_node(number)) {
      ++count.matched;
      if (!holds(g, rule, b)) {
        ++count.refused;
        continue;
      }
      const Id where = g.add(g.node(number));
      const Id equal = matcher.build(rule.after, b, g.facts(where).shape);
      if (equal == NONE || g.facts(equal).shape != g.facts(where).shape) {
        ++count.refused;
        continue;
      }
      out.push_back({where, equal});
    }
  }
}

} // namespace superopt::egraph
