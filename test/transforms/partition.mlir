// A slice with gaps cannot be told over named axes: it separates two segments. The program itself is not changed.
// RUN: superopt-opt %s --partition 2>&1 | filecheck %s
// RUN: superopt-opt %s --partition="max-values=1" 2>&1 | filecheck %s --check-prefix=SMALL

// CHECK-DAG: remark: segment 0: 1 exp, 1 neg; 1 inputs, 1 outputs
// CHECK-DAG: remark: segment 1: 1 relu, 1 square; 1 inputs, 1 outputs
// CHECK-DAG: remark: 'slice' is in no segment
// CHECK: func.func @f
// CHECK: "kernel.slice"
// SMALL: segment 3: 1 square

// Each value between groups is a decision that can be made otherwise.
// RUN: superopt-opt %s --partition --list-sites 2>&1 >/dev/null | filecheck %s --check-prefix=SITES
// SITES: partition.mlir:{{[0-9]+}}:8: remark: partition b30678addd9ed93d.0.stays: stays | crosses
// RUN: superopt-opt %s --partition='config={"partition": {"b30678addd9ed93d.0.stays": "crosses"}}' 2>&1 | filecheck %s --check-prefix=CUT
// CUT-DAG: remark: segment 0: 1 neg; 1 inputs, 1 outputs
// CUT-DAG: remark: segment 1: 1 exp; 1 inputs, 1 outputs
// CUT-DAG: remark: segment 2: 1 relu, 1 square; 1 inputs, 1 outputs
func.func @f(%x: tensor<8x16xf32>) -> tensor<4x16xf32> {
  %n = "kernel.neg"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %e = "kernel.exp"(%n) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %c = "kernel.slice"(%e) {offsets = array<i64: 0, 0>, sizes = array<i64: 4, 16>, strides = array<i64: 2, 1>} : (tensor<8x16xf32>) -> tensor<4x16xf32>
  %r = "kernel.relu"(%c) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %o = "kernel.square"(%r) : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %o : tensor<4x16xf32>
}
