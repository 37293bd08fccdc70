"""The key-value memory: the feed-forward layer by another name, with slots to add and remove."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flashpoint.errors import InputError
from flashpoint.layers.memory import KeyValueMemory
from flashpoint.ops.activation import BUILTIN

E, SLOTS = 12, 40
FUNCTIONS = {
    "relu": F.relu,
    **{f"relu{power}": lambda s, p=power: F.relu(s) ** p for power in (2, 3, 4)},
    "relu6": F.relu6,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "identity": lambda s: s,
    "softmax": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
}


def make(activation="relu", seed=0, **settings):
    """An fp64 memory with every parameter off its start."""
    torch.manual_seed(seed)
    memory = KeyValueMemory(E, SLOTS, activation, **settings).double()
    for parameter in memory.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return memory


def make_x(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, E, generator=generator, dtype=torch.float64)


def make_slots(count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, count, E, generator=generator, dtype=torch.float64)
    return keys, values, torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_relu_memory_is_the_feed_forward_layer(bias):
    memory, x = make(bias=bias), make_x(3, 5)
    layer = nn.Sequential()
    layer.add_module("fc1", nn.Linear(E, SLOTS, bias=bias))
    layer.add_module("act", nn.ReLU())
    layer.add_module("fc2", nn.Linear(SLOTS, E, bias=bias))
    layer.double().load_state_dict(memory.state_dict())
    memory.load_state_dict(layer.state_dict())  # and back, with nothing missing
    assert torch.equal(memory(x), layer(x))
    do = make_x(3, 5, seed=2)
    grads = torch.autograd.grad(memory(x), list(memory.parameters()), do)
    theirs = torch.autograd.grad(layer(x), list(layer.parameters()), do)
    assert all(torch.equal(a, b) for a, b in zip(grads, theirs, strict=True))


@pytest.mark.parametrize("output_norm", [False, True])
@pytest.mark.parametrize("activation", [*BUILTIN, "softmax"])
def test_memory_is_its_formula(activation, output_norm):
    memory, x = make(activation, output_norm=output_norm), make_x(2, 3)
    state = memory.state_dict()
    scores = torch.einsum("ble,se->bls", x, state["fc1.weight"]) + state["fc1.bias"]
    weights = FUNCTIONS[activation](scores)
    y = torch.einsum("bls,es->ble", weights, state["fc2.weight"]) + state["fc2.bias"]
    if output_norm:
        y = F.layer_norm(y, (E,), state["norm.weight"], state["norm.bias"], eps=1e-9)
    torch.testing.assert_close(memory(x), y, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(memory.weights(x), weights, rtol=1e-10, atol=1e-12)


def test_softmax_output_is_small_and_the_norm_restores_it():
    torch.manual_seed(0)
    x = torch.randn(100, 256)
    relu, softmax, normed = (
        KeyValueMemory(256, 1024, name, output_norm=norm)(x).std().item()
        for name, norm in (("relu", False), ("softmax", False), ("softmax", True))
    )
    assert softmax < 0.01 * relu
    assert normed == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("activation", BUILTIN)
def test_added_slots_add_their_own_output(activation):
    memory, x = make(activation), make_x(4, 5)
    keys, values, biases = make_slots(7)
    before = memory(x)
    added = memory.add_slots(keys, values, biases)
    assert added.tolist() == list(range(SLOTS, SLOTS + 7))
    assert memory.num_slots == SLOTS + 7
    own = FUNCTIONS[activation](x @ keys.T + biases) @ values
    torch.testing.assert_close(memory(x), before + own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", [*BUILTIN, "softmax"])
@pytest.mark.parametrize("bias", [True, False])
def test_removing_added_slots_restores_every_bit(activation, bias):
    memory, x = make(activation, bias=bias, output_norm=True), make_x(4, 5)
    before, state = memory(x), {name: t.clone() for name, t in memory.state_dict().items()}
    keys, values, biases = make_slots(3)
    added = memory.add_slots(keys, values, biases if bias else None)
    assert not torch.equal(memory(x), before)
    memory.remove_slots(added)
    assert torch.equal(memory(x), before)
    assert all(torch.equal(t, state[name]) for name, t in memory.state_dict().items())


def test_removed_slots_take_their_own_output_with_them():
    memory, x = make(), make_x(4, 5)
    removed = torch.tensor([0, 17, SLOTS - 1])
    own = memory.weights(x)[..., removed] @ memory.fc2.weight[:, removed].T
    before = memory(x)
    memory.remove_slots(removed)
    assert memory.num_slots == SLOTS - 3
    torch.testing.assert_close(memory(x), before - own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make_optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizer_goes_on_with_more_and_fewer_slots(make_optimizer):
    memory, x = make(), make_x(8)
    parameters = list(memory.parameters())
    optimizer = make_optimizer(parameters, lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = memory(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step()
    changes = (
        lambda: memory.add_slots(*make_slots(4)),
        lambda: memory.remove_slots(torch.arange(9)),
    )
    for change in changes:
        change()
        assert all(a is b for a, b in zip(memory.parameters(), parameters, strict=True))
        assert memory.fc1.weight.grad is None  # of the old shape
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
        before = memory.fc1.weight.detach().clone()
        step()
        assert (memory.fc1.weight != before).any(1)[-4:].any()
    for _ in range(50):
        last = step()
    assert last < first


def test_used_slots_are_those_with_weight_the_heaviest_first():
    memory, x = make(), make_x(3, 2)
    uses, weights = memory.used_slots(x), memory.weights(x).view(-1, SLOTS)
    assert len(uses) == 6
    for use, row in zip(uses, weights, strict=True):
        assert set(use.slots.tolist()) == set(row.nonzero()[:, 0].tolist())
        assert 0 < len(use.slots) < SLOTS  # relu leaves slots unused
        assert torch.equal(use.weights, row[use.slots])
        assert (use.weights.diff() <= 0).all()
    strong = memory.used_slots(x, threshold=1.0)
    assert all((use.weights > 1).all() for use in strong)
    assert sum(len(use.slots) for use in strong) == (weights > 1).sum()


def test_negative_weights_count_by_their_size():
    memory = make("identity")
    (use,) = memory.used_slots(make_x(), threshold=0.5)
    assert (use.weights < 0).any()
    assert (use.weights.abs() > 0.5).all()
    assert (use.weights.abs().diff() <= 0).all()


def test_slots_survive_a_checkpoint_and_another_dtype():
    memory = KeyValueMemory(E, SLOTS)
    memory.add_slots(*make_slots(2))  # fp64 rows for an fp32 memory
    assert {p.dtype for p in memory.parameters()} == {torch.float32}
    other = KeyValueMemory(E, SLOTS + 2)
    other.load_state_dict(memory.state_dict())
    x = make_x(3).float()
    assert torch.equal(other(x), memory(x))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda m: KeyValueMemory(0, 4), "dim must be an integer >= 1. Got 0"),
        (lambda m: KeyValueMemory(4.5, 4), "dim must be an integer >= 1. Got 4.5"),
        (lambda m: KeyValueMemory(4, True), "slots must be an integer >= 1. Got True"),
        (lambda m: m.add_slots([[1.0] * E], torch.ones(1, E)), "keys must be a tensor"),
        (lambda m: m.remove_slots([1]), "slots must be a tensor"),
        (lambda m: KeyValueMemory(4, 4, "sofmax"), "Did you mean 'softmax'"),
        (lambda m: m.add_slots(torch.ones(2, 5), torch.ones(2, 5)), "expected [2, 12]"),
        (lambda m: m.add_slots(torch.ones(2, E), torch.ones(3, E)), "values have shape [3, 12]"),
        (
            lambda m: m.add_slots(torch.ones(2, E), torch.ones(2, E), torch.ones(3)),
            "expected shape [2]",
        ),
        (
            lambda m: make(bias=False).add_slots(*make_slots(2)),
            "this memory has no biases",
        ),
        (lambda m: m.remove_slots(torch.tensor([1, 40])), "slots [40] cannot be removed"),
        (lambda m: m.remove_slots(torch.tensor([-1])), "slots [-1] cannot be removed"),
        (lambda m: m.remove_slots(torch.arange(SLOTS)), "one must stay"),
        (lambda m: m.remove_slots(torch.ones(3)), "must be a vector of numbers"),
        (lambda m: m.used_slots(make_x(2), threshold=-1), "threshold=-1"),
    ],
)
def test_wrong_use_is_one_line(use, message):
    with pytest.raises(InputError) as error:
        use(make())
    assert message in str(error.value)
    assert "\n" not in str(error.value)
