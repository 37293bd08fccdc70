"""The vision transformer: shapes, start, gradients, and PyTorch's machinery around it."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from flashpoint.errors import InputError
from flashpoint.layers.positions import resize_positions, sine2d
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

SMALL = {"image_size": 16, "patch_size": 4, "num_classes": 5}
SMALL |= {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48}
SOFTMAX = AttentionSpec(activation="softmax")
LEARNED = AttentionSpec(alpha="learned", gain="learned_per_head", bias="learned", bias_start=0.1)
VARIANTS = {
    "plain": {},
    "no norms": {"qk_norm": "none", "qkv_bias": False},
    "rms, gate": {"qk_norm": "rms", "gate": "silu"},
    "scaled": {"layer_scale": 0.1, "pre_logits": True, "gelu": "tanh"},
    "learned": {"attention": LEARNED},
    "softmax": {"attention": SOFTMAX},
}


def make(seed=0, **fields):
    torch.manual_seed(seed)
    return ViT(ViTConfig(**SMALL | fields))


def make_seeing(**fields):
    """A model whose head is not zero, so that logits depend on everything."""
    model = make(**fields)
    nn.init.normal_(model.head.weight)
    return model


def make_images(count=3, channels=3, size=16):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("positions", ["learned", "sine2d"])
@pytest.mark.parametrize("pool", ["gap", "token", "map"])
@pytest.mark.pairwise
def test_shapes_and_a_gradient_for_every_parameter(pool, positions, variant):
    model = make_seeing(pool=pool, positions=positions, **variant)
    logits = model(make_images())
    assert logits.shape == (3, 5)
    assert model.features(make_images()).shape == (3, 32)
    assert model.embed(make_images()).shape == (3, 17 if pool == "token" else 16, 32)
    logits.square().sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


@pytest.mark.parametrize(
    ("channels", "size", "patch"), [(1, 8, 2), (3, 32, 32), (4, 24, 8)], ids=str
)
def test_other_images(channels, size, patch):
    model = make(channels=channels, image_size=size, patch_size=patch)
    assert model(make_images(2, channels, size)).shape == (2, 5)


@pytest.mark.parametrize("patch", [1, 4, 8])
def test_patches_are_embedded_as_by_a_convolution(patch):
    embed = make(patch_size=patch).double().patch_embed
    images = make_images(3, 3, 16).double().requires_grad_()
    tokens = embed(images)
    expected = embed.proj(images).flatten(2).transpose(1, 2)
    upstream = torch.randn_like(tokens)
    inputs = (images, embed.proj.weight, embed.proj.bias)
    torch.testing.assert_close(tokens, expected)
    for ours, theirs in zip(
        torch.autograd.grad(tokens, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_tokens_lie_one_after_another_in_every_block():
    model, strided = make(), []

    def look(block, inputs, output):
        strided.extend(x for x in (*inputs, output) if not x.is_contiguous())

    for block in model.blocks:
        block.register_forward_hook(look)
    model(make_images())
    assert not strided


def test_without_classes_the_model_returns_its_features():
    model = make(num_classes=0)
    assert torch.equal(model(make_images()), model.features(make_images()))


@pytest.mark.parametrize("pool", ["gap", "token", "map"])
def test_twins_have_the_same_parameters(pool):
    shapes = [
        {name: tuple(p.shape) for name, p in make(pool=pool, attention=spec).named_parameters()}
        for spec in (AttentionSpec(), SOFTMAX)
    ]
    assert shapes[0] == shapes[1]


def test_same_seed_gives_the_same_weights_for_twins():
    relu, softmax = (make(attention=spec).state_dict() for spec in (AttentionSpec(), SOFTMAX))
    assert all(torch.equal(relu[name], softmax[name]) for name in relu)


def test_names_are_timms():
    model = make(pool="token", qk_norm="none", layer_scale=1.0)
    block = ("norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight")
    block += ("attn.proj.bias", "ls1.gamma", "norm2.weight", "norm2.bias", "mlp.fc1.weight")
    block += ("mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias", "ls2.gamma")
    names = {f"blocks.{i}.{name}" for i, name in itertools.product(range(2), block)}
    names |= {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    names |= {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert set(model.state_dict()) == names


WIDE = {"width": 256, "mlp_dim": 512, "num_heads": 4, "depth": 1, "image_size": 64}


def test_weights_start_as_bigvisions():
    model = make(**WIDE, pool="token", pre_logits=True, head_bias=-6.9, layer_scale=1e-4)
    block = model.blocks[0]
    deviations = {
        model.pos_embed: 256**-0.5,
        model.patch_embed.proj.weight: (3 * 4 * 4) ** -0.5,
        model.pre_logits.weight: 256**-0.5,
        block.mlp.fc1.weight: math.sqrt(2 / (256 + 512)),
        block.mlp.fc2.weight: math.sqrt(2 / (256 + 512)),
        block.mlp.fc1.bias: 1e-6,
        block.attn.proj.weight: math.sqrt(2 / 512),
    }
    deviations |= {part: math.sqrt(2 / 512) for part in block.attn.qkv.weight.chunk(3)}
    for weight, deviation in deviations.items():
        assert weight.std().item() == pytest.approx(deviation, rel=0.05)
    zeros = (model.cls_token, model.head.weight, model.patch_embed.proj.bias)
    for zero in (*zeros, model.pre_logits.bias, block.attn.qkv.bias, block.attn.proj.bias):
        assert not zero.any()
    assert (block.ls1.gamma == 1e-4).all()
    assert (model(make_images(size=64)) == -6.9).all()


def test_probe_starts_xavier():
    pool = make(**WIDE, pool="map").attn_pool
    assert pool.latent.abs().max().item() <= math.sqrt(6 / 257)
    assert pool.latent.std().item() == pytest.approx(math.sqrt(2 / 257), rel=0.1)
    for kernel in (pool.q.weight, *pool.kv.weight.chunk(2), pool.proj.weight):
        assert kernel.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.05)


def test_gap_averages_normed_tokens_and_fc_norm_turns_the_order():
    images = make_images()
    for fc_norm in (False, True):
        model = make(fc_norm=fc_norm)
        x = model.embed(images)
        for block in model.blocks:
            x = block(x)
        norm = model.fc_norm if fc_norm else model.norm
        expected = norm(x.mean(1)) if fc_norm else norm(x).mean(1)
        torch.testing.assert_close(model.features(images), expected)


def test_probe_is_torchs_multihead_attention_and_a_residual_mlp():
    pool = make(pool="map").attn_pool
    x = torch.randn(3, 16, 32)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    theirs.in_proj_weight.data = torch.cat([pool.q.weight, pool.kv.weight]).detach()
    theirs.in_proj_bias.data.zero_()
    theirs.out_proj.load_state_dict(pool.proj.state_dict())
    y = theirs(pool.latent.expand(3, -1, -1), x, x, need_weights=False)[0]
    torch.testing.assert_close(pool(x), (y + pool.mlp(pool.norm(y)))[:, 0])


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
def test_mlp_has_the_gelu_of_the_config(gelu):
    mlp = make(gelu=gelu).blocks[0].mlp
    x = 3 * torch.randn(2, 4, 32)
    inner = F.gelu(mlp.fc1(x), approximate="tanh" if gelu == "tanh" else "none")
    assert torch.equal(mlp(x), mlp.fc2(inner))


def test_sine_positions_are_no_parameter_and_not_stored():
    model = make(positions="sine2d")
    assert torch.equal(model.pos_embed, sine2d(4, 32))
    assert "pos_embed" not in model.state_dict()
    assert "pos_embed" not in dict(model.named_parameters())


@pytest.mark.parametrize("positions", ["learned", "sine2d"])
@pytest.mark.parametrize("size", [16, 24, 8])
def test_model_for_another_image_size_keeps_its_weights(positions, size):
    model = make_seeing(positions=positions, pool="token").eval()
    other = model.with_image_size(size)
    assert other.config == dataclasses.replace(model.config, image_size=size)
    assert not other.training
    grid = size // 4
    expected = (
        sine2d(grid, 32) if positions == "sine2d" else resize_positions(model.pos_embed, grid)
    )
    assert torch.equal(other.pos_embed, expected)
    weights, others = model.state_dict(), other.state_dict()
    assert all(torch.equal(weights[n], others[n]) for n in weights if n != "pos_embed")
    assert other(make_images(size=size)).shape == (3, 5)
    if size == 16:
        assert torch.equal(other(make_images()), model(make_images()))


def test_model_made_without_memory_starts_when_it_has_some():
    with torch.device("meta"):
        model = ViT(ViTConfig(**SMALL, positions="sine2d"))
    assert model.head.weight.is_meta
    model = model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.reset_parameters()
    ordinary = make(positions="sine2d")
    ordinary_names = set(ordinary.state_dict())
    assert set(model.state_dict()) == ordinary_names
    assert torch.equal(model.pos_embed, ordinary.pos_embed)
    assert model(make_images()).isfinite().all()


def copy_step(model, call, images):
    """Logits and gradients of one step, by name."""
    model.zero_grad()
    logits = call(images)
    logits.float().square().sum().backward()
    return {"logits": logits.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}


@pytest.mark.slow
@pytest.mark.parametrize("spec", [AttentionSpec(), LEARNED, SOFTMAX], ids=["relu", "learned", "s"])
def test_compiled_model_is_one_graph_with_the_same_gradients(spec):
    torch.compiler.reset()
    model = make_seeing(pool="token", attention=spec)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    eager = copy_step(model, model, make_images())
    for name, value in copy_step(model, compiled, make_images()).items():
        torch.testing.assert_close(value, eager[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.slow
def test_inductor_compiles_the_model():
    torch.compiler.reset()
    model = make_seeing(depth=1)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        eager, traced = model(make_images()), compiled(make_images())
    assert traced.dtype == torch.bfloat16
    torch.testing.assert_close(traced, eager, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_autocast_is_near_fp32_and_keeps_the_residual_stream_in_fp32(variant):
    model = make_seeing(**variant)
    stream = []
    model.blocks[1].register_forward_hook(lambda module, inputs, out: stream.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(make_images())
    assert (logits.dtype, stream) == (torch.bfloat16, [torch.float32])
    exact = model(make_images())
    assert (logits - exact).norm() < 0.03 * exact.norm()


def test_checkpointed_blocks_have_the_same_gradients():
    model = make_seeing()
    plain = copy_step(model, model, make_images())
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    for name, value in copy_step(model, model, make_images()).items():
        assert torch.equal(value, plain[name]), name


@pytest.mark.parametrize("spec", [AttentionSpec(), SOFTMAX], ids=["relu", "softmax"])
def test_model_learns_a_batch_by_heart(spec):
    model = make(attention=spec)
    images, labels = make_images(count=10), torch.arange(10) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(50):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert (model(images).argmax(-1) == labels).all()


def test_copies_are_independent():
    model = make_seeing()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.pos_embed.add_(1.0)
    assert not torch.equal(model(make_images()), other(make_images()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 18}, "image_size=18 is not a multiple of patch_size=4"),
        ({"num_heads": 5}, "width=32 is not a multiple of 5 heads"),
        ({"depth": 0}, "depth=0 must be a whole number from 1 to 256"),
        ({"width": 32.0}, "width=32.0 must be a whole number from 1"),
        ({"num_classes": -1}, "num_classes=-1 must be a whole number from 0"),
        ({"pool": "gpa"}, "pool='gpa' is unknown. Did you mean 'gap'"),
        ({"positions": "sine"}, "positions='sine' is unknown. Did you mean 'sine2d'"),
        ({"qk_norm": None}, "qk_norm=None is unknown"),
        ({"gate": "on"}, "gate='on' is unknown"),
        ({"gelu": "fast"}, "gelu='fast' is unknown"),
        ({"layer_scale": "1e-4"}, "layer_scale='1e-4' must be a number from -1e+06"),
        ({"head_bias": math.inf}, "head_bias=inf must be a number from -1e+06"),
        ({"pre_logits": 1}, "pre_logits must be True or False"),
        ({"attention": 3}, "attention must be a name, a mapping or an AttentionSpec. Got 3"),
        ({"fc_norm": True, "pool": "token"}, "pool='token'"),
    ],
)
def test_wrong_config_is_one_line(fields, message):
    with pytest.raises(InputError) as error:
        ViTConfig(**SMALL | fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 3, 16, 12), (2, 1, 16, 16), (3, 16, 16)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match=r"expected \[B, 3, 16, 16\]") as caught:
        make()(torch.ones(shape))
    assert ("Resize them" in str(caught.value)) == (shape == (2, 3, 16, 12))  # nothing else helps
