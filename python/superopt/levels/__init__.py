"""The rules of block graphs and tile programs, and what the checks of all levels share; see `superopt.spec`."""
