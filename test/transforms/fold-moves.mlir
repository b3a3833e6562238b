// Loads begin where the slice does; a slice that somebody else reads stays.
// RUN: superopt-opt %s --kernel-to-tile=keep-moves=true --fold-moves | filecheck %s

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

// A product turns what it loads.
// CHECK-LABEL: func.func @turned(
// CHECK-NOT: tile.parallel
// CHECK: "superopt.tiled"(%arg0, %arg1)
// CHECK: ^bb0(%{{.*}}, %[[P:.*]]: memref<16x8x64xf16>
// CHECK: %[[T:.*]] = "tile.load"(%[[P]]{{.*}}-> tensor<16x1x64xf16>
// CHECK-NEXT: "tile.transpose"(%[[T]]) {perm = array<i64: 1, 2, 0>} : (tensor<16x1x64xf16>) -> tensor<1x64x16xf16>
func.func @turned(%w: tensor<8x32x64xf16>, %x: tensor<16x8x64xf16>) -> tensor<8x32x16xf16> {
  %t = "kernel.transpose"(%x) {perm = array<i64: 1, 2, 0>} : (tensor<16x8x64xf16>) -> tensor<8x64x16xf16>
  %y = "kernel.matmul"(%w, %t) : (tensor<8x32x64xf16>, tensor<8x64x16xf16>) -> tensor<8x32x16xf16>
  return %y : tensor<8x32x16xf16>
}

// Rows that become the batch would be loaded an element at a time: they are moved once.
// CHECK-LABEL: func.func @batch(
// CHECK: %[[T:.*]] = "superopt.tiled"(%{{.*}})
// CHECK: "superopt.tiled"(%{{.*}}, %[[T]])
func.func @batch(%w: tensor<64x32x16xf16>, %x: tensor<16x8x64xf16>) -> tensor<64x32x8xf16> {
  %t = "kernel.transpose"(%x) {perm = array<i64: 2, 0, 1>} : (tensor<16x8x64xf16>) -> tensor<64x16x8xf16>
  %y = "kernel.matmul"(%w, %t) : (tensor<64x32x16xf16>, tensor<64x16x8xf16>) -> tensor<64x32x8xf16>
  return %y : tensor<64x32x8xf16>
}
