import copy

import pytest
import torch
import torch.nn.functional as F
from convert.foreign import stir
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import flashpoint
from flashpoint import (
    AttentionSpec,
    InputError,
    UnsupportedError,
    replace_attention,
    restore_attention,
)
from flashpoint.convert.replace import find_attention
from flashpoint.convert.substitute import Substitute


def make(depth=4):
    layers = [nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True) for _ in range(depth)]
    return stir(nn.Sequential(*layers))


def words(model):
    """What each layer computes."""
    found = [site.substitute for site in find_attention(model).sites]
    return ["own" if x is None else x.spec.word for x in found]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, "rrrr"),
        ([1], ".r.."),
        ((0, -1), "r..r"),
        (range(0, 4, 2), "r.r."),
        (slice(2, None), "..rr"),
        ("[01].*", "rr.."),
        (lambda name: name.startswith("2"), "..r."),
    ],
    ids=["all", "one", "ends", "range", "slice", "pattern", "function"],
)
def test_layers_make_hybrids(layers, expected):
    model = make()
    report = replace_attention(model, "relu", layers=layers)
    assert words(model) == [{"r": "relu", ".": "own"}[letter] for letter in expected]
    assert len(report.replaced) == expected.count("r")
    assert list(report.left.values()) == ["not chosen by layers"] * expected.count(".")
    x = torch.randn(1, 5, 32)
    for i, letter in enumerate(expected):
        alone = make()[i]
        if letter == "r":
            replace_attention(alone, "relu")
        torch.testing.assert_close(model[i](x), alone(x))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([4], r"layers has 4, and the model has 4 .* from -4 to 3"),
        ([-5], r"layers has -5"),
        ([], r"layers is empty"),
        (slice(4, None), r"slice\(4, None, None\) chooses none of 4 attention modules"),
        ("blocks.*", r"'blocks\.\*' chooses none of 0\.self_attn, 1\.self_attn"),
        (lambda _: False, r"the function chooses none"),
        ([True], r"layers must be None, indices, .* Got \[True\]"),
        (1.5, r"Got 1\.5"),
        (2, r"Got 2"),
    ],
)
def test_layers_that_fit_nothing_are_refused(layers, message):
    model = make()
    with pytest.raises(InputError, match=message):
        replace_attention(model, layers=layers)
    assert words(model) == ["own"] * 4


def test_failure_at_a_later_module_changes_none():
    model = make(2)
    model[1].self_attn.num_heads = None
    with pytest.raises(TypeError):
        replace_attention(model)
    assert not any(isinstance(x, Substitute) for x in model.modules())


def test_second_replacement_wins_where_it_applies():
    model = make(3)
    replace_attention(model, "relu")
    report = replace_attention(model, "relu4/sum", layers=[0])
    assert words(model) == ["relu4/sum", "relu", "relu"]
    assert report.left["1.self_attn"] == "not chosen by layers, computes relu"
    once = make(3)
    replace_attention(once, "relu4/sum", layers=[0])
    replace_attention(once, "relu", layers=[1, 2])
    x = torch.randn(2, 5, 32)
    assert torch.equal(model(x), once(x))
    assert restore_attention(model) == 3
    assert restore_attention(model) == 0
    assert torch.equal(model(x), make(3)(x))


def test_module_that_was_changed_since_is_not_restored_in_silence():
    model = make(2)
    replace_attention(model, "relu")
    model[1].self_attn.forward = lambda *args, **options: (args[0], None)
    with pytest.raises(UnsupportedError, match=r"1\.self_attn cannot be restored: .*of its own"):
        restore_attention(model)
    del model[1].self_attn.forward
    assert restore_attention(model) == 2


def test_report_reads_as_a_table():
    report = replace_attention(make(2), AttentionSpec(gain="learned_per_head"), layers=[1])
    assert str(report).splitlines() == [
        "1 of 2 attention modules replaced, 15,008 parameters kept, 4 new",
        "  1.self_attn  relu  torch.nn.modules.activation.MultiheadAttention",
        "  0.self_attn  left  not chosen by layers",
    ]
    assert report.replaced[0].spec == AttentionSpec(gain="learned_per_head")


def test_number_of_own_parameters_counts_no_learned_ones():
    model = make(2)
    replace_attention(model, AttentionSpec(gain="learned"))
    report = replace_attention(model, AttentionSpec(bias="learned"), layers=[0])
    assert (report.num_parameters, report.num_new_parameters) == (15_008, 1)


def test_optimizer_built_before_goes_on():
    model = make(2).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    replace_attention(model, "relu")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(2, 5, 32)).square().sum().backward()
    optimizer.step()
    for name, weight in model.state_dict().items():
        assert not torch.equal(weight, before[name]), name


