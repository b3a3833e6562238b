// Maps with quotients, remainders and sums: nests without a name, in one piece where products are summed.
// RUN: superopt-opt %s --ingest-linalg --split-input-file 2>&1 | filecheck %s

// CHECK-LABEL: func.func @upsampled
// CHECK: "superopt.nest"(%arg0) {extents = array<i64: 2, 3, 10, 14>, maps = "(d0, d1, ((d2) floordiv 2), ((d3) floordiv 2))", rank = 4 : i64}
// CHECK-NEXT: kernel.reshape
// CHECK-NEXT: kernel.add
// CHECK-NEXT: kernel.exp
func.func @upsampled(%x: tensor<2x3x5x7xf32>, %b: tensor<3xf32>) -> tensor<2x3x10x14xf32> {
  %e = tensor.empty() : tensor<2x3x10x14xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(n, c, h, w) -> (n, c, h floordiv 2, w floordiv 2)>,
      affine_map<(n, c, h, w) -> (c)>, affine_map<(n, c, h, w) -> (n, c, h, w)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x, %b : tensor<2x3x5x7xf32>, tensor<3xf32>) outs(%e : tensor<2x3x10x14xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.addf %p, %q : f32
    %s = math.exp %r : f32
    linalg.yield %s : f32
  } -> tensor<2x3x10x14xf32>
  return %y : tensor<2x3x10x14xf32>
}

// -----

// CHECK-LABEL: func.func @unfolded_product
// CHECK: "superopt.nest"(%arg0, %arg1)
// CHECK-SAME: extents = array<i64: 6, 8, 12>, maps = "(((d2) floordiv 3), d1 + d2 - 3 * ((d2) floordiv 3)); (d0, d2)", rank = 2
// CHECK-NEXT: return
func.func @unfolded_product(%x: tensor<4x10xf32>, %w: tensor<6x12xf32>) -> tensor<6x8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6x8xf32>
  %o = linalg.fill ins(%zero : f32) outs(%e : tensor<6x8xf32>) -> tensor<6x8xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(f, h, k) -> (k floordiv 3, h + k mod 3)>,
      affine_map<(f, h, k) -> (f, k)>, affine_map<(f, h, k) -> (f, h)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4x10xf32>, tensor<6x12xf32>) outs(%o : tensor<6x8xf32>) {
  ^bb0(%p: f32, %q: f32, %a: f32):
    %r = arith.mulf %p, %q : f32
    %s = arith.addf %a, %r : f32
    linalg.yield %s : f32
  } -> tensor<6x8xf32>
  return %y : tensor<6x8xf32>
}

// -----

// A window that starts at an offset, of which the largest is taken: spread first.
// CHECK-LABEL: func.func @largest
// CHECK: "superopt.nest"(%arg0) {extents = array<i64: 6, 3>, maps = "(d0 + d1 + 1)", rank = 2 : i64}
// CHECK-NEXT: kernel.reduce_max
func.func @largest(%x: tensor<9xf32>, %k: tensor<3xf32>) -> tensor<6xf32> {
  %least = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<6xf32>
  %o = linalg.fill ins(%least : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(h, k) -> (h + k + 1)>, affine_map<(h, k) -> (k)>,
      affine_map<(h, k) -> (h)>], iterator_types = ["parallel", "reduction"]}
      ins(%x, %k : tensor<9xf32>, tensor<3xf32>) outs(%o : tensor<6xf32>) {
  ^bb0(%p: f32, %q: f32, %a: f32):
    %s = arith.maximumf %a, %p : f32
    linalg.yield %s : f32
  } -> tensor<6xf32>
  return %y : tensor<6xf32>
}

// -----

// What is known is read when the program is.
// CHECK-LABEL: func.func @known
// CHECK-NOT: superopt.nest
// CHECK: kernel.constant
func.func @known(%x: tensor<6xf32>) -> tensor<6xf32> {
  %c = arith.constant dense<[1.0, 2.0, 4.0]> : tensor<3xf32>
  %e = tensor.empty() : tensor<6xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i mod 3)>,
      affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x, %c : tensor<6xf32>, tensor<3xf32>) outs(%e : tensor<6xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.mulf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<6xf32>
  return %y : tensor<6xf32>
}
