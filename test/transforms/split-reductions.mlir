// Reductions of much to few numbers are two, one behind the other.
// RUN: superopt-opt %s --split-reductions --verify-each-equivalence | filecheck %s

// CHECK-LABEL: func.func @loss(
// CHECK: %[[R:.*]] = "kernel.reduce_mean"(%{{.*}}) {dims = array<i64: 1>, keepdims = true} : (tensor<1500x80xf32>) -> tensor<1500x1xf32>
// CHECK: %[[M:.*]] = "kernel.reduce_mean"(%[[R]]) {dims = array<i64: 0, 1>} : (tensor<1500x1xf32>) -> tensor<f32>
// CHECK-NEXT: return %[[M]]
func.func @loss(%x: tensor<1500x80xf32>) -> tensor<f32> {
  %m = "kernel.reduce_mean"(%x) {dims = array<i64: 0, 1>, keepdims = false} : (tensor<1500x80xf32>) -> tensor<f32>
  return %m : tensor<f32>
}

// As few of the first dimensions as make 64 blocks are left for the second.
// CHECK-LABEL: func.func @images(
// CHECK: "kernel.reduce_max"(%{{.*}}) {dims = array<i64: 3>, keepdims = true} : (tensor<8x4x64x64xf16>) -> tensor<8x4x64x1xf16>
// CHECK: "kernel.reduce_max"(%{{.*}}) {dims = array<i64: 0, 2, 3>, keepdims = true} : (tensor<8x4x64x1xf16>) -> tensor<1x4x1x1xf16>
func.func @images(%x: tensor<8x4x64x64xf16>) -> tensor<1x4x1x1xf16> {
  %m = "kernel.reduce_max"(%x) {dims = array<i64: 0, 2, 3>, keepdims = true} : (tensor<8x4x64x64xf16>) -> tensor<1x4x1x1xf16>
  return %m : tensor<1x4x1x1xf16>
}

// One dimension, little to read, or results enough for as many blocks: as it is.
// CHECK-LABEL: func.func @kept(
// CHECK-COUNT-3: "kernel.reduce_sum"
// CHECK-NOT: "kernel.reduce_sum"
func.func @kept(%x: tensor<1x65536xf32>, %y: tensor<200x200xf32>, %z: tensor<64x32x64xf32>) -> (tensor<f32>, tensor<f32>, tensor<64xf32>) {
  %a = "kernel.reduce_sum"(%x) {dims = array<i64: 0, 1>, keepdims = false} : (tensor<1x65536xf32>) -> tensor<f32>
  %b = "kernel.reduce_sum"(%y) {dims = array<i64: 0, 1>, keepdims = false} : (tensor<200x200xf32>) -> tensor<f32>
  %c = "kernel.reduce_sum"(%z) {dims = array<i64: 1, 2>, keepdims = false} : (tensor<64x32x64xf32>) -> tensor<64xf32>
  return %a, %b, %c : tensor<f32>, tensor<f32>, tensor<64xf32>
}
