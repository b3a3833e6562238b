// Two programs are compared by position of inputs and outputs; the certificate replays by itself.
// RUN: superopt-verify %s %S/Inputs/silu-other.mlir --certificate %t.json | filecheck %s --check-prefix=EQUAL
// RUN: superopt-verify --replay %t.json | filecheck %s --check-prefix=HOLDS
// RUN: not superopt-verify %s %S/Inputs/silu-wrong.mlir --seed 5 | filecheck %s --check-prefix=WRONG
// RUN: not superopt-verify %s %t.none 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not superopt-verify --replay %s 2>&1 | filecheck %s --check-prefix=NO-CERTIFICATE
// RUN: not superopt-verify %s 2>&1 | filecheck %s --check-prefix=USAGE

// EQUAL: equivalent: bound, delta {{[0-9.]+e-1[0-9]}} at full extents (formal at full extents)
// HOLDS: .json: holds: bound
// WRONG: not equivalent: the programs differ: output 0 at [0, 0], seed 5/0/0, full extents
// MISSING: .none: error: no such file
// NO-CERTIFICATE: superopt-verify.mlir: error: expected a certificate, got
// USAGE: superopt-verify: error: expected two programs

func.func @silu(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "kernel.silu"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
