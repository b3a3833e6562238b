// A cache that is returned in its own memory: only the new rows are stored.
// RUN: superopt-opt %s | filecheck %s
// RUN: superopt-opt %s --kernel-to-tile --verify-each-equivalence | filecheck %s --check-prefix=TILE
// RUN: superopt-opt %s --kernel-to-tile-loops="print-loops=true" --verify-each-equivalence 2>&1 | filecheck %s --check-prefix=LOOPS

// CHECK: tensor<2x8x4xf32> {superopt.aliasing_output = 0 : i64
// TILE-COUNT-1: "tile.store"
// TILE-NOT: "tile.store"
// TILE: aliases = array<i64: 0>
// LOOPS: [elem n, 3:4, :] = {{.*}}[elem n, :, :]
// LOOPS-NOT: [{{.*}}, 0:3, :]
func.func @f(%cache: tensor<2x8x4xf32> {superopt.aliasing_output = 0 : i64}, %new: tensor<2x1x4xf32>) -> tensor<2x8x4xf32> {
  %0 = "kernel.update_slice"(%cache, %new) {dim = 1, offset = 3} : (tensor<2x8x4xf32>, tensor<2x1x4xf32>) -> tensor<2x8x4xf32>
  return %0 : tensor<2x8x4xf32>
}
