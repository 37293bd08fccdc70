"""What the penalty needs of queries and keys that no layer projected."""

import torch

from flashpoint.layers.visibility import Visibility
from flashpoint.models.penalty import MeasuredRows


def measure_rows(layer, q, k, *, causal=False, key_lengths=None):
    """As ``attend_and_measure`` does, from q and k, with values of zero."""
    visibility = Visibility.of(q, k, None, causal, key_lengths)
    x = q.new_zeros(q.shape[0], q.shape[2], layer.proj.in_features)
    _, raw, raw_log = layer.finish_with_sums(x, q, k, torch.zeros_like(k), visibility)
    return MeasuredRows(raw, raw_log, *layer.factor_terms(), visibility)
