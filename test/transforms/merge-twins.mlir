// RUN: superopt-opt %s --kernel-to-tile --merge-twins --split-input-file | filecheck %s

// Caches of keys and values of one shape are copied by one kernel.
// CHECK-LABEL: func.func @caches(
// CHECK: %[[T:.*]]:2 = "superopt.tiled"(%arg0, %arg1, %arg2, %arg3)
// CHECK-NOT: superopt.tiled
// CHECK: return %[[T]]#0, %[[T]]#1
func.func @caches(%a: tensor<48x64xf16>, %b: tensor<16x64xf16>, %c: tensor<48x64xf16>, %d: tensor<16x64xf16>) -> (tensor<64x64xf16>, tensor<64x64xf16>) {
  %k = "superopt.concat"(%a, %b) {dim = 0 : i64} : (tensor<48x64xf16>, tensor<16x64xf16>) -> tensor<64x64xf16>
  %v = "superopt.concat"(%c, %d) {dim = 0 : i64} : (tensor<48x64xf16>, tensor<16x64xf16>) -> tensor<64x64xf16>
  return %k, %v : tensor<64x64xf16>, tensor<64x64xf16>
}

// -----

// The second copy needs the first.
// CHECK-LABEL: func.func @one_after_the_other(
// CHECK-COUNT-3: superopt.tiled
func.func @one_after_the_other(%a: tensor<48x64xf16>, %b: tensor<16x64xf16>, %d: tensor<16x64xf16>) -> (tensor<64x64xf16>, tensor<64x64xf16>) {
  %k = "superopt.concat"(%a, %b) {dim = 0 : i64} : (tensor<48x64xf16>, tensor<16x64xf16>) -> tensor<64x64xf16>
  %s = "kernel.slice"(%k) {offsets = array<i64: 0, 0>, sizes = array<i64: 48, 64>, strides = array<i64: 1, 1>} : (tensor<64x64xf16>) -> tensor<48x64xf16>
  %v = "superopt.concat"(%s, %d) {dim = 0 : i64} : (tensor<48x64xf16>, tensor<16x64xf16>) -> tensor<64x64xf16>
  return %k, %v : tensor<64x64xf16>, tensor<64x64xf16>
}
