"""Kernels that make training images of decoded pixels on the GPU, bit for bit what Pillow makes.

Every kernel is launched without the fusion of products and sums, which would round otherwise.
"""
