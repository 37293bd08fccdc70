"""What validation counts, where a model or its data are broken."""

import math

import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.lab.training.vision import ClassificationSums


def test_logits_that_are_no_numbers_guess_nothing():
    sums = ClassificationSums("softmax")
    sums.add(torch.full((3, 4), math.nan), torch.tensor([0, 1, 2]))
    sums.add(torch.tensor([[0.0, 9.0, 0.0, 0.0]]), torch.tensor([1]))
    numbers = sums.numbers()
    assert (numbers["top1"], numbers["top5"]) == (0.25, 0.25)


def test_nothing_to_count_is_said():
    with pytest.raises(InputError, match="none of the validation images can be read"):
        ClassificationSums("softmax").numbers()
