"""A stack of torch.nn's own layers with another attention inside: masks, weights and eval mode.

python examples/replace_torch_nn.py      a few seconds on a CPU
"""

import torch
from torch import nn

import flashpoint

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, num_layers=3).eval()
x = torch.randn(2, 12, 64)
padded = torch.arange(12) >= torch.tensor([[12], [9]])  # True: not a token; torch.nn's meaning

print(flashpoint.replace_attention(model, "relu"))
with torch.no_grad():  # where PyTorch's encoder would take its fused softmax path
    short = model(x[1:, :9])[0]
    whole = model(x, src_key_padding_mask=padded)[1, :9]
print(f"padding changes a sample by {(short - whole).abs().max():.1e}")

causal = nn.Transformer.generate_square_subsequent_mask(12)
later = x.clone()
later[:, 6:] += 1.0
with torch.no_grad():
    change = (model(x, mask=causal) - model(later, mask=causal)).abs().amax((0, 2))
print(
    f"causal: tokens before a change move by {change[:6].max():.1e}, after {change[6:].max():.1f}"
)

# Weights are what values are multiplied by. They are not probabilities: many are exactly zero.
_, weights = model.layers[0].self_attn(x, x, x, average_attn_weights=False)
zeros = (weights == 0).float().mean().item()
print(
    f"weights {list(weights.shape)}: {zeros:.0%} are 0, rows sum to {weights.sum(-1).mean():.2f}"
)

flashpoint.restore_attention(model)
exp = flashpoint.AttentionSpec(activation="exp", normalize="sum", floor=0.0)
own = model(x)
flashpoint.replace_attention(model, exp)
print(f"exp over its sum is softmax: difference {(model(x) - own).abs().max():.1e}")
