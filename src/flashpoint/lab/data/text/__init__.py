"""Documents as batches: parallel text from any source, subword pieces, batches by tokens.

Batch number t is a pure function of (seed, t), as for images.
"""
