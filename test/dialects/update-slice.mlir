// A cache with new rows in place of old ones, as a value: the operand is not changed.
// RUN: superopt-opt %s | filecheck %s
// RUN: superopt-opt %s --kernel-to-tile --verify-each-equivalence | filecheck %s --check-prefix=TILE
// RUN: superopt-opt %s --kernel-to-tile-loops="print-loops=true" --verify-each-equivalence 2>&1 | filecheck %s --check-prefix=LOOPS

// CHECK: "kernel.update_slice"(%arg0, %arg1) {dim = 1 : i64, offset = 3 : i64}
// TILE-COUNT-3: "tile.store"
// TILE-NOT: "tile.store"
// LOOPS: [elem n, 0:3, :] = {{.*}}[elem n, 0:3, :]
// LOOPS: [elem n, 3:4, :] = {{.*}}[elem n, :, :]
// LOOPS: [elem n, 4:8, :] = {{.*}}[elem n, 4:8, :]
func.func @f(%cache: tensor<2x8x4xf32>, %new: tensor<2x1x4xf32>) -> tensor<2x8x4xf32> {
  %0 = "kernel.update_slice"(%cache, %new) {dim = 1, offset = 3} : (tensor<2x8x4xf32>, tensor<2x1x4xf32>) -> tensor<2x8x4xf32>
  return %0 : tensor<2x8x4xf32>
}
