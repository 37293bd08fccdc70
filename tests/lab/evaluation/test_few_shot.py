"""The few-shot probe on plain tensors."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from flashpoint.errors import InputError
from flashpoint.lab.evaluation import few_shot
from flashpoint.lab.evaluation.few_shot import (
    BIAS_FEATURE,
    L2,
    Features,
    ProbeResult,
    choose_shots,
    few_shot_accuracy,
    few_shot_answers,
    fit_dual,
    fit_primal,
    fit_ridge,
)


def random_system(num_points, dim, num_classes=3):
    generator = torch.Generator().manual_seed(num_points)
    x = torch.randn(num_points, dim, generator=generator, dtype=torch.float64)
    y = torch.randn(num_points, num_classes, generator=generator, dtype=torch.float64)
    return x, y


def clusters(per_class, *, dim=16, num_classes=4, distance=3.0, seed=0):
    """Gaussian clouds around one center a class, shifted and scaled unevenly."""
    centers = torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_classes).repeat(per_class)
    values = distance * centers[labels] + torch.randn(len(labels), dim, generator=generator)
    return Features(values=values * torch.logspace(-2, 2, dim) + 7.0, labels=labels)


@pytest.mark.parametrize(("num_points", "dim"), [(40, 9), (9, 40), (12, 12)])
@pytest.mark.parametrize("l2", [0.5, L2])
def test_primal_dual_and_sklearn_agree(num_points, dim, l2):
    x, y = random_system(num_points, dim)
    primal, dual = fit_primal(x, y, l2), fit_dual(x, y, l2)
    theirs = Ridge(alpha=l2, fit_intercept=False).fit(x.numpy(), y.numpy()).coef_.T
    torch.testing.assert_close(primal, dual, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(primal, torch.from_numpy(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("num_points", "dim", "way"), [(9, 8, "primal"), (8, 8, "primal"), (7, 8, "dual")]
)
def test_ridge_solves_the_smaller_system(monkeypatch, num_points, dim, way):
    taken = []
    for name in ("primal", "dual"):
        monkeypatch.setattr(
            few_shot, f"fit_{name}", lambda x, y, l2, name=name: taken.append(name) or x.mT @ y
        )
    fit_ridge(*random_system(num_points, dim))
    assert taken == [way]


@pytest.mark.parametrize("shots", [2, 5])  # dual, primal
def test_answers_are_those_of_the_papers_formula(shots):
    """The same in NumPy, step by step, with sklearn for the regression."""
    train, test = clusters(20, distance=0.7), clusters(50, distance=0.7, seed=1)
    labels = train.labels.numpy()
    for seed in (0, 1, 2):
        random = np.random.default_rng(seed)
        index = np.concatenate(
            [random.permutation(np.where(labels == c)[0])[:shots] for c in range(4)]
        )
        x = train.values.double().numpy()[index]
        mean, std = x.mean(0, keepdims=True), x.std(0, keepdims=True) + 1e-5
        learned, asked = (
            np.pad((v - mean) / std, ((0, 0), (0, 1)), constant_values=100.0)
            for v in (x, test.values.double().numpy())
        )
        y = 2.0 * np.eye(4)[labels[index]] - 1.0
        ridge = Ridge(alpha=1024.0, fit_intercept=False).fit(learned, y)
        wanted = ridge.predict(asked)
        few = train.take(choose_shots(labels, 4, shots, seed))
        found = few_shot_answers(few, test, 4)
        torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=1e-7, atol=1e-9)
        right = (wanted.argmax(1) == test.labels.numpy()).mean()
        assert few_shot_accuracy(few, test, 4) == pytest.approx(right, abs=1e-12)
        assert 0.25 < right < 1.0


def test_clusters_are_told_apart_and_noise_is_guessed():
    assert few_shot_accuracy(clusters(10), clusters(50, seed=1), 4) == 1.0
    noise = [clusters(n, distance=0.0, seed=s) for n, s in ((10, 0), (300, 1))]
    assert 0.15 < few_shot_accuracy(*noise, 4) < 0.35


def test_mean_and_spread_are_over_seeds():
    result = ProbeResult(
        shots=5, num_classes=4, num_test=9, seeds=(0, 1, 2), accuracies=(0.5, 0.6, 0.7)
    )
    assert result.mean == pytest.approx(0.6)
    assert result.spread == pytest.approx(0.1)
    alone = ProbeResult(shots=5, num_classes=4, num_test=9, seeds=(0,), accuracies=(0.5,))
    assert alone.spread is None


def test_bias_feature_counts_unequal_classes():
    """With one feature that says nothing, the constant one learns the classes' shares."""
    train = Features(values=torch.zeros(6, 1), labels=torch.tensor([0, 0, 0, 0, 1, 1]))
    weights = fit_ridge(
        torch.nn.functional.pad(train.values.double(), (0, 1), value=BIAS_FEATURE),
        2.0 * torch.nn.functional.one_hot(train.labels).double() - 1.0,
    )
    answers = BIAS_FEATURE * weights[1]
    torch.testing.assert_close(answers, torch.tensor([1 / 3, -1 / 3]).double(), rtol=0.02, atol=0)


def test_shots_are_of_their_class_distinct_and_chosen_by_seed():
    labels = np.array([2, 0, 1] * 30)
    first, again, other = (choose_shots(labels, 3, 4, seed) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(np.unique(first)) == 12
    assert labels[first].tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("shots", [0, 4])
def test_impossible_shots_are_refused_with_the_numbers(shots):
    message = rf"shots={shots} .*1 and 3.*number 1"
    with pytest.raises(InputError, match=message):
        choose_shots(np.array([0] * 5 + [1] * 3), 2, shots, seed=0)


def test_features_that_are_not_finite_are_refused():
    test = clusters(5, seed=1)
    test.values[3, 0] = float("nan")
    with pytest.raises(InputError, match="1 of 20 images"):
        few_shot_accuracy(clusters(5), test, 4)
