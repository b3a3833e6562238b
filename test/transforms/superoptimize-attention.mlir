// Softmax as a front end writes it, its maximum subtracted, becomes one kernel that runs over the keys once: the
// maximum so far is kept, and what was summed is rescaled when it grows.
// RUN: superopt-opt %s --superoptimize="target=sm_90 budget=20" --report=%t.json -o %t.mlir
// RUN: filecheck %s --input-file=%t.mlir
// RUN: filecheck %s --input-file=%t.json --check-prefix=REPORT
// RUN: superopt-opt %t.mlir --emit=triton | filecheck %s --check-prefix=TRITON
// RUN: superopt-opt %s --mugraph-search="rescale=false" 2>&1 | filecheck %s --check-prefix=TWICE

// CHECK-LABEL: func.func @attention
// CHECK-NEXT: superopt.custom
// CHECK: block.running_max
// CHECK: kind = "rescaled"
// CHECK: kind = "rescaled"
// CHECK-NOT: superopt.custom
// REPORT: "outcome": "chosen"
// TRITON: @triton.jit
// TRITON: tl.maximum(old_running_max
// TRITON-NOT: @triton.jit
// TWICE-NOT: running_max
func.func @attention(%q: tensor<64x64x64xf16>, %k: tensor<64x2048x64xf16>, %v: tensor<64x2048x64xf16>) -> tensor<64x64x64xf16> {
  %s = "kernel.matmul"(%q, %k) {transpose_b = true} : (tensor<64x64x64xf16>, tensor<64x2048x64xf16>) -> tensor<64x64x2048xf16>
  %m = "kernel.reduce_max"(%s) {dims = array<i64: 2>, keepdims = true} : (tensor<64x64x2048xf16>) -> tensor<64x64x1xf16>
  %c = "kernel.sub"(%s, %m) : (tensor<64x64x2048xf16>, tensor<64x64x1xf16>) -> tensor<64x64x2048xf16>
  %e = "kernel.exp"(%c) : (tensor<64x64x2048xf16>) -> tensor<64x64x2048xf16>
  %z = "kernel.reduce_sum"(%e) {dims = array<i64: 2>, keepdims = true} : (tensor<64x64x2048xf16>) -> tensor<64x64x1xf16>
  %p = "kernel.div"(%e, %z) : (tensor<64x64x2048xf16>, tensor<64x64x1xf16>) -> tensor<64x64x2048xf16>
  %o = "kernel.matmul"(%p, %v) : (tensor<64x64x2048xf16>, tensor<64x2048x64xf16>) -> tensor<64x64x64xf16>
  return %o : tensor<64x64x64xf16>
}
