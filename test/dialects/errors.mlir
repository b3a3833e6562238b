// Every rule of a level is an error at the operation that breaks it.
// RUN: superopt-opt %s --split-input-file --verify-diagnostics

func.func @shapes(%x: tensor<4x8xf16>, %w: tensor<16x8xf16>) -> tensor<4x16xf16> {
  // expected-error@+1 {{expected equal contracted extents, got 8 and 16}}
  %0 = "kernel.matmul"(%x, %w) : (tensor<4x8xf16>, tensor<16x8xf16>) -> tensor<4x16xf16>
  return %0 : tensor<4x16xf16>
}

// -----

func.func @dtypes(%x: tensor<4xf16>, %y: tensor<4xf32>) -> tensor<4xf16> {
  // expected-error@+1 {{'add' expected operands of one dtype, got f16 and f32}}
  %0 = "kernel.add"(%x, %y) : (tensor<4xf16>, tensor<4xf32>) -> tensor<4xf16>
  return %0 : tensor<4xf16>
}

// -----

func.func @dynamic(%x: tensor<?xf16>) -> tensor<?xf16> {
  // expected-error@+1 {{expected static extents, got the dynamic shape tensor<?xf16>}}
  %0 = "kernel.exp"(%x) : (tensor<?xf16>) -> tensor<?xf16>
  return %0 : tensor<?xf16>
}

// -----

func.func @two_blocks_write(%x: tensor<8x8xf16>) -> tensor<8x8xf16> {
  %0 = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x8xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64>} : (tensor<8x8xf16>) -> tensor<8x8xf16>
    %e = "block.exp"(%t) : (tensor<8x8xf16>) -> tensor<8x8xf16>
    // expected-error@+1 {{or two blocks write one output, got -1}}
    "block.save"(%e) {omap = array<i64: -1>} : (tensor<8x8xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<8x8xf16>) -> tensor<8x8xf16>
  return %0 : tensor<8x8xf16>
}

// -----

func.func @tiles_do_not_cover(%x: tensor<8x9xf16>) -> tensor<8x9xf16> {
  %0 = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<8x9xf16>):
    // expected-error@+1 {{tiles along dimension 1 that cover its extent 9}}
    %t = "block.iterator"(%a) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<8x9xf16>) -> tensor<8x2xf16>
    "block.save"(%t) {omap = array<i64: 1>} : (tensor<8x2xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<8x9xf16>) -> tensor<8x9xf16>
  return %0 : tensor<8x9xf16>
}

// -----

func.func @too_much_shared_memory(%x: tensor<1024x512xf16>) -> tensor<1024x512xf16> {
  // expected-error@+1 {{expected at most 232448 bytes of shared memory, got}}
  %0 = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<1024x512xf16>):
    %t = "block.iterator"(%a) {imap = array<i64: 1>, fmap = array<i64>} : (tensor<1024x512xf16>) -> tensor<1024x128xf16>
    %e = "block.exp"(%t) : (tensor<1024x128xf16>) -> tensor<1024x128xf16>
    "block.save"(%e) {omap = array<i64: 1>} : (tensor<1024x128xf16>) -> ()
  }) {grid = array<i64: 4>, loops = array<i64>} : (tensor<1024x512xf16>) -> tensor<1024x512xf16>
  return %0 : tensor<1024x512xf16>
}
