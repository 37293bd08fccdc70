"""Numbers of small cases by hand, and of one GPU beside what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from lab.scaling.simple import LINKS, LOAD, make_rates, make_result, make_row, make_setting

from flashpoint.distributed.call import Sizes
from flashpoint.distributed.strategy import elements_sent
from flashpoint.lab.bench.result_file import read
from flashpoint.lab.scaling.estimate import Choice, Setting, attention_seconds, estimate
from flashpoint.lab.scaling.load import load_of
from flashpoint.lab.scaling.rates import rates_of, stored_rates
from flashpoint.lab.scaling.traffic import HABITS, bytes_copied, bytes_sent, why_not
from flashpoint.models.cost import attention_flops, forward_flops
from flashpoint.models.registry import image_model_config

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
L, E, P = 1024, 64, 4
RATES_OF_4 = rates_of(
    [make_result(*(make_row(mode, 1024, 1e14, dim=4) for mode in ("forward", "backward")))],
    ["toy.json"],
)
OPTIMIST = (0.7, 1.0)
"""An estimate over the measured time of a step on one GPU: real steps take up to 1.4 times it."""


def choice(strategy="ring", data=2, sequence=P, recomputes=False):
    return Choice(data=data, sequence=sequence, strategy=strategy, recomputes=recomputes)


def estimated(strategy="ring", recomputes=False, **changes):
    return estimate(make_setting(**changes), choice(strategy, recomputes=recomputes))


def test_attention_and_products_are_work_over_rate():
    """Two groups of four ranks: each has 4 samples and 2 layers."""
    found = estimated("gather").seconds
    work = 4 * 2 * 4 * L**2 * E / P
    assert found.attention == pytest.approx(work / 200e12 + 2.5 * work / 100e12)
    assert found.products == pytest.approx(3 * 4 * L * 1e5 / P / 400e12)


def test_elementwise_and_copies_are_bytes_over_the_rate_of_memory():
    found, rate = estimated("gather").seconds, make_rates().memory_bytes_per_s
    passed = 4 * 2 * L / P * (24 * E + 4 * 256 + 38 * E + 8 * 256)
    assert found.elementwise == pytest.approx((passed + 32 * 100_000) / rate)
    assert found.copies == pytest.approx(4 * 2 * (8 + 68 + (14 + 18) / P) * L * E / rate)


def test_ring_copies_dk_and_dv_of_every_block_and_the_rest_once():
    found, rate = estimated("ring").seconds, make_rates().memory_bytes_per_s
    blocks = 28 * (P - 1) / P  # dk, dv packed in bf16, and added in fp32 where they belong
    own = (8 + 4 + 2) + (8 + 4 + 4 + 6 + 12 + 12)  # packing, divisions, zeros, dtypes
    assert found.copies == pytest.approx(4 * 2 * (blocks + own / P) * L * E / rate)


def test_fewer_heads_of_keys_send_and_copy_less():
    grouped = replace(LOAD, num_kv_heads=1)
    for strategy, share in (("ring", 1 / 4), ("gather", 1 / 4), ("reduce", 1), ("ulysses", 5 / 8)):
        sent = bytes_sent(strategy, LOAD, L, P)
        assert bytes_sent(strategy, grouped, L, P) == tuple(share * each for each in sent)
    queries, keys = E * L // P, E // 4
    forward, backward = (
        6 * queries + 8 * keys * L // P,
        14 * queries + keys * (28 * L + 4 * L // P),
    )
    assert bytes_copied("ring", grouped, L, P) == (forward, backward)
    assert why_not("ulysses", LOAD, 4) is None
    assert why_not("ulysses", grouped, 4) == "1 head of toy cannot be divided among {} ranks"


def test_causal_attention_is_half_the_work():
    causal = replace(LOAD, is_causal=True)
    whole, half = (estimated("ring", load=load).seconds for load in (LOAD, causal))
    assert half.attention == pytest.approx(whole.attention / 2)
    assert (half.products, half.copies) == (whole.products, whole.copies)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("strategy", HABITS)
def test_bytes_sent_are_those_of_the_strategy(strategy, recomputes):
    forward, backward = elements_sent(strategy, Sizes(1, 4, 4, 16, 16), (L, L), P)
    found = estimated(strategy, recomputes)
    assert found.sequence_bytes == 2 * 4 * 2 * ((2 if recomputes else 1) * forward + backward)
    assert found.gradient_bytes == 2 * 4 * 100_000 * 7 / 8


def test_only_a_ring_hides_attentions_messages():
    setting = make_setting(load=LOAD, num_gpus=4, batch=4)
    for strategy in HABITS:
        one = estimate(setting, choice(strategy, data=1))
        reduction = one.gradient_bytes / 100e9
        products = 2 * one.seconds.products / 3 / 4
        messages = one.sequence_bytes / 100e9
        assert one.seconds.sending == pytest.approx(messages + reduction)
        attention = one.seconds.hidden - min(reduction, products)
        assert (attention > 0) == (strategy == "ring")
        assert attention <= messages


@pytest.mark.parametrize(
    ("strategy", "gathered", "exchanged"),
    [("gather", 4, 2), ("reduce", 3, 2), ("ulysses", 0, 8 / 16), ("ring", 0, 0)],
)
def test_messages_between_nodes_by_hand(strategy, gathered, exchanged):
    """16 ranks on two nodes; parts of f L E elements of two bytes."""
    setting = make_setting(
        load=replace(LOAD, num_heads=16, num_kv_heads=16), rates=RATES_OF_4, num_gpus=16, batch=1
    )
    found = estimate(setting, choice(strategy, data=1, sequence=16))
    part = 2 * 15 / 16 * L * E
    seconds = gathered * part / 80e9 + exchanged * part * 8 / 15 / 10e9
    if strategy == "ring":
        seconds = 6 * part / 10e9
    reduction = found.gradient_bytes / 80e9
    assert found.seconds.sending == pytest.approx(2 * seconds + reduction)


def test_memory_by_hand():
    kept, tokens = 20 * E + 4 * 256, 4 * L // P  # all four samples at once
    found = estimated("gather").memory
    assert (found.parameters, found.gradients, found.moments) == (400_000, 800_000, 800_000)
    assert found.activations == tokens * (2 * kept + 8 * E + 4 * 256)
    assert found.travelers == 4 * 20 * L * E
    assert found.inputs == tokens * 16
    again = estimated("gather", recomputes=True).memory
    assert again.activations == tokens * (2 * 4 * E + kept + 8 * E + 4 * 256)


def test_as_many_samples_at_once_as_fit():
    one = estimated("ring", memory_bytes=1e9)
    assert (one.at_once, one.fits) == (4, True)
    of_samples = one.memory.activations + one.memory.travelers
    least = one.memory.total - of_samples
    tight = estimated("ring", memory_bytes=(least + 0.6 * of_samples) / 0.9)
    assert (tight.at_once, tight.fits) == (2, True)
    none = estimated("ring", memory_bytes=1e5)
    assert (none.at_once, none.fits) == (1, False)


@pytest.mark.parametrize("name", ["vit_s16", "vit_s8", "vit_l16"])
def test_load_counts_the_operations_of_the_model(name):
    config, load = image_model_config(name), load_of(name)
    tokens = config.grid**2
    products = forward_flops(config) - attention_flops(config)
    assert load.matrix_flops(tokens) == pytest.approx(products)
    assert load.depth * load.attention_flops(tokens) == attention_flops(config)


def single(name, tokens, batch):
    rates = stored_rates()
    memory = {"memory_bytes": 141e9, "rates": rates, "links": LINKS}
    return Setting(load=load_of(name), tokens=tokens, batch=batch, num_gpus=1, **memory)


@pytest.mark.parametrize("row", read(RESULTS / "h200_vit_model.json").models, ids=str)
def test_measured_steps_take_up_to_1_4_times_the_estimate(row):
    """ViT-S/16 and S/8 on one H200; memory within a tenth."""
    config = image_model_config(row.case.model)
    setting = single(row.case.model, config.grid**2, row.case.batch)
    found = estimate(setting, choice("alone", 1, 1))
    measured = row.of("relu")
    low, high = OPTIMIST
    assert low < found.seconds.step / measured.timing.median_s < high
    extra = found.memory.activations + found.memory.gradients
    assert extra == pytest.approx(measured.peak.extra_bytes, rel=0.1)


def test_attention_of_one_gpu_is_the_measured_time():
    """ViT-S/16's shape stands in the stored file, with norms of q and k inside."""
    forward, backward = attention_seconds(single("vit_s16", 196, 512), choice("alone", 1, 1))
    rows = {row.case.mode: row for row in normed(196)}
    assert 512 * forward == pytest.approx(rows["forward"].of("flashpoint").timing.median_s)
    assert 512 * backward == pytest.approx(rows["backward"].of("flashpoint").timing.median_s)


def normed(length):
    found = read(RESULTS / "h200_vit.json").rows
    return [r for r in found if r.case.qk_norm == "layer" and r.case.shape.length == length]
