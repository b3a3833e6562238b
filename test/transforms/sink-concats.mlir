// Elementwise operators that alone read a concatenation are applied to its parts.
// RUN: superopt-opt %s --sink-concats --verify-each-equivalence | filecheck %s

// Rotary embeddings: what is multiplied by the joined halves is cut where they meet, through the reshape, too.
// CHECK-LABEL: func.func @rotary(
// CHECK-NOT: superopt.concat
// CHECK-DAG: "kernel.slice"(%{{.*}}) {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 1, 4, 4>
// CHECK-DAG: "kernel.slice"(%{{.*}}) {offsets = array<i64: 0, 0, 4>, sizes = array<i64: 1, 4, 4>
// CHECK: %[[U:.*]] = "kernel.add"(%{{.*}}, %{{.*}}) : (tensor<2x4x4xf16>, tensor<2x4x4xf16>)
// CHECK: %[[V:.*]] = "kernel.add"(%{{.*}}, %{{.*}}) : (tensor<2x4x4xf16>, tensor<2x4x4xf16>)
// CHECK: %[[Z:.*]] = "superopt.concat"(%[[U]], %[[V]]) {dim = 2
// CHECK-NEXT: return %[[Z]]
func.func @rotary(%q: tensor<2x4x8xf16>, %cos: tensor<4x8xf16>, %sines: tensor<1x4x8xf16>) -> tensor<2x4x8xf16> {
  %a = "kernel.slice"(%q) {offsets = array<i64: 0, 0, 0>, sizes = array<i64: 2, 4, 4>, strides = array<i64: 1, 1, 1>} : (tensor<2x4x8xf16>) -> tensor<2x4x4xf16>
  %b = "kernel.slice"(%q) {offsets = array<i64: 0, 0, 4>, sizes = array<i64: 2, 4, 4>, strides = array<i64: 1, 1, 1>} : (tensor<2x4x8xf16>) -> tensor<2x4x4xf16>
  %n = "kernel.neg"(%b) : (tensor<2x4x4xf16>) -> tensor<2x4x4xf16>
  %r = "superopt.concat"(%n, %a) {dim = 2 : i64} : (tensor<2x4x4xf16>, tensor<2x4x4xf16>) -> tensor<2x4x8xf16>
  %sin = "kernel.reshape"(%sines) {shape = array<i64: 4, 8>} : (tensor<1x4x8xf16>) -> tensor<4x8xf16>
  %x = "kernel.mul"(%q, %cos) : (tensor<2x4x8xf16>, tensor<4x8xf16>) -> tensor<2x4x8xf16>
  %y = "kernel.mul"(%r, %sin) : (tensor<2x4x8xf16>, tensor<4x8xf16>) -> tensor<2x4x8xf16>
  %z = "kernel.add"(%x, %y) : (tensor<2x4x8xf16>, tensor<2x4x8xf16>) -> tensor<2x4x8xf16>
  return %z : tensor<2x4x8xf16>
}

// Another reader needs the joined value; so does the caller.
// CHECK-LABEL: func.func @summed(
// CHECK: %[[C:.*]] = "superopt.concat"(%arg0, %arg1)
// CHECK: "kernel.exp"(%[[C]])
func.func @summed(%x: tensor<4x3xf32>, %y: tensor<4x5xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %c = "superopt.concat"(%x, %y) {dim = 1 : i64} : (tensor<4x3xf32>, tensor<4x5xf32>) -> tensor<4x8xf32>
  %e = "kernel.exp"(%c) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = "kernel.reduce_sum"(%c) {dims = array<i64: 1>, keepdims = false} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %e, %s : tensor<4x8xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @returned(
// CHECK: %[[C:.*]] = "superopt.concat"(%arg0, %arg1)
// CHECK: "kernel.exp"(%[[C]])
func.func @returned(%x: tensor<4x3xf32>, %y: tensor<4x5xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %c = "superopt.concat"(%x, %y) {dim = 1 : i64} : (tensor<4x3xf32>, tensor<4x5xf32>) -> tensor<4x8xf32>
  %e = "kernel.exp"(%c) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %c, %e : tensor<4x8xf32>, tensor<4x8xf32>
}

// Five parts would write every operator five times.
// CHECK-LABEL: func.func @many(
// CHECK: %[[C:.*]] = "superopt.concat"
// CHECK: "kernel.exp"(%[[C]])
func.func @many(%x: tensor<4x1xf32>) -> tensor<4x5xf32> {
  %c = "superopt.concat"(%x, %x, %x, %x, %x) {dim = 1 : i64} : (tensor<4x1xf32>, tensor<4x1xf32>, tensor<4x1xf32>, tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x5xf32>
  %e = "kernel.exp"(%c) : (tensor<4x5xf32>) -> tensor<4x5xf32>
  return %e : tensor<4x5xf32>
}
