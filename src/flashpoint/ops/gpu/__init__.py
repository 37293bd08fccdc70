"""The operator on the GPU, in Triton. Nothing outside this folder imports triton.

One program computes a tile of the result: in forward and for dq a block of queries over all their
keys, for dk and dv a block of keys over all their queries, for dbias and dmask a block over all
that broadcasts there. No two programs write to the same place, so that results never depend on
timing.
"""
