"""The operator on the CPU: exact, tiled over heads, queries and keys, in plain PyTorch.

No matrix of Lq x Lk weights exists at any time. Forward and backward keep two tiles of scores in
cache and hand their products to the BLAS that PyTorch ships; see ``docs/architecture.md``.
"""
