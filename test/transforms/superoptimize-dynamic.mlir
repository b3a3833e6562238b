// RUN: superopt-opt %s --superoptimize="dynamic=n=1..128 budget=2 store=none against=operators" --emit=triton | filecheck %s
// RUN: superopt-opt %s --superoptimize="dynamic=n=1..128 budget=2 store=none against=operators" --emit=bundle -o %t.bundle --quiet
// RUN: filecheck %s --input-file %t.bundle/launch.py --check-prefix=LAUNCH
// RUN: filecheck %s --input-file %t.bundle/range.json --check-prefix=RANGE
// The proof is of the program at one extent, resized to others: that is what remains unchecked.
// RUN: not superopt-verify %t.bundle/original.mlir %t.bundle 2>&1 | filecheck %s --check-prefix=VERIFY
// RUN: not superopt-opt %s --superoptimize="dynamic=1..128" 2>&1 | filecheck %s --check-prefix=BOUNDS
// RUN: not superopt-opt %s --superoptimize="dynamic=n=9..8" 2>&1 | filecheck %s --check-prefix=ORDER
// RUN: not superopt-opt %s --superoptimize 2>&1 | filecheck %s --check-prefix=STATIC

// CHECK: @triton.jit(do_not_specialize=["n"])
// CHECK: _ptr, n):
// CHECK: < n)
// LAUNCH: n = x.shape[0]
// LAUNCH: torch.empty((n, 32)
// RANGE: "low": 1
// RANGE: "examined": 128
// VERIFY: resized
// BOUNDS: expected bounds as in n=1..512, got '1..128'
// ORDER: expected 1 <= min < max for 'n', got 9 and 8
// STATIC: expected static extents
func.func @f(%x: tensor<?x64xf32>, %w: tensor<64x32xf32>) -> tensor<?x32xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x64xf32>
  %0 = tensor.empty(%n) : tensor<?x64xf32>
  %1 = linalg.exp ins(%x : tensor<?x64xf32>) outs(%0 : tensor<?x64xf32>) -> tensor<?x64xf32>
  %2 = tensor.empty(%n) : tensor<?x32xf32>
  %3 = linalg.fill ins(%zero : f32) outs(%2 : tensor<?x32xf32>) -> tensor<?x32xf32>
  %4 = linalg.matmul ins(%1, %w : tensor<?x64xf32>, tensor<64x32xf32>) outs(%3 : tensor<?x32xf32>) -> tensor<?x32xf32>
  return %4 : tensor<?x32xf32>
}
