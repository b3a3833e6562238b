// Boxes of blocks, and how integers change from one block to the next.
#pragma once

#include <array>
#include <utility>

#include "ptx/program.hpp"

namespace superopt::ptx {

// Coordinates of a block: the numbers that it has in the grid, or parts of them.
inline constexpr std::size_t kAxes = 6;
using Slope = std::array<i64, kAxes>; // by how much something changes along each axis
__extension__ using i128 = __int128;

// A box of blocks, ends included, and the block in it that runs.
struct Region {
  std::size_t axes = 0;
  std::array<i64, kAxes> low{}, high{}, at{};
  // How many coordinates each axis has, and which axis carries on from it (kAxes: none). Where one does, all
  // coordinates are in use.
  std::array<i64, kAxes> extent{};
  std::array<std::size_t, kAxes> next{};
  // Whether something with these slopes differs from block to block.
  bool live(const Slope &s) const;
  // The least and the most that it is away from what it is here.
  std::pair<i128, i128> range(const Slope &s) const;
  // Leaves only blocks where it is what it is here.
  void pin(const Slope &s);
  // Leaves only blocks where it is at least `least` (not above 0) away from what it is here.
  void require(const Slope &s, i128 least);

private:
  double blocks() const;
  void cut(const Slope &s, i128 least, bool largestSteps);
};

// Thrown where integers are affine once an axis is two: what is left over by an extent, and the quotient.
// With an extent of 0: once blocks between two coordinates along the axis, which share those of the axes that
// carry on from it, have axes of their own.
struct Split {
  std::size_t axis;
  i64 extent, first = 0, last = 0;
};

} // namespace superopt::ptx
