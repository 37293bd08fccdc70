"""What a run trains and validates on, as data; checked when it is made."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError, check_choice

Crop = Literal["none", "pad", "inception"]
View = Literal["auto", "crop", "squash", "whole"]
Resident = Literal["auto", "yes", "no"]
Decode = Literal["auto", "cpu", "gpu", "both"]

MAX_MAGNITUDE = 30.0
EVAL_ZOOM = 256 / 224


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentationConfig:
    """What happens to a training image, in this order: crop, flip, randaug; then mixup.

    Attributes:
        crop: "inception" takes a random part and resizes it; "pad" surrounds the image with
            black and takes a random part of the image's size; "none" takes the image as
            validation does.
        pad: pixels on each side for crop "pad".
        min_area: smallest part of the image for crop "inception", as a share of its area.
        flip: mirror half of the images, left to right.
        randaug_ops: operations in a row on every image; 0 for none.
        randaug_magnitude: their strength; 10 is the full level, more is allowed.
        mixup: p of Beta(p, p), from which the share of the partner is drawn; 0 for none.
    """

    crop: Crop = "none"
    pad: Annotated[int, Bounds(0, 1024)] = 4
    min_area: Annotated[float, Bounds(0.001, 1.0)] = 0.05
    flip: bool = False
    randaug_ops: Annotated[int, Bounds(0, 16)] = 0
    randaug_magnitude: Annotated[float, Bounds(0.0, MAX_MAGNITUDE)] = 0.0
    mixup: Annotated[float, Bounds(0.0, 1e6)] = 0.0

    def __post_init__(self) -> None:
        check_choice("data.augmentation.crop", self.crop, get_args(Crop))
        check_bounds(self, "data.augmentation.")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where images are and how they become batches.

    Attributes:
        train, validation: a source each, as ``open_source`` reads it: "digits", "cifar10:DIR",
            "mnist:DIR", "fashion-mnist:DIR", a folder of class folders, "shards:PATTERN",
            "hf:DIR".
        image_size: height and width of a batch's images.
        channels: 3 for color, 1 for gray.
        augmentation: of training images.
        evaluation_view: how a validation image is brought to size. "crop": the short side to
            256/224 of image_size, then the center. "squash": both sides to 256/224, then the
            center. "whole": both sides to image_size. "auto": "whole" for the small sets that
            have names, "crop" for all others.
        resident: keep all images on the device and augment them there. "auto": for the small
            sets that have names.
        workers: processes that read and decode, if the set is not resident.
        decode: who decodes JPEG files for training. "cpu": workers, by libjpeg, which resize and
            augment too; with the others a GPU does that. "gpu": nvJPEG, all that it takes.
            "both": three of five files nvJPEG, workers the others; which ones follows from their
            place in the order. "auto": "both" where there is nvJPEG, else workers.
        max_broken_share: more unreadable images than this share of an epoch stop the run.
        labels: a file with one class a line, in the order of the labels, for folders and shards.
    """

    train: str
    validation: str
    image_size: Annotated[int, Bounds(1, 8192)] = 224
    channels: Annotated[int, Bounds(1, 3)] = 3
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    evaluation_view: View = "auto"
    resident: Resident = "auto"
    workers: Annotated[int, Bounds(0, 1024)] = 4
    decode: Decode = "cpu"
    max_broken_share: Annotated[float, Bounds(0.0, 1.0)] = 0.01
    labels: str | None = None

    def __post_init__(self) -> None:
        check_choice("data.evaluation_view", self.evaluation_view, get_args(View))
        check_choice("data.resident", self.resident, get_args(Resident))
        check_choice("data.decode", self.decode, get_args(Decode))
        check_bounds(self, "data.")
        if self.channels not in (1, 3):
            raise InputError(f"data.channels={self.channels} must be 1 (gray) or 3 (color).")
