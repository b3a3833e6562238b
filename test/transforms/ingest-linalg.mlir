// Named operations and generics become kernel operators.
// RUN: superopt-opt %s --ingest-linalg --split-input-file | filecheck %s

// A matrix product into zeros, a bias that broadcasts, a relu by comparison and selection.
// CHECK-LABEL: func.func @linear_relu
// CHECK: %[[P:.*]] = "kernel.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
// CHECK-NEXT: %[[S:.*]] = "kernel.add"(%[[P]], %arg2) : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
// CHECK-NEXT: %[[R:.*]] = "kernel.relu"(%[[S]])
// CHECK-NEXT: return %[[R]]
func.func @linear_relu(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %b: tensor<6xf32>) -> tensor<4x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %p = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%p, %b : tensor<4x6xf32>, tensor<6xf32>) outs(%e : tensor<4x6xf32>) {
  ^bb0(%in: f32, %bias: f32, %out: f32):
    %s = arith.addf %in, %bias : f32
    %c = arith.cmpf ugt, %s, %zero : f32
    %m = arith.select %c, %s, %zero : f32
    linalg.yield %m : f32
  } -> tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}

// -----

// The initial value of a contraction is added where it is not zero.
// CHECK-LABEL: func.func @accumulates
// CHECK: %[[P:.*]] = "kernel.matmul"(%arg0, %arg1) {transpose_b = true}
// CHECK-NEXT: "kernel.add"(%[[P]], %arg2)
func.func @accumulates(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>, %init: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %p = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %w : tensor<4x8xf32>, tensor<6x8xf32>) outs(%init : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %p : tensor<4x6xf32>
}

// -----

// A contraction over a dimension in the middle, written as a generic with permuted operands.
// CHECK-LABEL: func.func @permuted
// CHECK: "kernel.matmul"({{.*}}) {transpose_a = true{{.*}}} : (tensor<3x8x4xf32>, tensor<3x8x5xf32>) -> tensor<3x4x5xf32>
func.func @permuted(%a: tensor<3x8x4xf32>, %b: tensor<3x8x5xf32>) -> tensor<3x4x5xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4x5xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x4x5xf32>) -> tensor<3x4x5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(b, m, n, k) -> (b, k, m)>, affine_map<(b, m, n, k) -> (b, k, n)>, affine_map<(b, m, n, k) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%a, %b : tensor<3x8x4xf32>, tensor<3x8x5xf32>) outs(%f : tensor<3x4x5xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<3x4x5xf32>
  return %r : tensor<3x4x5xf32>
}

// -----

// An argmax whose index nobody reads is a maximum, and one that keeps its dimension.
// CHECK-LABEL: func.func @argmax
// CHECK-NEXT: "kernel.reduce_max"(%arg0) {dims = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
// CHECK-NEXT: return
func.func @argmax(%x: tensor<4x8xf32>) -> tensor<4x1xf32> {
  %low = arith.constant 0xFF800000 : f32
  %none = arith.constant 0 : i64
  %e = tensor.empty() : tensor<4xf32>
  %ei = tensor.empty() : tensor<4xi64>
  %f = linalg.fill ins(%low : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %fi = linalg.fill ins(%none : i64) outs(%ei : tensor<4xi64>) -> tensor<4xi64>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x8xf32>) outs(%f, %fi : tensor<4xf32>, tensor<4xi64>) {
  ^bb0(%in: f32, %best: f32, %at: i64):
    %i = linalg.index 1 : index
    %j = arith.index_cast %i : index to i64
    %m = arith.maximumf %in, %best : f32
    %c = arith.cmpf ogt, %in, %best : f32
    %k = arith.select %c, %j, %at : i64
    linalg.yield %m, %k : f32, i64
  } -> (tensor<4xf32>, tensor<4xi64>)
  %kept = tensor.expand_shape %r#0 [[0, 1]] output_shape [4, 1] : tensor<4xf32> into tensor<4x1xf32>
  return %kept : tensor<4x1xf32>
}

// -----

// A maximum that starts from a finite number keeps it.
// CHECK-LABEL: func.func @max_from_zero
// CHECK: %[[M:.*]] = "kernel.reduce_max"(%arg0)
// CHECK: "kernel.relu"(%[[M]])
func.func @max_from_zero(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.reduce { arith.maximumf } ins(%x : tensor<4x8xf32>) outs(%f : tensor<4xf32>) dimensions = [1]
  return %r : tensor<4xf32>
}

// -----

