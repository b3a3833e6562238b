// A normalized exponential gets its maximum; one that is also returned, or has one already, stays as it is.
// RUN: superopt-opt %s --stabilize-softmax | filecheck %s
// RUN: superopt-opt %s --stabilize-softmax 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK

// REMARK: :16:8: remark: its maximum over dims [1] is subtracted first
// REMARK-NOT: remark

// CHECK-LABEL: func.func @plain(
// CHECK-SAME: %[[X:.*]]: tensor<16x64xf16>
// CHECK: %[[M:.*]] = "kernel.reduce_max"(%[[X]]) {dims = array<i64: 1>, keepdims = true}
// CHECK: %[[D:.*]] = "kernel.sub"(%[[X]], %[[M]])
// CHECK: %[[E:.*]] = "kernel.exp"(%[[D]])
// CHECK: %[[S:.*]] = "kernel.reduce_sum"(%[[E]])
// CHECK: "kernel.div"(%[[E]], %[[S]])
func.func @plain(%x: tensor<16x64xf16>) -> tensor<16x64xf16> {
  %e = "kernel.exp"(%x) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  %s = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %p = "kernel.div"(%e, %s) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
  return %p : tensor<16x64xf16>
}

// CHECK-LABEL: func.func @returned(
// CHECK-NOT: reduce_max
// CHECK: return
func.func @returned(%x: tensor<16x64xf16>) -> (tensor<16x64xf16>, tensor<16x64xf16>) {
  %e = "kernel.exp"(%x) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  %s = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %p = "kernel.div"(%e, %s) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
  return %e, %p : tensor<16x64xf16>, tensor<16x64xf16>
}

// CHECK-LABEL: func.func @safe(
// CHECK-COUNT-1: reduce_max
// CHECK-NOT: reduce_max
// CHECK: return
func.func @safe(%x: tensor<16x64xf16>) -> tensor<16x64xf16> {
  %m = "kernel.reduce_max"(%x) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %d = "kernel.sub"(%x, %m) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
  %e = "kernel.exp"(%d) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  %s = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %p = "kernel.div"(%e, %s) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
  return %p : tensor<16x64xf16>
}
