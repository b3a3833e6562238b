// Messages have to be announced, and announced messages have to come.
// RUN: superopt-opt %s --split-input-file --verify-diagnostics
// RUN: sed 's/undeclared SSA/no such/' %s > %t.wrong.mlir
// RUN: not superopt-opt %t.wrong.mlir --split-input-file --verify-diagnostics 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: grep -v 'expected-' %s > %t.bare.mlir
// RUN: not superopt-opt %t.bare.mlir --split-input-file --verify-diagnostics 2>&1 | filecheck %s --check-prefix=BARE

// WRONG: error: unexpected error: use of undeclared SSA value name
// WRONG: error: expected error "no such" was not produced
// BARE: error: unexpected error: use of undeclared SSA value name
// BARE: error: unexpected note: prior use here

func.func @f(%a: i32) -> i32 {
  // expected-error @+1 {{undeclared SSA}}
  return %x : i32
}

// -----

func.func @g(%a: i32) -> i32 {
  return %x : i32 // expected-error {{undeclared SSA}}
}

// -----

func.func @h(%a: i32) -> i32 {
  return %x : i32
  // expected-error-re @above {{use of {{[a-z]+ SSA}} value}}
}

// -----

// expected-note @below {{prior use here}}
func.func @k(%a: i32) -> i64 {
  // expected-error @unknown {{expects different type than prior uses}}
  return %a : i64
}
