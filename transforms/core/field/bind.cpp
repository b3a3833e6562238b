// Python's view of the field core: numpy arrays of residues (uint64) in, arrays out.
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "field/formal.hpp"
#include "field/lattice.hpp"
#include "field/limbs.hpp"
#include "field/matmul.hpp"
#include "field/modular.hpp"
#include "field/random.hpp"
#include "field/vector_lattice.hpp"

namespace nb = nanobind;

namespace superopt::field {
namespace {

using In = nb::ndarray<const u64, nb::c_contig, nb::device::cpu>;
using In3 = nb::ndarray<const u64, nb::ndim<3>, nb::device::cpu>; // any strides
using Out = nb::ndarray<nb::numpy, u64>;

[[noreturn]] void raise(PyObject *type, const char *message) {
  PyErr_SetString(type, message);
  throw nb::python_error();
}

template <class T> nb::ndarray<nb::numpy, T> wrap(std::unique_ptr<T[]> data, std::vector<std::size_t> shape) {
  T *raw = data.release();
  nb::capsule owner(raw, [](void *p) noexcept { delete[] static_cast<T *>(p); });
  return {raw, shape.size(), shape.data(), owner};
}

std::unique_ptr<u64[]> allocate(std::size_t n) { return std::make_unique_for_overwrite<u64[]>(n); }

template <class Array> std::vector<std::size_t> shape_of(const Array &a) {
  return {a.shape_ptr(), a.shape_ptr() + a.ndim()};
}

// out[i] = f(a[i]), without the GIL.
template <class F> Out map(const In &a, F f) {
  const std::size_t n = a.size();
  auto out = allocate(n);
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < n; ++i)
      out[i] = f(a.data()[i]);
  }
  return wrap(std::move(out), shape_of(a));
}

// out[i] = f(a[i], b[i]) for arrays of one shape.
template <class F> Out zip(const In &a, const In &b, F f) {
  if (shape_of(a) != shape_of(b))
    raise(PyExc_ValueError, "expected arrays of one shape");
  const std::size_t n = a.size();
  auto out = allocate(n);
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < n; ++i)
      out[i] = f(a.data()[i], b.data()[i]);
  }
  return wrap(std::move(out), shape_of(a));
}

