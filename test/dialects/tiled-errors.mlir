// The launch of a tile program: its attributes have types, and values that a block can have.
// RUN: superopt-opt %s --split-input-file --verify-diagnostics

func.func @text_for_a_number(%x: tensor<16xf32>) -> tensor<16xf32> {
  // expected-error @+1 {{'tiled' expected attribute 'num_warps' (an integer), got four}}
  %0 = "superopt.tiled"(%x) ({
  ^bb0(%a: memref<16xf32>, %o: memref<16xf32>):
    %t = "tile.load"(%a) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (memref<16xf32>) -> tensor<16xf32>
    "tile.store"(%t, %o) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (tensor<16xf32>, memref<16xf32>) -> ()
  }) {num_warps = "four"} : (tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

func.func @no_power_of_two(%x: tensor<16xf32>) -> tensor<16xf32> {
  // expected-error @+1 {{expected num_warps of 1, 2, 4, 8, 16, 32, got 3}}
  %0 = "superopt.tiled"(%x) ({
  ^bb0(%a: memref<16xf32>, %o: memref<16xf32>):
    %t = "tile.load"(%a) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (memref<16xf32>) -> tensor<16xf32>
    "tile.store"(%t, %o) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (tensor<16xf32>, memref<16xf32>) -> ()
  }) {num_warps = 3 : i64} : (tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

func.func @no_stage(%x: tensor<16xf32>) -> tensor<16xf32> {
  // expected-error @+1 {{expected num_stages of at least 1, got 0}}
  %0 = "superopt.tiled"(%x) ({
  ^bb0(%a: memref<16xf32>, %o: memref<16xf32>):
    %t = "tile.load"(%a) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (memref<16xf32>) -> tensor<16xf32>
    "tile.store"(%t, %o) {base = array<i64: 0>, dims = array<i64>, scale = array<i64>, sizes = array<i64: 16>} : (tensor<16xf32>, memref<16xf32>) -> ()
  }) {num_stages = 0 : i64} : (tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
