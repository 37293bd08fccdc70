"""Triton kernels for any GPU and any option."""
