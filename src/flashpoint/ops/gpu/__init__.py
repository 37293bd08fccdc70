"""The operator on the GPU, in Triton. Nothing outside this folder imports triton.

One program computes a tile of the result: ``forward`` and ``dq`` a block of queries over all their
keys, ``dkdv`` a block of keys over all their queries, ``scored`` a block of dbias or dmask over
all that broadcasts there. No two programs write to the same place, so that results never depend
on timing.
"""
