"""A wrong call of ``scaled_dot_product_attention`` is refused in one line with the numbers."""

import math

import pytest
import torch

from flashpoint import InputError, UnsupportedError, attention, scaled_dot_product_attention

INF, NAN = math.inf, math.nan
q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).double()
ones = torch.ones(6, 6)
half = torch.zeros(2, 2, 6, 8).double()
REFUSED = {
    "both masks": ({"attn_mask": ones > 0, "is_causal": True}, "both given", ".tril()"),
    "causal is a number": ({"is_causal": 1}, "is_causal must be True or False", "1"),
    "gqa is a number": ({"enable_gqa": 1}, "enable_gqa must be True or False", "1"),
    "causal in a window": (
        {"query": q[:, :, :4], "is_causal": True, "window": (2, 0)},
        "L=4 queries and S=6 keys",
        "bool attn_mask",
    ),
    "mask of integers": ({"attn_mask": ones.long()}, "attn_mask must be bool or fl", "int64"),
    "mask of bytes": ({"attn_mask": ones.byte()}, "attn_mask must be bool or floating", "uint8"),
    "mask is a list": ({"attn_mask": [1.0]}, "attn_mask must be a tensor", "[1.0]"),
    "mask too long": (
        {"attn_mask": torch.ones(6, 7)},
        "attn_mask has shape [6, 7]",
        "does not broadcast to [2, 4, L=6, S=6]",
    ),
    "mask widens": ({"attn_mask": torch.ones(3, 2, 4, 6, 6) > 0}, "[3, 2, 4, 6, 6]", "[2, 4,"),
    "mask elsewhere": ({"attn_mask": ones.to("meta")}, "attn_mask is on meta", "query on"),
    "mask of +inf": ({"attn_mask": ones * INF}, "attn_mask[0, 0] is inf", "-inf to hide"),
    "mask of nan": ({"attn_mask": torch.tensor([1.0, NAN, 1, 1, 1, 1])}, "attn_mask[1] is nan"),
    "bias widens": ({"bias": torch.ones(3, 1, 1, 1)}, "bias has shape [3, 1, 1, 1]", "[2, 4,"),
    "bias hides": ({"bias": -INF}, "bias must be finite", "mask"),
    "bias beside a mask hides": ({"bias": -INF, "attn_mask": ones}, "bias must be fin", "mask"),
    "bias is a word": ({"bias": "x", "attn_mask": ones}, "bias must be a number", "'x'"),
    "query is a list": ({"query": [1.0]}, "query must be a tensor", "[1.0]"),
    "key is a vector": ({"key": torch.ones(8)}, "key has 1 dimensions", "2 or more"),
    "two dims of gqa": ({"value": v[0, 0], "enable_gqa": True}, "value has 2 dim", "heads"),
    "heads": ({"key": half, "value": half}, "[2, 2, 6, 8]", "enable_gqa=True"),
    "batches": ({"key": k[[0, 1, 1]]}, "query [2, 4, 6, 8], key [3, 4, 6, 8]", "broadcast"),
    "heads of gqa": (
        {"query": q[:, :3], "key": half, "value": half, "enable_gqa": True},
        "3 heads",
        "2 heads",
    ),
    "batches of gqa": ({"key": k[[0, 1, 1]], "enable_gqa": True}, "key [3, 4, 6, 8]", "broadcast"),
    "values of gqa": ({"value": half, "enable_gqa": True}, "v has shape [2, 2, 6, 8]", "Hkv=4"),
    "widths": ({"key": k[..., :7]}, "k has shape [2, 4, 6, 7]", "D=8"),
    "negative dropout": ({"dropout_p": -0.5}, "dropout_p must lie between 0 and 1", "-0.5"),
    "dropout of words": ({"dropout_p": "no"}, "dropout_p must be a number", "'no'"),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_wrong_call_is_refused_with_the_numbers(row):
    changes, *pieces = row
    with pytest.raises(InputError) as caught:
        scaled_dot_product_attention(**{"query": q, "key": k, "value": v} | changes)
    message = str(caught.value)
    assert all(piece in message for piece in pieces), message
    assert "\n" not in message
    assert len(message) <= 250


def test_dropout_is_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match=r"dropout_p=0\.1 drops weights.* Pass 0, as mod"):
        scaled_dot_product_attention(q, k, v, None, 0.1)


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_attention_names_the_function_for_added_masks(name):
    with pytest.raises(InputError, match=r"flashpoint\.scaled_dot_product_attention"):
        attention(q, k, v, **{name: torch.full((6, 6), -INF)})
