"""Configs are checked when they are made."""

import pytest
from lab.data.pictures import config

from flashpoint.errors import InputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 2}, "channels=2 must be 1 .gray. or 3 .color."),
        ({"image_size": 0}, "data.image_size=0 must be a whole number from 1 to 8,192"),
        ({"workers": -1}, "data.workers=-1"),
        ({"max_broken_share": 1.5}, "max_broken_share=1.5"),
        ({"resident": "yess"}, "resident='yess' is unknown. Did you mean 'yes'?"),
        ({"evaluation_view": "cropp"}, "Did you mean 'crop'?"),
        (
            {"augmentation": {"crop": "inceptoin"}},
            "crop='inceptoin' is unknown. Did you mean 'inc",
        ),
        ({"augmentation": {"min_area": 0.0}}, "min_area=0.0"),
        ({"augmentation": {"mixup": -0.1}}, "mixup=-0.1"),
        ({"augmentation": {"mixup": float("nan")}}, "mixup=nan"),
        ({"augmentation": {"randaug_magnitude": True}}, "randaug_magnitude=True"),
    ],
)
def test_wrong_values_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)
