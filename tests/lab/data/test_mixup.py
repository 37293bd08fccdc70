"""Mixup: one share a batch, the partner is the neighbour."""

import numpy as np
import pytest
import torch

from flashpoint.lab.data.mixup import mixup, mixup_share


def make_batch(size=6):
    torch.manual_seed(0)
    return torch.randn(size, 3, 4, 4), torch.eye(10)[torch.arange(size)]


def test_formula():
    images, targets = make_batch()
    share = mixup_share(0.3, seed=1, step=5)
    mixed, blended = mixup(images, targets, 0.3, seed=1, step=5)
    assert 0.5 <= share < 1.0
    torch.testing.assert_close(mixed, share * images + (1 - share) * images.roll(1, 0))
    torch.testing.assert_close(blended, share * targets + (1 - share) * targets.roll(1, 0))
    assert not torch.equal(mixed, images)


def test_zero_changes_nothing():
    images, targets = make_batch()
    mixed, blended = mixup(images, targets, 0.0, seed=0, step=0)
    assert mixed is images
    assert blended is targets


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_shares_follow_beta(p):
    shares = np.array([mixup_share(p, 0, step) for step in range(4000)])
    drawn = np.random.default_rng(0).beta(p, p, 400_000)
    expected = np.maximum(drawn, 1 - drawn)
    assert shares.mean() == pytest.approx(expected.mean(), abs=0.01)
    assert shares.std() == pytest.approx(expected.std(), abs=0.01)
    assert shares.min() >= 0.5


def test_share_follows_seed_and_step():
    assert mixup_share(0.2, 3, 7) == mixup_share(0.2, 3, 7)
    assert mixup_share(0.2, 3, 7) != mixup_share(0.2, 3, 8)
    assert mixup_share(0.2, 3, 7) != mixup_share(0.2, 4, 7)


def test_two_ranks_with_neighbours_equal_one():
    images, targets = make_batch(8)
    whole = mixup(images, targets, 0.5, seed=0, step=3)
    parts = [
        mixup(
            images[part],
            targets[part],
            0.5,
            seed=0,
            step=3,
            neighbour=(images[[before]], targets[[before]]),
        )
        for part, before in ((slice(0, 4), 7), (slice(4, 8), 3))
    ]
    for k in range(2):
        assert torch.equal(torch.cat([part[k] for part in parts]), whole[k])
