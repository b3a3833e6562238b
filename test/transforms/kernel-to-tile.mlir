// Library operators become tile programs by their loop nests; remainders of sums are written out, views stay.
// RUN: superopt-opt %s --kernel-to-tile --split-input-file | filecheck %s

// A chain of elementwise operators is one kernel; the splat constant is inside it.
// CHECK-LABEL: func.func @chain
// CHECK: "superopt.tiled"(%arg0)
// CHECK: "tile.constant"() {value = 2.000000e+00 : f64}
// CHECK: "tile.mul"
// CHECK: "tile.silu"
// CHECK-NOT: superopt.tiled
// CHECK: return
func.func @chain(%x: tensor<7x13xf32>) -> tensor<7x13xf32> {
  %c = "kernel.constant"() {value = 2.0 : f64} : () -> tensor<f32>
  %a = "kernel.mul"(%x, %c) : (tensor<7x13xf32>, tensor<f32>) -> tensor<7x13xf32>
  %y = "kernel.silu"(%a) : (tensor<7x13xf32>) -> tensor<7x13xf32>
  return %y : tensor<7x13xf32>
}

// -----

// 300 is two trips of 128, and a rest of 44.
// CHECK-LABEL: func.func @product
// CHECK: "tile.for"
// CHECK: sizes = array<i64: 5, 128>
// CHECK: sizes = array<i64: 128, 9>
// CHECK: {start = 0 : i64, step = 128 : i64, stop = 256 : i64}
// CHECK: base = array<i64: 0, 256>, {{.*}}sizes = array<i64: 5, 44>
// CHECK: base = array<i64: 256, 0>, {{.*}}sizes = array<i64: 44, 9>
func.func @product(%x: tensor<5x300xf16>, %w: tensor<300x9xf16>) -> tensor<5x9xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<5x300xf16>, tensor<300x9xf16>) -> tensor<5x9xf16>
  return %y : tensor<5x9xf16>
}

// -----

// A slice is a load with a stride; a reshape moves nothing.
// CHECK-LABEL: func.func @views
// CHECK: "tile.load"{{.*}}base = array<i64: 1, 0>, {{.*}}sizes = array<i64: 2, 6>, stride = array<i64: 2, 1>
// CHECK: "kernel.reshape"
func.func @views(%x: tensor<4x6xf32>) -> tensor<12xf32> {
  %s = "kernel.slice"(%x) {offsets = array<i64: 1, 0>, sizes = array<i64: 2, 6>, strides = array<i64: 2, 1>} : (tensor<4x6xf32>) -> tensor<2x6xf32>
  %y = "kernel.reshape"(%s) {shape = array<i64: 12>} : (tensor<2x6xf32>) -> tensor<12xf32>
  return %y : tensor<12xf32>
}

// -----

// What is opaque stays.
// CHECK-LABEL: func.func @opaque
// CHECK: "superopt.extern"
// CHECK: "superopt.tiled"
func.func @opaque(%x: tensor<8xf32>) -> tensor<8xf32> {
  %e = "superopt.extern"(%x) {target = "aten.cumsum.default", reason = "a scan"} : (tensor<8xf32>) -> tensor<8xf32>
  %y = "kernel.exp"(%e) : (tensor<8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}
