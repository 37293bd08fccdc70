"""Whole models, each readable top to bottom in one file, and their names."""
