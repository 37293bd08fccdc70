"""Tile sizes of the kernels: a table by GPU, measured on one, stored for the next process."""
