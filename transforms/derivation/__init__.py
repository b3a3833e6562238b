"""Derivation of other expressions for convolutions: `rules.py` rewrites, `optimizer.py` searches."""