def test_hooks_names_and_state_stay():
    model = make(1)
    calls = []
    model[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    own = copy.deepcopy(model.state_dict())
    replace_attention(model, "relu")
    assert isinstance(model[0].self_attn, nn.MultiheadAttention)
    assert model.load_state_dict(own).missing_keys == []
    model(torch.randn(1, 3, 32))
    assert calls == [1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_substitutes_move_with_the_model(dtype):
    spec = AttentionSpec(activation="sigmoid", gain="learned_per_head")
    early, late = make(1), make(1).to(dtype)
    replace_attention(early, spec)
    replace_attention(late, spec)
    early.to(dtype)
    x = torch.randn(1, 5, 32, dtype=dtype)
    assert late[0].self_attn.substitute.gain.dtype == dtype
    assert torch.equal(early(x), late(x))
    assert not late[0].self_attn.substitute.training


class SelfAttention(nn.Module):
    """Somebody's own."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv = 2, nn.Linear(32, 96)

    def forward(self, x):
        return self.qkv(x)[..., :32]


class Block(nn.Module):
    """Attention without the word in its name."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4)

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class ByHand(nn.Module):
    """Attention without any of PyTorch's functions."""

    num_heads = 2

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class ByMethod(nn.Module):
    """Attention in a method that forward calls."""

    heads = 2

    def forward(self, x):
        return self.weights(x) @ x

    def weights(self, x):
        return (x @ x.mT).softmax(-1)


class OneHead(nn.Module):
    """Attention by hand without a number of heads."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def attend_by_hand(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


class ByFunctionAttention(nn.Module):
    """Attention in a function, with other names for heads and projections."""

    h = 2

    def forward(self, x):
        return attend_by_hand(x, x, x)


class ByChildAttention(nn.Module):
    """Softmax as a module."""

    def __init__(self):
        super().__init__()
        self.normalize = nn.Softmax(-1)

    def forward(self, x):
        return self.normalize(x @ x.mT) @ x


class ByFlex(nn.Module):
    """PyTorch's other function for attention."""

    def forward(self, x):
        return flex_attention(x, x, x)


class ByInnerFunction(nn.Module):
    """Attention in a function that forward defines, as for checkpoints."""

    def forward(self, x):
        return (lambda y: F.scaled_dot_product_attention(y, y, y))(x)


class ByStoredFunction(nn.Module):
    """Attention in a function that the module was given."""

    def __init__(self):
        super().__init__()
        self.function = F.scaled_dot_product_attention

    def forward(self, x):
        return self.function(x, x, x)


class Derived(nn.MultiheadAttention):
    """May compute something else than its base."""

    def __init__(self):
        super().__init__(32, 4)


class AttentionBlock(nn.Module):
    """Holds attention, and computes none of its own."""

    num_heads = 4

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x)[0]


class Classifier(nn.Module):
    """Its heads give probabilities of classes."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(32, 32)])

    def forward(self, x):
        return self.heads[0](x).softmax(-1)


class ChannelAttention(nn.Module):
    """Attention by name alone: it has neither heads nor projections."""

    def forward(self, x):
        return x.sigmoid() * x


UNKNOWN = [SelfAttention, Block, ByHand, ByMethod, OneHead, ByFunctionAttention, ByChildAttention]


@pytest.mark.parametrize("kind", [*UNKNOWN, ByFlex, ByInnerFunction, ByStoredFunction, Derived])
def test_unknown_attention_is_refused_and_can_be_left_out(kind):
    model = nn.Sequential(make(1), kind())
    pattern = rf"^1 cannot be replaced: .*{kind.__name__} is not known here\. Nothing was changed"
    with pytest.raises(UnsupportedError, match=pattern):
        replace_attention(model)
    assert not any(isinstance(x, Substitute) for x in model.modules())
    report = replace_attention(model, layers=lambda name: name.startswith("0."))
    assert "is not known here" in report.left["1"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_attention_in_torchscript_is_refused():
    traced = torch.jit.trace(ByChildAttention(), torch.randn(1, 3, 32))
    pattern = (
        r"^1 cannot be replaced: ByChildAttention is TorchScript.* before torch\.jit\. Nothing"
    )
    with pytest.raises(UnsupportedError, match=pattern):
        replace_attention(nn.Sequential(make(1), traced))
    plain = torch.jit.trace(nn.Linear(32, 32), torch.randn(1, 32))
    assert len(replace_attention(nn.Sequential(make(1), plain)).replaced) == 1


def test_more_unknown_ones_are_counted():
    with pytest.raises(
        UnsupportedError, match=r"^0 and 2 more cannot be replaced.*no attention that"
    ):
        replace_attention(nn.Sequential(ByHand(), ByHand(), SelfAttention()))


def test_holders_and_other_things_are_not_attention():
    model = nn.Sequential(AttentionBlock(), ChannelAttention(), Classifier())
    report = replace_attention(model, "relu")
    assert [entry.name for entry in report.replaced] == ["0.attn"]
    assert not report.left


def test_module_itself_can_be_the_model():
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    expected = module(x, x, x)
    assert replace_attention(module, "relu").replaced[0].name == ""
    assert not torch.equal(module(x, x, x)[0], expected[0])
    restore_attention(module)
    assert torch.equal(module(x, x, x)[0], expected[0])


def test_module_in_two_places_is_one():
    layer = nn.MultiheadAttention(32, 4)
    report = replace_attention(nn.Sequential(layer, layer))
    assert len(report.replaced) == 1


def test_model_that_drops_weights_itself_is_named():
    with pytest.raises(UnsupportedError, match=r"^the model itself drops 0\.1 of"):
        replace_attention(nn.MultiheadAttention(32, 4, dropout=0.1))


@pytest.mark.parametrize("name", ["vit", "reluformer_tiny"])
def test_own_models_point_to_create_model(name):
    sizes = {"width": 32, "depth": 1, "num_heads": 2, "image_size": 32, "patch_size": 16}
    model = flashpoint.create_model(name, **(sizes if name == "vit" else {}))
    with pytest.raises(UnsupportedError, match=r"create_model\(name, attention='relu4/sum'\)"):
        replace_attention(model)


@pytest.mark.parametrize(("model", "message"), [(nn.Linear(2, 2), "Linear has no"), (3, "Got 3")])
def test_models_without_attention_are_refused(model, message):
    with pytest.raises(InputError, match=message):
        replace_attention(model)


def test_unknown_words_are_refused_before_any_change():
    model = make(1)
    with pytest.raises(InputError, match="rellu"):
        replace_attention(model, "rellu")
    assert words(model) == ["own"]
