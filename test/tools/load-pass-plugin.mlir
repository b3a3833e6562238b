// A pass from a file of one's own has its flag, its options, its place in pipelines and in the help.
// RUN: superopt-opt %s --load-pass-plugin=%S/Inputs/plugin.py --double-to-sum --verify-each-equivalence | filecheck %s
// RUN: superopt-opt %s --load-pass-plugin %S/Inputs/plugin.py --pass-pipeline='builtin.module(double-to-sum{limit=0},cse)' | filecheck %s --check-prefix=NONE
// RUN: superopt-opt --load-pass-plugin=%S/Inputs/plugin.py --help | filecheck %s --check-prefix=HELP
// RUN: not superopt-opt %s --double-to-sum 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not superopt-opt %s --load-pass-plugin=%s 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not superopt-opt %s --load-pass-plugin=%S/../lit.cfg.py 2>&1 | filecheck %s --check-prefix=RAISED
// RUN: not superopt-opt %s --load-pass-plugin=none.py 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK: "kernel.add"(%arg0, %arg0)
// NONE: "kernel.mul"
// HELP: --load-pass-plugin FILE.py
// HELP: --double-to-sum Write the double of a value as a sum.
// HELP-NEXT: limit How many may be rewritten. (an integer; default: 1000)
// UNKNOWN: error: unknown pass or option '--double-to-sum'
// TEXT: load-pass-plugin.mlir:1:{{[0-9]+}}: error: expected Python, got a syntax error
// RAISED: lit.cfg.py:{{[0-9]+}}:1: error: the file raised KeyError
// MISSING: none.py: error: expected a Python file, got no such file
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "kernel.constant"() {value = 2.0 : f64} : () -> tensor<f32>
  %1 = "kernel.mul"(%x, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
