"""Gluon kernels for H100 and H200."""
