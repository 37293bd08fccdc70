"""Images as batches: indexable sources, an order by seed, and augmentation.

Batch number t is a pure function of (seed, t): nothing has to be saved to resume in mid-epoch,
and any number of ranks and workers makes the same batches.
"""
