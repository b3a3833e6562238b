// Passes on functions print these; a flag prints the module, another one writes files in folders by nesting.
// RUN: superopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-all -o /dev/null 2>&1 | filecheck %s
// RUN: superopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-print-ir-after-all --mlir-print-ir-module-scope --mlir-disable-threading -o /dev/null 2>&1 | filecheck %s --check-prefix=MODULE
// RUN: rm -rf %t && superopt-opt %s --pass-pipeline='builtin.module(func.func(cse),canonicalize)' --mlir-print-ir-after-all --mlir-print-ir-tree-dir=%t -o /dev/null > %t.err 2>&1 && test ! -s %t.err
// RUN: filecheck %s --check-prefix=FILE --input-file=%t/builtin_module_no-symbol-name/func_func_g/0_0_cse.mlir
// RUN: filecheck %s --check-prefix=WHOLE --input-file=%t/builtin_module_no-symbol-name/1_canonicalize.mlir
// RUN: not superopt-opt %s --cse --mlir-print-ir-tree-dir=%t 2>&1 | filecheck %s --check-prefix=ALONE
// RUN: rm -rf %t.no && touch %t.no && not superopt-opt %s --cse --mlir-print-ir-after-all --mlir-print-ir-tree-dir=%t.no 2>&1 | filecheck %s --check-prefix=TAKEN
// RUN: rm -rf %t.in && mkdir %t.in && touch %t.in/builtin_module_no-symbol-name && not superopt-opt %s --cse --mlir-print-ir-after-all --mlir-print-ir-tree-dir=%t.in 2>&1 | filecheck %s --check-prefix=INNER
// RUN: not superopt-opt %s --cse --mlir-print-ir-after-all --mlir-print-ir-tree-dir= 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not superopt-opt %s --cse --mlir-print-ir-modul-scope 2>&1 | filecheck %s --check-prefix=MEANT

// CHECK: // -----// IR Dump After Cse (cse) //----- //
// CHECK-NEXT: func.func @f
// CHECK: // -----// IR Dump After Cse (cse) //----- //
// CHECK-NEXT: func.func @g

// MODULE: // -----// IR Dump After Cse (cse) ('func.func' operation: @f) //----- //
// MODULE-NEXT: module {
// MODULE: func.func @f
// MODULE: func.func @g
// MODULE: // -----// IR Dump After Cse (cse) ('func.func' operation: @g) //----- //
// MODULE-NEXT: module {
// MODULE-NOT: IR Dump

// FILE: IR Dump After Cse (cse) //
// FILE-NEXT: func.func @g
// FILE-NOT: @f
// WHOLE: IR Dump After Canonicalize (canonicalize) //
// WHOLE: @f

// ALONE: error: --mlir-print-ir-tree-dir takes what --mlir-print-ir-before/-after print: name one of these
// TAKEN: error: cannot write: expected a folder, got a file
// INNER: builtin_module_no-symbol-name: error: cannot make a folder: File exists
// EMPTY: error: argument --mlir-print-ir-tree-dir: expected a folder, got ''
// MEANT: error: unknown pass or option '--mlir-print-ir-modul-scope' (did you mean 'mlir-print-ir-module-scope'?)
func.func @f(%a: i32) -> i32 {
  return %a : i32
}
func.func @g(%a: i32) -> i32 {
  return %a : i32
}
