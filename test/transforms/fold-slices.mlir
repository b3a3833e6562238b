// Loads begin where the slice does; a slice that somebody else reads stays.
// RUN: superopt-opt %s --kernel-to-tile=keep-slices=true --fold-slices | filecheck %s

// CHECK-LABEL: func.func @half(
// CHECK-SAME: %[[X:.*]]: tensor<16x64xf16>
// CHECK-NOT: slice
// CHECK: "superopt.tiled"(%[[X]])
// CHECK: ^bb0(%[[P:.*]]: memref<16x64xf16>
// CHECK: "tile.load"(%[[P]]{{.*}}base = array<i64: 0, 32>
func.func @half(%x: tensor<16x64xf16>) -> tensor<16x32xf16> {
  %s = "kernel.slice"(%x) {offsets = array<i64: 0, 32>, sizes = array<i64: 16, 32>, strides = array<i64: 1, 1>} : (tensor<16x64xf16>) -> tensor<16x32xf16>
  %y = "kernel.exp"(%s) : (tensor<16x32xf16>) -> tensor<16x32xf16>
  return %y : tensor<16x32xf16>
}

// CHECK-LABEL: func.func @returned(
// CHECK: %[[S:.*]] = "superopt.tiled"(%{{.*}})
// CHECK: %[[Y:.*]] = "superopt.tiled"(%[[S]])
// CHECK: return %[[S]], %[[Y]]
func.func @returned(%x: tensor<16x64xf16>) -> (tensor<16x32xf16>, tensor<16x32xf16>) {
  %s = "kernel.slice"(%x) {offsets = array<i64: 0, 32>, sizes = array<i64: 16, 32>, strides = array<i64: 1, 1>} : (tensor<16x64xf16>) -> tensor<16x32xf16>
  %y = "kernel.exp"(%s) : (tensor<16x32xf16>) -> tensor<16x32xf16>
  return %s, %y : tensor<16x32xf16>, tensor<16x32xf16>
}
