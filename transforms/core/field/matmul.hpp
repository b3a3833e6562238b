// Batched matrix product over a prime field: 128-bit sums, reduced once every twelve products.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "field/modular.hpp"

namespace superopt::field {

// A batch of matrices with strides in elements (0 where a matrix is shared).
struct Matrices {
  const u64 *data;
  std::ptrdiff_t batch, row, column;
  const u64 *at(std::ptrdiff_t b) const { return data + b * batch; }
};

struct Extents {
  std::ptrdiff_t batch, m, n, k;
};

constexpr std::ptrdiff_t kPanel = 4;
// 12 products below 2^124 and the result of `fold` (below 2^126 + 2^64) add up to less than 2^128.
constexpr std::ptrdiff_t kFold = 12;

namespace detail {

// One row of A times a packed panel of four columns of B.
inline void row_times_panel(const Modulus &mod, const u64 *a, const u64 *panel, std::ptrdiff_t k, u64 *out) {
  u128 s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (std::ptrdiff_t begin = 0; begin < k; begin += kFold) {
    const std::ptrdiff_t end = std::min(k, begin + kFold);
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      const u64 *b = panel + i * kPanel;
      const u128 x = a[i];
      s0 += x * b[0];
      s1 += x * b[1];
      s2 += x * b[2];
      s3 += x * b[3];
    }
    s0 = mod.fold(s0);
    s1 = mod.fold(s1);
    s2 = mod.fold(s2);
    s3 = mod.fold(s3);
  }
  out[0] = mod.reduce_any(s0);
  out[1] = mod.reduce_any(s1);
  out[2] = mod.reduce_any(s2);
  out[3] = mod.reduce_any(s3);
}

} // namespace detail

// out[b] = a[b] * c[b], `out` dense; `threads` workers take panels of columns in turn.
inline void matmul(const Modulus &mod, const Matrices &a, const Matrices &b, const Extents &e, u64 *out,
                   unsigned threads) {
  const std::ptrdiff_t panels = (e.n + kPanel - 1) / kPanel;
  std::atomic<std::ptrdiff_t> next{0};
  const auto work = [&] {
    std::vector<u64> panel(static_cast<std::size_t>(e.k * kPanel));
    std::vector<u64> rows;
    std::ptrdiff_t packed = -1;
    for (std::ptrdiff_t task; (task = next.fetch_add(1)) < e.batch * panels;) {
      const std::ptrdiff_t batch = task / panels, column = task % panels * kPanel;
      const std::ptrdiff_t width = std::min(kPanel, e.n - column);
      const u64 *left = a.at(batch);
      std::ptrdiff_t stride = a.row;
      if (a.column != 1) { // rows must be contiguous
        if (packed != batch) {
          rows.resize(static_cast<std::size_t>(e.m * e.k));
          for (std::ptrdiff_t i = 0; i < e.m; ++i)
            for (std::ptrdiff_t j = 0; j < e.k; ++j)
              rows[static_cast<std::size_t>(i * e.k + j)] = left[i * a.row + j * a.column];
          packed = batch;
        }
        left = rows.data();
        stride = e.k;
      }
      const u64 *right = b.at(batch) + column * b.column;
      for (std::ptrdiff_t i = 0; i < e.k; ++i)
        for (std::ptrdiff_t j = 0; j < kPanel; ++j)
          panel[static_cast<std::size_t>(i * kPanel + j)] = j < width ? right[i * b.row + j * b.column] : 0;
      u64 *target = out + batch * e.m * e.n + column;
      for (std::ptrdiff_t i = 0; i < e.m; ++i) {
        u64 four[kPanel];
        detail::row_times_panel(mod, left + i * stride, panel.data(), e.k, four);
        std::copy_n(four, width, target + i * e.n);
      }
    }
  };
  if (threads <= 1 || e.batch * e.m * e.n * e.k < (1 << 18)) {
    work();
    return;
  }
  std::vector<std::jthread> pool;
  for (unsigned i = 1; i < threads; ++i)
    pool.emplace_back(work);
  work();
}

} // namespace superopt::field