// One value for each row (the last dimension) of `a`.
template <class F> Out rows(const In &a, F f) {
  std::vector<std::size_t> shape = shape_of(a);
  if (shape.empty())
    raise(PyExc_ValueError, "expected an array of rank one or more");
  const std::size_t n = shape.back(), count = n == 0 ? 0 : a.size() / n;
  shape.pop_back();
  auto out = allocate(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = f(a.data() + i * n, n);
  return wrap(std::move(out), std::move(shape));
}

Extents extents(const In3 &a, const In3 &b) {
  if (a.shape(0) != b.shape(0) || a.shape(2) != b.shape(1))
    raise(PyExc_ValueError, "expected shapes (batch, m, k) and (batch, k, n)");
  const auto signed_shape = [](const In3 &x, std::size_t d) {
    return static_cast<std::ptrdiff_t>(x.shape(d));
  };
  return {signed_shape(a, 0), signed_shape(a, 1), signed_shape(b, 2), signed_shape(a, 2)};
}

std::vector<std::size_t> product_shape(const In3 &a, const In3 &b) {
  return {a.shape(0), a.shape(1), b.shape(2)};
}

Modulus checked(u64 m) {
  if (m % 2 == 0 || m <= (u64{1} << 60) || m >= (u64{1} << 62))
    raise(PyExc_ValueError, "expected an odd modulus between 2^60 and 2^62");
  return Modulus(m);
}

// Field errors inside formal arithmetic become Python's.
template <class F> auto guarded(F f) {
  try {
    return f();
  } catch (const DivisionByZero &) {
    raise(PyExc_ZeroDivisionError, "division by zero in the field");
  } catch (const std::length_error &error) {
    raise(PyExc_OverflowError, error.what());
  }
}

void bind_field(nb::module_ &m) {
  nb::class_<Modulus>(m, "Field", "Arithmetic on arrays of residues modulo one odd prime of 61 or 62 bits.")
      .def(
          "__init__", [](Modulus *self, u64 m) { new (self) Modulus(checked(m)); }, nb::arg("modulus"))
      .def_prop_ro("modulus", &Modulus::value)
      .def("add",
           [](const Modulus &f, In a, In b) { return zip(a, b, [&](u64 x, u64 y) { return f.add(x, y); }); })
      .def("sub",
           [](const Modulus &f, In a, In b) { return zip(a, b, [&](u64 x, u64 y) { return f.sub(x, y); }); })
      .def("mul",
           [](const Modulus &f, In a, In b) { return zip(a, b, [&](u64 x, u64 y) { return f.mul(x, y); }); })
      .def("neg", [](const Modulus &f, In a) { return map(a, [&](u64 x) { return f.neg(x); }); })
      .def("inverse",
           [](const Modulus &f, In a) {
             auto out = allocate(a.size());
             if (!invert(f, a.data(), out.get(), a.size()))
               raise(PyExc_ZeroDivisionError, "division by zero in the field");
             return wrap(std::move(out), shape_of(a));
           })
      .def(
          "power", [](const Modulus &f, u64 base, In exponents) { return map(exponents, Powers(f, base)); },
          "base to the exponents (which are not reduced)")
      .def(
          "sum",
          [](const Modulus &f, In a) {
            return rows(a, [&](const u64 *x, std::size_t n) {
              u128 total = 0; // fewer than 2^64 residues
              for (std::size_t i = 0; i < n; ++i)
                total += x[i];
              return f.reduce_any(total);
            });
          },
          "sum over the last dimension")
      .def(
          "matmul",
          [](const Modulus &f, In3 a, In3 b, unsigned threads) {
            const Extents e = extents(a, b);
            const auto matrices = [](const In3 &x) {
              return Matrices{x.data(), static_cast<std::ptrdiff_t>(x.stride(0)),
                              static_cast<std::ptrdiff_t>(x.stride(1)),
                              static_cast<std::ptrdiff_t>(x.stride(2))};
            };
            auto out = allocate(static_cast<std::size_t>(e.batch * e.m * e.n));
            {
              nb::gil_scoped_release release;
              matmul(f, matrices(a), matrices(b), e, out.get(), threads);
            }
            return wrap(std::move(out), product_shape(a, b));
          },
          nb::arg("a"), nb::arg("b"), nb::arg("threads") = 1, "(batch, m, k) x (batch, k, n), any strides")
      .def(
          "digits",
          [](const Modulus &, In a) {
            const std::size_t n = a.size();
            auto out = std::make_unique_for_overwrite<double[]>(6 * n);
            {
              nb::gil_scoped_release release;
              for (std::size_t i = 0; i < n; ++i) {
                const auto d = digits(a.data()[i]);
                const std::array<double, 6> all{d[0], d[1], d[2], d[0] + d[1], d[0] + d[2], d[1] + d[2]};
                for (std::size_t j = 0; j < all.size(); ++j)
                  out[j * n + i] = all[j];
              }
            }
            std::vector<std::size_t> shape = shape_of(a);
            shape.insert(shape.begin(), 6);
            return wrap(std::move(out), std::move(shape));
          },
          nb::arg("a"), "three digits of each residue, and their sums by two, as float64: shape (6, ...)")
      .def(
          "join",
          [](const Modulus &f, nb::ndarray<const double, nb::c_contig, nb::device::cpu> products) {
            std::vector<std::size_t> shape = shape_of(products);
            if (shape.empty() || shape.front() != 6)
              raise(PyExc_ValueError, "expected products of shape (6, ...)");
            shape.erase(shape.begin());
            const std::size_t n = products.size() / 6;
            auto out = allocate(n);
            {
              nb::gil_scoped_release release;
              const Joiner joined(f);
              const double *p = products.data();
              for (std::size_t i = 0; i < n; ++i)
                out[i] = joined({p[i], p[n + i], p[2 * n + i], p[3 * n + i], p[4 * n + i], p[5 * n + i]});
            }
            return wrap(std::move(out), std::move(shape));
          },
          nb::arg("products"), "what products of at most DEPTH terms of such digits are as residues")
      .def(
          "uniform",
          [](const Modulus &f, u64 key, std::size_t n) {
            auto out = allocate(n);
            {
              nb::gil_scoped_release release;
              for (std::size_t i = 0; i < n; ++i)
                out[i] = residue(f, key, i);
            }
            return wrap(std::move(out), {n});
          },
          nb::arg("key"), nb::arg("count"), "independent uniform residues, a function of key and position")
      .def(
          "uniform_at",
          [](const Modulus &f, u64 key, In places) {
            return map(places, [&](u64 i) { return residue(f, key, i); });
          },
          nb::arg("key"), nb::arg("places"), "the elements of `uniform` at these positions")
      .def(
          "keyed",
          [](const Modulus &f, u64 key, In a) { return map(a, [&](u64 x) { return residue(f, key, x); }); },
          nb::arg("key"), nb::arg("a"), "a random function of the residues, chosen by the key");
}

void bind_lattice(nb::module_ &m) {
  const auto join = [](Semilattice &s, const u64 *x, std::size_t n) {
    try {
      return s.join(x, n);
    } catch (const std::length_error &error) {
      raise(PyExc_MemoryError, error.what());
    }
  };
  nb::class_<Semilattice>(m, "Semilattice", "max or min as an associative, commutative, idempotent join.")
      .def(
          "__init__",
          [](Semilattice *self, u64 modulus, u64 key, u64 bottom, std::size_t limit, std::size_t work) {
            new (self) Semilattice(checked(modulus).value(), key, bottom, limit, work);
          },
          nb::arg("modulus"), nb::arg("key"), nb::arg("bottom"), nb::arg("limit"), nb::arg("work"))
      .def("join",
           [join](Semilattice &s, In a, In b) {
             if (shape_of(a) != shape_of(b))
               raise(PyExc_ValueError, "expected arrays of one shape");
             auto out = allocate(a.size());
             for (std::size_t i = 0; i < a.size(); ++i) {
               const u64 pair[2] = {a.data()[i], b.data()[i]};
               out[i] = join(s, pair, 2);
             }
             return wrap(std::move(out), shape_of(a));
           })
      .def(
          "reduce",
          [join](Semilattice &s, In a) {
            return rows(a, [&](const u64 *x, std::size_t n) { return join(s, x, n); });
          },
          "join over the last dimension")
      .def("__len__", &Semilattice::size);
}

using Flags = std::optional<nb::ndarray<const bool, nb::c_contig, nb::device::cpu>>;

const bool *flags(const Flags &linear, std::size_t n) {
  if (linear && linear->size() != n)
    raise(PyExc_ValueError, "expected a flag for each element");
  return linear ? linear->data() : nullptr;
}

void bind_vector_lattice(nb::module_ &m) {
  const auto kind = [](bool largest) { return largest ? Join::Max : Join::Min; };
  const auto join = [](VectorLattice &s, Join kind, const u64 *x, const bool *linear, std::size_t n) {
    try {
      return s.join(kind, x, linear, n);
    } catch (const std::length_error &error) {
      raise(PyExc_MemoryError, error.what());
    }
  };
  nb::class_<VectorLattice>(m, "VectorLattice", "max and min as the joins and meets of a vector lattice.")
      .def(
          "__init__",
          [](VectorLattice *self, u64 modulus, u64 key, u64 infinity, std::size_t limit,
             const std::vector<u64> &not_negative, const std::vector<u64> &scales) {
            new (self) VectorLattice(checked(modulus).value(), key, infinity, limit, not_negative, scales);
          },
          nb::arg("modulus"), nb::arg("key"), nb::arg("infinity"), nb::arg("limit"), nb::arg("not_negative"),
          nb::arg("scales"))
      .def(
          "join",
          [join, kind](VectorLattice &s, bool largest, In a, In b, const Flags &left, const Flags &right) {
            if (shape_of(a) != shape_of(b))
              raise(PyExc_ValueError, "expected arrays of one shape");
            const bool *const first = flags(left, a.size()), *const second = flags(right, a.size());
            auto out = allocate(a.size());
            for (std::size_t i = 0; i < a.size(); ++i) {
              const u64 pair[2] = {a.data()[i], b.data()[i]};
              const bool linear[2] = {!first || first[i], !second || second[i]};
              out[i] = join(s, kind(largest), pair, linear, 2);
            }
            return wrap(std::move(out), shape_of(a));
          },
          nb::arg("largest"), nb::arg("a"), nb::arg("b"), nb::arg("linear_a").none(),
          nb::arg("linear_b").none(), "maxima or minima; flags say which numbers may be shifted and scaled")
      .def(
          "reduce",
          [join, kind](VectorLattice &s, bool largest, In a, const Flags &linear) {
            const bool *const all = flags(linear, a.size());
            return rows(a, [&](const u64 *x, std::size_t n) {
              return join(s, kind(largest), x, all ? all + (x - a.data()) : nullptr, n);
            });
          },
          nb::arg("largest"), nb::arg("a"), nb::arg("linear").none(), "join over the last dimension")
      .def(
          "products",
          [](const VectorLattice &s, In a, In b) {
            if (shape_of(a) != shape_of(b))
              raise(PyExc_ValueError, "expected arrays of one shape");
            auto found = allocate(a.size());
            auto known = std::make_unique_for_overwrite<bool[]>(a.size());
            for (std::size_t i = 0; i < a.size(); ++i) {
              const std::optional<u64> product = s.product(a.data()[i], b.data()[i]);
              known[i] = product.has_value();
              found[i] = product.value_or(0);
            }
            return std::make_pair(wrap(std::move(known), shape_of(a)), wrap(std::move(found), shape_of(a)));
          },
          nb::arg("a"), nb::arg("b"),
          "where a and b are the maximum and the minimum of two numbers, and there the product of these")
      .def_prop_ro("most", &VectorLattice::most, "the most leaves of any join so far")
      .def_prop_ro("compared", &VectorLattice::compared, "look-ups so far: each could hit by chance")
      .def("__len__", &VectorLattice::size);
}

void bind_formal(nb::module_ &m) {
  using Pool = FormalPool;
  const auto binary = [](u64 (Pool::*op)(u64, u64)) {
    return [op](Pool &pool, In a, In b) {
      return guarded([&] {
        if (shape_of(a) != shape_of(b))
          raise(PyExc_ValueError, "expected arrays of one shape");
        auto out = allocate(a.size());
        for (std::size_t i = 0; i < a.size(); ++i)
          out[i] = (pool.*op)(a.data()[i], b.data()[i]);
        return wrap(std::move(out), shape_of(a));
      });
    };
  };
  const auto unary = [](u64 (Pool::*op)(u64)) {
    return [op](Pool &pool, In a) {
      return guarded([&] {
        auto out = allocate(a.size());
        for (std::size_t i = 0; i < a.size(); ++i)
          out[i] = (pool.*op)(a.data()[i]);
        return wrap(std::move(out), shape_of(a));
      });
    };
  };
  nb::class_<Pool>(m, "FormalPool", "Quotients of sums f [h]; arrays hold the numbers of its elements.")
      .def(
          "__init__",
          [](Pool *self, u64 p, u64 q, u64 root, std::size_t cap, std::size_t work) {
            new (self) Pool(checked(p).value(), checked(q).value(), root, cap, work);
          },
          nb::arg("p"), nb::arg("q"), nb::arg("root"), nb::arg("cap"), nb::arg("work"))
      .def("constants", unary(&Pool::constant), "elements f [0]")
      .def("exponentials", unary(&Pool::exponential), "elements 1 [h]")
      .def("add", binary(&Pool::add))
      .def("sub", binary(&Pool::sub))
      .def("mul", binary(&Pool::mul))
      .def("div", binary(&Pool::div))
      .def(
          "sum",
          [](Pool &pool, In a) {
            return guarded(
                [&] { return rows(a, [&](const u64 *x, std::size_t n) { return pool.sum(x, n); }); });
          },
          "sum over the last dimension")
      .def(
          "matmul",
          [](Pool &pool, In3 a, In3 b) {
            return guarded([&] {
              const Extents e = extents(a, b);
              auto out = allocate(static_cast<std::size_t>(e.batch * e.m * e.n));
              u64 *next = out.get();
              for (std::ptrdiff_t s = 0; s < e.batch; ++s)
                for (std::ptrdiff_t i = 0; i < e.m; ++i)
                  for (std::ptrdiff_t j = 0; j < e.n; ++j)
                    *next++ = pool.dot(a.data() + s * a.stride(0) + i * a.stride(1), a.stride(2),
                                       b.data() + s * b.stride(0) + j * b.stride(2), b.stride(1), e.k);
              return wrap(std::move(out), product_shape(a, b));
            });
          },
          "(batch, m, k) x (batch, k, n), any strides")
      .def("images", unary(&Pool::image), "residues with [h] = root^h")
      .def(
          "plain",
          [](const Pool &pool, In a) {
            auto out = std::make_unique_for_overwrite<bool[]>(a.size());
            for (std::size_t i = 0; i < a.size(); ++i)
              out[i] = pool.plain(a.data()[i]);
            return wrap(std::move(out), shape_of(a));
          },
          "which elements are numbers without exponentials")
      .def("labels", unary(&Pool::label), "a residue for each class of equal elements")
      .def("labelled", unary(&Pool::labelled), "elements with these labels, or constants")
      .def(
          "equal",
          [](Pool &pool, In a, In b) {
            if (shape_of(a) != shape_of(b))
              raise(PyExc_ValueError, "expected arrays of one shape");
            auto out = std::make_unique_for_overwrite<bool[]>(a.size());
            guarded([&] {
              for (std::size_t i = 0; i < a.size(); ++i)
                out[i] = pool.equal(a.data()[i], b.data()[i]);
            });
            return wrap(std::move(out), shape_of(a));
          },
          "by cross multiplication")
      .def("__len__", &Pool::size)
      .def_prop_ro("widest", &Pool::widest, "most terms of any sum so far")
      .def_prop_ro("work", &Pool::work, "terms that may still be written; then OverflowError")
      .def_prop_ro("fallbacks", &Pool::fallbacks, "elements replaced by their image for want of terms");
}

} // namespace
} // namespace superopt::field

NB_MODULE(_field, module) {
  nb::set_leak_warnings(false); // objects alive at interpreter exit are not leaks
  module.attr("__doc__") = "superopt field core: what certificates rest on";
  module.attr("DEPTH") = superopt::field::kDepth;
  superopt::field::bind_field(module);
  superopt::field::bind_lattice(module);
  superopt::field::bind_vector_lattice(module);
  superopt::field::bind_formal(module);
}
