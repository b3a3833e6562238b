"""Programs that are right in places only, and their correction (PET, OSDI 2021)."""
