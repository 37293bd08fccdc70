"""ReLUFormer and its softmax twin: shapes, start, padding, penalty, PyTorch's machinery."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from models.text_models import NUMBER, PER_HEAD, SMALL, SOFTMAX, V, make, make_tokens
from torch import nn

from flashpoint.errors import InputError
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.layers.positions import sines
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.reluformer import RELU_ATTENTION, Block, ReLUFormer, ReLUFormerConfig

VARIANTS = {
    "relu": {},
    "post-norm": {"pre_norm": False},
    "gamma per head": {"attention": PER_HEAD},
    "gamma a number": {"attention": NUMBER},
    "untied": {"tied_embeddings": False},
    "softmax": {"attention": SOFTMAX},
    "softmax, post-norm": {"attention": SOFTMAX, "pre_norm": False},
    "memory": {"memory_activation": "softmax", "memory_norm": True},
    "relu4/sum": {"attention": "relu4/sum"},
    "cross softmax": {"cross_attention": "softmax"},
    "cross relu": {"attention": "softmax", "cross_attention": "relu"},
    "cross relu4/sum": {"attention": "relu4/sum", "cross_attention": "relu2/sum"},
    "normed": {"attention": "relu4/sum", "qk_norm": "layer", "gate": "sigmoid"},
    "ReLA": {"attention": AttentionSpec(alpha=0.0), "output_norm": "gated_rms"},
}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@variants
def test_shapes_and_a_gradient_for_every_parameter(variant):
    model = make(**variant)
    source, target = make_tokens(3, 9), make_tokens(3, 7, seed=2)
    lengths = {"source_lengths": torch.tensor([9, 4, 1])}
    logits = model(source, target, **lengths)
    assert logits.shape == (3, 7, V)
    assert model.encode(source, lengths["source_lengths"]).shape == (3, 9, 32)
    logits.square().sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


def test_twins_have_the_same_parameters_but_for_gamma():
    names = [
        {name: p.shape for name, p in make(attention=spec).named_parameters()}
        for spec in (NUMBER, SOFTMAX, RELU_ATTENTION)
    ]
    assert names[0] == names[1]
    assert {name.rpartition(".")[2] for name in names[2].keys() - names[0].keys()} == {"gain"}
    assert len(names[2]) - len(names[0]) == 2 + 2 * 3  # encoder, decoder and cross


@variants
def test_batch_of_documents_is_one_by_one(variant):
    """Lengths from nothing to full; padding of any value, in source and target."""
    model = make(**variant).double()
    source, target = make_tokens(4, 12), make_tokens(4, 10, seed=2)
    source_lengths, target_lengths = torch.tensor([12, 5, 1, 0]), torch.tensor([3, 10, 6, 4])
    lengths = {"source_lengths": source_lengths, "target_lengths": target_lengths}
    batch = model(source, target, **lengths)
    for b in range(4):
        s, t = source[b : b + 1, : source_lengths[b]], target[b : b + 1, : target_lengths[b]]
        alone = model(s, t)
        torch.testing.assert_close(batch[b : b + 1, : t.shape[1]], alone, rtol=1e-10, atol=1e-11)


@variants
def test_logits_do_not_see_the_future(variant):
    model = make(**variant).double()
    source, target = make_tokens(1, 6), make_tokens(1, 8, seed=2)
    whole = model(source, target)
    changed = target.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % V
    torch.testing.assert_close(model(source, changed)[:, :5], whole[:, :5], rtol=0, atol=1e-12)
    assert (model(source, changed)[:, 5:] - whole[:, 5:]).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("pre_norm", [True, False])
def test_model_is_the_transformer_of_pytorch(pre_norm):
    """The softmax twin has the weights and the logits of torch.nn.Transformer."""
    model = make(attention=SOFTMAX, pre_norm=pre_norm, decoder_depth=2).double()
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}
    theirs = nn.Transformer(32, 4, 2, 2, 48, norm_first=pre_norm, **options).eval()
    if not pre_norm:
        theirs.encoder.norm = theirs.decoder.norm = nn.Identity()  # post-norm has none more
    for ours, other in [
        *zip(model.encoder, theirs.encoder.layers, strict=True),
        *zip(model.decoder, theirs.decoder.layers, strict=True),
    ]:
        copy_attention(ours.attn, other.self_attn)
        norms = [ours.norm1, ours.norm3]
        if ours.is_decoder:
            copy_attention(ours.cross, other.multihead_attn)
            norms.insert(1, ours.norm2)
        for number, norm in enumerate(norms, start=1):
            getattr(other, f"norm{number}").load_state_dict(norm.state_dict())
        other.linear1.load_state_dict(ours.memory.fc1.state_dict())
        other.linear2.load_state_dict(ours.memory.fc2.state_dict())
    source, target = make_tokens(2, 9), make_tokens(2, 7, seed=2)

    def embed(tokens):
        x = F.embedding(tokens, model.embed.weight) * math.sqrt(32)
        return x + sines(torch.arange(tokens.shape[1]), 32)

    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    x = theirs(embed(source), embed(target), tgt_mask=causal, tgt_is_causal=True)
    torch.testing.assert_close(
        model(source, target), x @ model.embed.weight.T, rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("pre_norm", [True, False])
def test_block_is_the_encoder_layer_of_pytorch(pre_norm):
    """With gradients, and padding that nobody sees."""
    block = make(attention=SOFTMAX, pre_norm=pre_norm).double().encoder[0]
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}
    theirs = nn.TransformerEncoderLayer(32, 4, 48, norm_first=pre_norm, **options)
    copy_attention(block.attn, theirs.self_attn)
    theirs.linear1.load_state_dict(block.memory.fc1.state_dict())
    theirs.linear2.load_state_dict(block.memory.fc2.state_dict())
    x = torch.randn(3, 7, 32, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 4, 1])
    exists = torch.arange(7) < lengths[:, None]
    ours, _, _ = block(x, lengths=lengths)
    other = theirs(x, src_key_padding_mask=~exists)
    torch.testing.assert_close(ours[exists], other[exists], rtol=1e-9, atol=1e-10)
    grads = [torch.autograd.grad(o[exists].square().sum(), x)[0] for o in (ours, other)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def test_start_of_q_k_and_v_is_an_option():
    models = [make(qkv_init=gain, pre_norm=False) for gain in (1.0, 2**-0.5)]
    pairs = zip(*(model.named_parameters() for model in models), strict=True)
    for (name, one), (_, other) in pairs:
        is_qkv = name.split(".")[-2] in ("qkv", "q", "kv")
        torch.testing.assert_close(other, one * 2**-0.5 if is_qkv else one)


def copy_attention(ours, theirs):
    first = [ours.qkv] if not ours.is_cross else [ours.q, ours.kv]
    theirs.in_proj_weight.data = torch.cat([layer.weight.data for layer in first])
    theirs.in_proj_bias.data = torch.cat([layer.bias.data for layer in first])
    theirs.out_proj.load_state_dict(ours.proj.state_dict())


def test_sines_are_those_of_the_transformer():
    found = sines(torch.tensor([0, 1, 5, 5000]), 16)
    for row, position in enumerate((0, 1, 5, 5000)):
        for i in range(8):
            angle = position / 10_000 ** (2 * i / 16)
            assert found[row, i].item() == pytest.approx(math.sin(angle), abs=1e-3)
            assert found[row, 8 + i].item() == pytest.approx(math.cos(angle), abs=1e-3)


def test_any_length_has_positions():
    model = make()
    with torch.no_grad():
        assert model(make_tokens(1, 3000), make_tokens(1, 2)).isfinite().all()


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("spec", [RELU_ATTENTION, SOFTMAX])
def test_start_has_unit_variance(spec, pre_norm):
    torch.manual_seed(0)
    config = ReLUFormerConfig(
        vocabulary_size=500, width=256, encoder_depth=2, decoder_depth=2, num_heads=4,
        mlp_dim=512, attention=spec, pre_norm=pre_norm,
    )  # fmt: skip
    model = ReLUFormer(config)
    source, target = (torch.randint(500, (4, 64)) for _ in range(2))
    x = F.embedding(source, model.embed.weight) * 16
    assert x.var().item() == pytest.approx(1.0, rel=0.05)
    logits = model(source, target)
    assert 0.8 < logits.var().item() < 1.25
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)
    q, k, v = model.encoder[0].attn.project(torch.randn(4, 64, 256))
    for tensor in (q, k, v, q @ k.mT / 8):
        assert tensor.var().item() == pytest.approx(1.0, rel=0.1)


def test_reset_starts_anew():
    model = make(tied_embeddings=False, memory_norm=True)
    before = {name: p.clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    torch.manual_seed(1)
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        assert (parameter != 7.0).all()
        assert parameter.std(correction=0).item() == pytest.approx(
            before[name].std(correction=0).item(), rel=0.2
        )


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "with_penalty"), [(RELU_ATTENTION, True), (SOFTMAX, False)])
def test_model_compiles_without_graph_break(spec, with_penalty):
    torch._dynamo.reset()
    model = make(attention=spec, encoder_depth=1, decoder_depth=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    options = {"source_lengths": torch.tensor([9, 5]), "target_lengths": torch.tensor([4, 7])}
    for longer in (0, 4, 8):  # from the second size on, one graph serves all
        tensors = make_tokens(2, 9 + longer), make_tokens(2, 7 + longer)
        runs = []
        for call in (model, compiled):
            model.zero_grad()
            found = call(*tensors, **options, with_penalty=with_penalty)
            logits, penalty = found if with_penalty else (found, torch.zeros(()))
            (logits.square().mean() + penalty).backward()
            runs.append([logits, penalty, *(p.grad for p in model.parameters())])
        for one, other in zip(*runs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_model_compiles_with_inductor():
    torch._dynamo.reset()
    model = make(encoder_depth=1, decoder_depth=1)
    tensors = make_tokens(2, 9), make_tokens(2, 7)
    options = {"source_lengths": torch.tensor([9, 5]), "target_lengths": torch.tensor([4, 7])}
    logits, penalty = torch.compile(model, fullgraph=True)(*tensors, **options, with_penalty=True)
    expected = model(*tensors, **options, with_penalty=True)
    torch.testing.assert_close((logits, penalty), expected, rtol=1e-4, atol=1e-5)


@variants
def test_autocast_is_near_full_precision(variant):
    model = make(**variant)
    tensors = make_tokens(3, 40), make_tokens(3, 30)
    options = {"source_lengths": torch.tensor([40, 17, 3]), "with_penalty": True}
    exact, exact_penalty = model(*tensors, **options)
    with torch.autocast("cpu", torch.bfloat16):
        logits, penalty = model(*tensors, **options)
    assert logits.dtype == torch.bfloat16
    assert penalty.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.1 * exact.abs().max()
    torch.testing.assert_close(penalty, exact_penalty, rtol=0.03, atol=0)
    (logits.float().square().mean() + penalty).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_dropout_acts_in_training_only():
    model = make(dropout=0.5)
    tensors = make_tokens(2, 5), make_tokens(2, 4)
    assert torch.equal(model(*tensors), model(*tensors))
    model.train()
    assert not torch.equal(model(*tensors), model(*tensors))
    twin = make(dropout=0.0)
    twin.load_state_dict(model.state_dict())
    model.eval()
    assert torch.equal(model(*tensors), twin(*tensors))


def test_copies_and_checkpoints_are_the_same_model():
    model = make(attention=PER_HEAD)
    tensors = make_tokens(2, 5), make_tokens(2, 4)
    other = make(attention=PER_HEAD, seed=5)
    other.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    assert torch.equal(other(*tensors), model(*tensors))
    assert torch.equal(twin(*tensors, with_penalty=True)[1], model(*tensors, with_penalty=True)[1])


def test_cross_attention_may_be_another_than_the_rest():
    model = make(cross_attention="softmax", qk_norm="rms", gate="silu", output_norm="layer")
    for block in [*model.encoder, *model.decoder]:
        layers = {"own": block.attn} | ({"cross": block.cross} if block.is_decoder else {})
        assert {name: layer.spec.word for name, layer in layers.items()} == (
            {"own": "relu", "cross": "softmax"} if block.is_decoder else {"own": "relu"}
        )
        for layer in layers.values():
            assert isinstance(layer.q_norm, nn.RMSNorm)
            assert isinstance(layer.norm, nn.LayerNorm)
            assert layer.gate_kind == "silu"


@pytest.mark.parametrize("word", ["relu", "relu4/sum", "softmax"])
def test_cross_attention_is_the_same_unless_told(word):
    models = [make(attention=word), make(attention=word, cross_attention=word)]
    tensors = make_tokens(2, 5), make_tokens(2, 4)
    assert models[0].config.specs == models[1].config.specs
    assert torch.equal(models[0](*tensors), models[1](*tensors))


def test_config_written_before_is_read():
    """Earlier versions had no cross_attention, qk_norm, gate and output_norm, and no sums."""
    attention = {"activation": "relu", "alpha": 0.5, "alpha_start": 1.0, "length": "visible"}
    attention |= {"gain": "learned", "gain_start": 0.17678, "bias": 0.0, "bias_start": 0.0}
    before = SMALL | {"attention": attention, "memory_activation": "relu", "memory_norm": False}
    config = ReLUFormerConfig(**before, pre_norm=True, tied_embeddings=True, dropout=0.1)
    assert config.specs == (config.attention, config.attention)
    names = set(ReLUFormer(config).state_dict())
    assert not {name for name in names if "q_norm" in name or ".gate" in name}
    assert not {name for name in names if ".attn.norm" in name or ".cross.norm" in name}


def test_blocks_are_readable_by_name():
    model = make()
    assert all(isinstance(block, Block) for block in [*model.encoder, *model.decoder])
    assert isinstance(model.encoder[0].memory, KeyValueMemory)
    assert {name for name in model.state_dict() if "embed" in name or "head" in name} == {
        "embed.weight"
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 30}, "width=30 must be even and a multiple of 4 heads"),
        ({"width": 3, "num_heads": 3}, "width=3 must be even"),
        ({"encoder_depth": 0}, "encoder_depth=0 must be a whole number from 1 to 256"),
        ({"vocabulary_size": True}, "vocabulary_size=True must be a whole number"),
        ({"dropout": 1.0}, "dropout=1.0 must be a number from 0 to below 1"),
        ({"pre_norm": 1}, "pre_norm must be True or False"),
        ({"memory_activation": "rellu"}, "Did you mean 'relu'"),
        ({"qkv_init": 0.0}, "qkv_init=0.0 must be a number above 0"),
        ({"qk_norm": "layr"}, "qk_norm='layr' is unknown. Did you mean 'layer'"),
        ({"gate": "tanh"}, "gate='tanh' is unknown"),
        ({"output_norm": "group"}, "output_norm='group' is unknown"),
        ({"cross_attention": "sofmax"}, "Did you mean 'softmax'"),
        ({"cross_attention": {"activation": "gelu", "normalize": "sum"}}, "may be negative"),
        ({"attention": 3}, "attention must be a name, a mapping or an AttentionSpec. Got 3"),
    ],
)
def test_wrong_config_is_one_line(fields, message):
    with pytest.raises(InputError) as error:
        ReLUFormerConfig(**SMALL | fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_tokens_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"tokens have shape \[5\], expected \[B, L\]"):
        make()(make_tokens(5), make_tokens(5))
