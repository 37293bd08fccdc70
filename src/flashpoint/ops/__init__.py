"""Tensors in, tensor out: the operator, its definition and its implementations."""
