// Every rule, one line each. The paper is Trinity (ASPLOS 2026); A.1 and A.2 are its Appendix A.
#include "egraph/rules.hpp"

namespace superopt::egraph {

namespace {

using Guards = std::vector<RuleGuard>;

PairRule pair(decltype(PairRule::rewrite) rewrite, Position position) { return {rewrite, position}; }
LoopRule loop(decltype(LoopRule::rewrite) rewrite, Position position) { return {rewrite, position}; }

const Guards none; // shapes alone decide: `EGraph::add` and `unite` refuse what does not fit

template <class... Rest> Guards asks(Guard first, Rest... rest) { return {{first}, {rest}...}; }
Guards columns(const char *a, const char *b) { return {{Guard::ConstantColumns, constant_columns, {a, b}}}; }
Guards rows(const char *a, const char *b) { return {{Guard::ConstantRows, constant_rows, {a, b}}}; }
Guards not_zero(const char *x) { return {{Guard::NonZero, nonzero, {x, x}}}; }
Guards one_shape(const char *x, const char *y) { return {{Guard::SameShape, same_shape, {x, y}}}; }

} // namespace

std::string RuleGuard::asks() const {
  std::string out = described(guard).asks;
  const std::string_view places[] = {"{0}", "{1}"};
  for (int i = 0; i < 2; ++i)
    if (const size_t at = out.find(places[i]); at != std::string::npos)
      out.replace(at, places[i].size(), of[i]);
  return out;
}

const std::vector<RuleEntry> &rule_table() {
  using enum Guard;
  constexpr auto Last = Position::Last, Followed = Position::Followed, Anywhere = Position::Anywhere;
  constexpr ValueRule P;
  static const std::vector<RuleEntry> table = {
      // --- A.1, loops; `-tail`: the same where statements follow ---
      {"seq-comm", pair(commute, Last), "x; y", "y; x", asks(Independent), "A.1", true},
      {"seq-comm-tail", pair(commute, Followed), "x; y; t", "y; x; t", asks(Independent), "A.1", true},
      {"loop-fusion", pair(fuse, Last), "(for v: x); (for v: y)", "for v: x; y", asks(Fusible), "A.1", true},
      {"loop-fusion-tail", pair(fuse, Followed), "(for v: x); (for v: y); t", "(for v: x; y); t",
       asks(Fusible), "A.1", true},
      {"loop-fission", loop(fission, Last), "for v: x; y", "(for v: x); (for v: y)", asks(Fissible), "A.1",
       false},
      {"loop-fission-tail", loop(fission, Followed), "(for v: x; y); t", "(for v: x); (for v: y); t",
       asks(Fissible), "A.1", false},
      {"loop-insertion1", pair(insert_after, Last), "(for v: x); s", "for v: x; s", asks(InsertableAfter),
       "A.1", true},
      {"loop-insertion1-tail", pair(insert_after, Followed), "(for v: x); s; t", "(for v: x; s); t",
       asks(InsertableAfter), "A.1", true},
      {"loop-insertion2", pair(insert_before, Last), "s; (for v: x)", "for v: s; x", asks(InsertableBefore),
       "A.1", true},
      {"loop-insertion2-tail", pair(insert_before, Followed), "s; (for v: x); t", "(for v: s; x); t",
       asks(InsertableBefore), "A.1", true},
      {"loop-invar-code-motion", loop(hoist_invariant, Last), "for v: x", "x", asks(Invariant), "A.1", true},
      {"alge-factor-loop-body-div", loop(factor_quotient, Last), "for v: b = b * a + x / y",
       "(for v: b = b * a + x); b = b / y", asks(Factorable), "A.1", true},
      {"alge-factor-loop-body-div-tail", loop(factor_quotient, Followed), "(for v: b = b * a + x / y); t",
       "(for v: b = b * a + x); b = b / y; t", asks(Factorable), "A.1", true},
      {"alge-factor-loop-body-mul", loop(factor_product, Last), "for v: b = b * a + x * y",
       "(for v: b = b * a + x); b = b * y", asks(Factorable), "A.1", true},
      {"alge-factor-loop-body-mul-tail", loop(factor_product, Followed), "(for v: b = b * a + x * y); t",
       "(for v: b = b * a + x); b = b * y; t", asks(Factorable), "A.1", true},
      // --- sections 4.1, 4.2, 5.3 ---
      {"sequence-canonicalization", FlattenRule(), "(x; y); t", "x; (y; t)", none, "4.2", true},
      {"expression-propagation", pair(propagate_store, Anywhere), "r = e; ..r..", "r = e; ..e..",
       asks(Propagatable), "4.1", true},
      {"loop-propagation", pair(propagate_through_loops, Anywhere), "(for v: r = e); (for v: ..r..)",
       "(for v: r = e); (for v: ..e..)", asks(Fusible, Propagatable), "4.1 over fusible loops", true},
      {"iteration-space-reindexing", loop(reindex, Last), "for h: x[elem h]", "for n: x[elem n]",
       asks(Reindexable), "5.3", true},
      {"single-trip", loop(open_single_trip, Last), "for v in 0..e by e: x[v]", "x[:]", asks(SingleTrip),
       "a tile as wide as its axis", true},
      // --- A.2, algebra ---
      {"comm-add", P, "(+ ?a ?b)", "(+ ?b ?a)", none, "A.2", true},
      {"assoc-add", P, "(+ ?a (+ ?b ?c))", "(+ (+ ?a ?b) ?c)", none, "A.2", true},
      {"assoc-add2", P, "(+ (+ ?a ?b) ?c)", "(+ ?a (+ ?b ?c))", none, "A.2", true},
      {"comm-mul", P, "(* ?a ?b)", "(* ?b ?a)", none, "A.2", true},
      {"assoc-mul", P, "(* ?a (* ?b ?c))", "(* (* ?a ?b) ?c)", none, "A.2", true},
      {"assoc-mul2", P, "(* (* ?a ?b) ?c)", "(* ?a (* ?b ?c))", none, "A.2", true},
      {"assoc-matmul", P, "(matmul ?a (matmul ?b ?c))", "(matmul (matmul ?a ?b) ?c)", none, "A.2", true},
      {"assoc-matmul2", P, "(matmul (matmul ?a ?b) ?c)", "(matmul ?a (matmul ?b ?c))", none, "A.2", true},
      {"assoc-div-matmul", P, "(matmul (/ ?a ?b) ?c)", "(/ (matmul ?a ?c) ?b)", columns("a", "b"), "A.2",
       true},
      {"dist-mul-add", P, "(* ?a (+ ?b ?c))", "(+ (* ?a ?b) (* ?a ?c))", none, "A.2", true},
      {"dist-mul-sub", P, "(* ?a (- ?b ?c))", "(- (* ?a ?b) (* ?a ?c))", none, "A.2", true},
      {"dist-matmul-add", P, "(matmul ?a (+ ?b ?c))", "(+ (matmul ?a ?b) (matmul ?a ?c))",
       one_shape("b", "c"), "A.2", true},
      {"dist-matmul-sub", P, "(matmul ?a (- ?b ?c))", "(- (matmul ?a ?b) (matmul ?a ?c))",
       one_shape("b", "c"), "A.2", true},
      {"factor-mul-add", P, "(+ (* ?a ?b) (* ?a ?c))", "(* ?a (+ ?b ?c))", none, "A.2", true},
      {"factor-mul-sub", P, "(- (* ?a ?b) (* ?a ?c))", "(* ?a (- ?b ?c))", none, "A.2", true},
      {"factor-matmul-add", P, "(+ (matmul ?a ?b) (matmul ?a ?c))", "(matmul ?a (+ ?b ?c))",
       one_shape("b", "c"), "A.2", true},
      {"factor-matmul-sub", P, "(- (matmul ?a ?b) (matmul ?a ?c))", "(matmul ?a (- ?b ?c))",
       one_shape("b", "c"), "A.2", true},
      {"exp-mul", P, "(* (exp ?a) (exp ?b))", "(exp (+ ?a ?b))", none, "A.2", true},
      {"exp-div", P, "(/ (exp ?a) (exp ?b))", "(exp (- ?a ?b))", none, "A.2", true},
      {"exp0", P, "(exp 0)", "1", none, "A.2", true},
      {"recip-mul-div", P, "(* ?x (/ 1 ?x))", "1", not_zero("x"), "A.2", true},
      {"geometry-of-concat", P, "(concat:-1 (concat:-2 ?x ?z) (concat:-2 ?y ?w))",
       "(concat:-2 (concat:-1 ?x ?y) (concat:-1 ?z ?w))", none, "A.2", true},
      {"geometry-of-concat-inv", P, "(concat:-2 (concat:-1 ?x ?y) (concat:-1 ?z ?w))",
       "(concat:-1 (concat:-2 ?x ?z) (concat:-2 ?y ?w))", none, "A.2", true},
      // Where x and y have the same shape, z and w do too, or one side lacks a shape.
      {"operator-comm6", P, "(+ (concat:?d ?x ?z) (concat:?d ?y ?w))", "(concat:?d (+ ?x ?y) (+ ?z ?w))",
       one_shape("x", "y"), "A.2", true},
      {"operator-comm6-inv", P, "(concat:?d (+ ?x ?y) (+ ?z ?w))", "(+ (concat:?d ?x ?z) (concat:?d ?y ?w))",
       one_shape("x", "y"), "A.2", true},
      {"operator-comm7", P, "(* (concat:?d ?x ?z) (concat:?d ?y ?w))", "(concat:?d (* ?x ?y) (* ?z ?w))",
       one_shape("x", "y"), "A.2", true},
      {"operator-comm7-inv", P, "(concat:?d (* ?x ?y) (* ?z ?w))", "(* (concat:?d ?x ?z) (concat:?d ?y ?w))",
       one_shape("x", "y"), "A.2", true},
      {"concat-and-matmul0", P, "(matmul ?x (concat:-1 ?y ?z))", "(concat:-1 (matmul ?x ?y) (matmul ?x ?z))",
       none, "A.2", true},
      {"concat-and-matmul0-inv", P, "(concat:-1 (matmul ?x ?y) (matmul ?x ?z))",
       "(matmul ?x (concat:-1 ?y ?z))", none, "A.2", true},
      {"concat-and-matmul1", P, "(+ (matmul ?a ?b) (matmul ?c ?d))",
       "(matmul (concat:-1 ?a ?c) (concat:-2 ?b ?d))", none, "A.2", false},
      {"concat-and-matmul1-inv", P, "(matmul (concat:-1 ?a ?c) (concat:-2 ?b ?d))",
       "(+ (matmul ?a ?b) (matmul ?c ?d))", none, "A.2", true},
      // --- what the paper lacks ---
      {"mul-matmul", P, "(matmul (* ?a ?b) ?c)", "(* (matmul ?a ?c) ?b)", columns("a", "b"),
       "as assoc-div-matmul, for a product", true},
      {"matmul-mul", P, "(matmul ?a (* ?c ?b))", "(* (matmul ?a ?c) ?b)", rows("c", "b"),
       "as assoc-div-matmul, on the right", true},
      {"matmul-div", P, "(matmul ?a (/ ?c ?b))", "(/ (matmul ?a ?c) ?b)", rows("c", "b"),
       "as assoc-div-matmul, on the right", true},
      {"mul-div", P, "(* (/ ?a ?b) ?c)", "(/ (* ?a ?c) ?b)", none, "field axioms", true},
      {"div-mul", P, "(/ (* ?a ?b) ?c)", "(* (/ ?a ?c) ?b)", none, "field axioms", true},
      {"comm-max", P, "(max ?a ?b)", "(max ?b ?a)", none, "lattice axioms", true},
      {"assoc-max", P, "(max ?a (max ?b ?c))", "(max (max ?a ?b) ?c)", none, "lattice axioms", true},
      {"online-rescaling", pair(rescale, Last), "(for v: m = max(m, r)); (for v: c += f(exp(x - m)))",
       "for v: c = c * exp(m - max(m, r)) + f(exp(x - max(m, r))); m = max(m, r)", asks(Rescalable),
       "Milakov and Gimelshein 2018; FlashAttention", true},
      {"online-rescaling-tail", pair(rescale, Followed),
       "(for v: m = max(m, r)); (for v: c += f(exp(x - m))); t",
       "(for v: c = c * exp(m - max(m, r)) + f(exp(x - max(m, r))); m = max(m, r)); t", asks(Rescalable),
       "Milakov and Gimelshein 2018; FlashAttention", true},
  };
  return table;
}

} // namespace superopt::egraph
