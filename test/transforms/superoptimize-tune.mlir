// Choices of all passes, searched from the result on; what is delivered passed every gate, and is replayed.
// RUN: superopt-opt %s --superoptimize="tune=24 budget=10 optimizers=saturation against=operators store=none" --report=%t.json --emit=bundle -o %t
// RUN: filecheck %s --input-file %t.json
// RUN: superopt-opt %s --schedule=%t/schedule.json --emit=text | filecheck %s --check-prefix=AGAIN

// CHECK: "tune": 24
// CHECK: "tuning": {
// CHECK-NEXT: "strategy": "evolution"
// CHECK-NEXT: "evaluations": {
// CHECK-NEXT: "tiles": {{[0-9]+}}
// AGAIN: f

// RUN: not superopt-opt %s --superoptimize=tune=-1 2>&1 | filecheck %s --check-prefix=NEGATIVE
// NEGATIVE: error: expected a number of programs to tune with, got -1
func.func @f(%x: tensor<64x128xf16>, %w: tensor<128x256xf16>) -> tensor<64x256xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<64x128xf16>, tensor<128x256xf16>) -> tensor<64x256xf16>
  %e = "kernel.exp"(%y) : (tensor<64x256xf16>) -> tensor<64x256xf16>
  return %e : tensor<64x256xf16>
}
