// Bytecode comes out and goes in again, by file and by standard input; a truncated file is an error.
// RUN: superopt-opt %s --ingest-linalg --emit-bytecode -o %t.mlirbc
// RUN: superopt-opt %t.mlirbc | filecheck %s
// RUN: superopt-opt - < %t.mlirbc | filecheck %s
// RUN: %python -c "import sys; d = open(sys.argv[1], 'rb').read(); open(sys.argv[2], 'wb').write(d[:len(d) // 2])" %t.mlirbc %t.half.mlirbc
// RUN: not superopt-opt %t.half.mlirbc 2>&1 | filecheck %s --check-prefix=HALF

// CHECK: func.func @f
// CHECK: "kernel.add"
// HALF: half.mlirbc: error:
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
