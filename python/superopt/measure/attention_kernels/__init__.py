"""Hand-written Triton attention, to compare with: sources that are copied, their constants set, into a folder."""
