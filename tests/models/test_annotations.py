"""The shapes written in signatures hold at run time, checked by beartype in a fresh process."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CALLS = """
from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook(["flashpoint.layers", "flashpoint.models"], "beartype.beartype"):
    from flashpoint.layers.attention import Attention
    from flashpoint.layers.spec import AttentionSpec
    from flashpoint.layers.cache import KeyValueCache
    from flashpoint.layers.memory import KeyValueMemory
    from flashpoint.layers.multihead import MultiheadAttention
    from flashpoint.models.generation import beam, greedy
    from flashpoint.models.registry import create_model
import torch

SIZES = {"width": 32, "depth": 2, "num_heads": 4, "image_size": 16, "patch_size": 4}
learned = {"alpha": "learned", "gain": "learned_per_head", "bias": "learned"}
images = torch.randn(2, 3, 16, 16)
for pool in ("gap", "token", "map"):
    for attention in ("relu", "softmax", "relu4/sum", learned):
        model = create_model("vit", **SIZES, pool=pool, attention=attention, layer_scale=0.1)
        model(images).sum().backward()
        model.with_image_size(24)
model = create_model("vit", **SIZES, pool="token", drop_path_rate=0.5)
model(images, attn_mask=torch.zeros(17, 17), is_causal=True).sum().backward()
model.forward_intermediates(images, 1, return_prefix_tokens=True)
model.reset_classifier(3, "")
model.forward_head(model.forward_features(images), pre_logits=True)
model(images)

x, context = torch.randn(2, 5, 32), torch.randn(2, 7, 16)
spec = AttentionSpec(activation="sigmoid", bias="-log_length")
layer = Attention(32, 4, spec, num_kv_heads=2, context_dim=16, qk_norm="rms", gate="silu",
                  output_norm="gated_rms")
options = {"causal": True, "key_lengths": torch.tensor([3, 7]), "mask": torch.ones(5, 7) > 0}
layer(x, context, **options)
layer.weights(*layer.project(x, context)[:2], slice(1, 3), **options)

memory = KeyValueMemory(32, 8, "softmax", output_norm=True)
memory.remove_slots(memory.add_slots(torch.randn(2, 32), torch.randn(2, 32), torch.randn(2)))
memory.used_slots(x)
memory(x)
with torch.no_grad():
    own, cache = Attention(32, 4), KeyValueCache(2)
    own(x, causal=True, key_lengths=torch.tensor([5, 2]), cache=cache)
    own(x[:, :1], cache=cache)
    own(x[:, :3], causal=True, key_lengths=torch.tensor([1, 3]), cache=cache)
    cache.select(torch.tensor([1, 1, 0]))

other = MultiheadAttention(32, 4, spec, batch_first=True)
hidden = torch.tensor([[False] * 5, [False] * 4 + [True]])
other(x, x, x, key_padding_mask=hidden, attn_mask=torch.zeros(5, 5))

source, target = torch.randint(9, (3, 6)), torch.randint(9, (3, 4))
lengths = torch.tensor([6, 2, 0])
for attention, cross in (("relu", None), ("softmax", "relu"), ("relu4/sum", "softmax")):
    changes = {"attention": attention, "cross_attention": cross}
    model = create_model("reluformer_tiny", vocabulary_size=9, **changes)
    options = {"source_lengths": lengths, "target_lengths": torch.tensor([4, 4, 2])}
    logits, penalty = model(source, target, **options, with_penalty=True)
    (logits.sum() + penalty).backward()
    greedy(model, source, lengths, bos=2, eos=3, max_length=5)
    beam(model, source, lengths, bos=2, eos=3, max_length=torch.tensor([5, 70, 3]), beam_size=3)
try:
    layer(x[0], context)
except TypeCheckError:
    pass
else:
    raise AssertionError("the hook checks nothing")
"""


def test_annotated_shapes_hold_at_run_time():
    # -B: the hook would leave bytecode without its checks for other modules' hooks to find
    subprocess.run([sys.executable, "-B", "-c", CALLS], check=True)
