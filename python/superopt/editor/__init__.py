"""What an editor shows of MLIR in superopt's dialects: `superopt-lsp`."""