// silu and gelu are recognized in bodies; sums divided by their extent are means.
// CHECK-LABEL: func.func @recognized
// CHECK: "kernel.silu"(%arg0)
// CHECK: "kernel.gelu"
// CHECK: "kernel.reduce_mean"
// CHECK-NOT: "kernel.exp"
// CHECK-NOT: "kernel.erf"
// CHECK: return
func.func @recognized(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %one = arith.constant 1.0 : f32
  %half = arith.constant 5.0e-01 : f32
  %root = arith.constant 1.41421354 : f32
  %eight = arith.constant 8.0 : f32
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %n = arith.negf %in : f32
    %p = math.exp %n : f32
    %q = arith.addf %p, %one : f32
    %y = arith.divf %in, %q : f32
    %a = arith.divf %y, %root : f32
    %b = math.erf %a : f32
    %c = arith.addf %b, %one : f32
    %d = arith.mulf %c, %half : f32
    %g = arith.mulf %y, %d : f32
    linalg.yield %g : f32
  } -> tensor<4x8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%s : tensor<4x8xf32>) outs(%f : tensor<4xf32>) {
  ^bb0(%in: f32, %acc: f32):
    %t = arith.addf %in, %acc : f32
    linalg.yield %t : f32
  } -> tensor<4xf32>
  %m = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%r : tensor<4xf32>) outs(%e1 : tensor<4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %t = arith.divf %in, %eight : f32
    linalg.yield %t : f32
  } -> tensor<4xf32>
  return %m : tensor<4xf32>
}

// -----

// A mask that depends on indices only is folded, and read as the band that it is; x^2 by math.fpowi is a square; size-1 dimensions are held at 0.
// CHECK-LABEL: func.func @masked
// CHECK: %[[X:.*]] = "kernel.reshape"(%arg0) : (tensor<1x4xf32>) -> tensor<4xf32>
// CHECK: %[[S:.*]] = "kernel.square"(%[[X]])
// CHECK: "kernel.band"() {inside = 0.000000e+00 : f64, lower = -2147483647 : i64, outside = 0xFFF0000000000000 : f64, upper = 0 : i64} : () -> tensor<4x4xf32>
// CHECK: "kernel.add"(%[[S]], {{.*}} -> tensor<4x4xf32>
// CHECK-NOT: extern
// CHECK: return
func.func @masked(%x: tensor<1x4xf32>) -> tensor<4x4xf32> {
  %two = arith.constant 2 : i64
  %low = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<1x4xf32>) outs(%e : tensor<4x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %hidden = arith.cmpi ugt, %j, %i : index
    %s = math.fpowi %in, %two : f32, i64
    %m = arith.select %hidden, %low, %s : f32
    linalg.yield %m : f32
  } -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}

// -----

// insert_slice into memory that it fills is a concatenation; a pad is one with a constant.
// CHECK-LABEL: func.func @joined
// CHECK: %[[C:.*]] = "superopt.concat"(%arg0, %arg1) {dim = 1 : i64} : (tensor<2x3xf32>, tensor<2x5xf32>) -> tensor<2x8xf32>
// CHECK: "superopt.concat"(%{{.*}}, %[[C]]) {dim = 0 : i64}
func.func @joined(%x: tensor<2x3xf32>, %y: tensor<2x5xf32>) -> tensor<3x8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x8xf32>
  %0 = tensor.insert_slice %x into %e[0, 0] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<2x8xf32>
  %1 = tensor.insert_slice %y into %0[0, 3] [2, 5] [1, 1] : tensor<2x5xf32> into tensor<2x8xf32>
  %2 = tensor.pad %1 low[1, 0] high[0, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %zero : f32
  } : tensor<2x8xf32> to tensor<3x8xf32>
  return %2 : tensor<3x8xf32>
}

// -----

// f16 operands of an f32 product that is rounded back: the f16 product, which accumulates in f32.
// CHECK-LABEL: func.func @half
// CHECK-NEXT: "kernel.matmul"(%arg0, %arg1) : (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>
func.func @half(%x: tensor<4x8xf16>, %w: tensor<8x6xf16>) -> tensor<4x6xf16> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %p = linalg.matmul ins(%x, %w : tensor<4x8xf16>, tensor<8x6xf16>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
  %r = arith.truncf %p : tensor<4x6xf32> to tensor<4x6xf16>
  return %r : tensor<4x6xf16>
}

// -----

// What is in the kernel dialect already is left alone.
// CHECK-LABEL: func.func @already
// CHECK: "kernel.transpose"(%arg0)
// CHECK-NEXT: "kernel.transpose"
func.func @already(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "kernel.transpose"(%x) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %1 = "kernel.transpose"(%0) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
