"""Images made by kernels are those that workers make, bit for bit."""

import io
import itertools

import numpy as np
import pytest
import torch
from implementations import HAS_TRITON, device_of, needs_gpu
from lab.data.pictures import config, encoded, make_tar, noise, second_without_waiting
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.data import device_images, stream
from flashpoint.lab.data.batches import EvalBatches, TrainBatches
from flashpoint.lab.data.config import AugmentationConfig
from flashpoint.lab.data.cuts import MAX_AREA, Cutter, pack
from flashpoint.lab.data.decode import to_pixels
from flashpoint.lab.data.device_images import (
    PART,
    ImageMaker,
    are_made_on,
    files_on_gpu,
    split,
)
from flashpoint.lab.data.drawn_operations import draw_operations
from flashpoint.lab.data.gpu_decoding import GpuDecoder, can_decode
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.randaug import OPERATIONS
from flashpoint.lab.data.transforms import Augmenter, Viewer

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")

DEVICE = device_of("triton")
SIZE = 12
WIDE = [(28, 20), (13, 12), (12, 12), (25, 6), (7, 1), (90, 60), (22, 22)]
"""Pillow resizes rows first, of any version; of high images since 13 columns may be first."""
HIGH = [(30, 40), (6, 25), (1, 7), (20, 90)]


def made(transform, images):
    """Levels by the kernels, and those that a worker would make."""
    cuts = pack([Cutter(transform).cut(image, i) for i, image in enumerate(images)], SIZE)
    augmentation = transform.config if isinstance(transform, Augmenter) else None
    got, _ = ImageMaker(SIZE, augmentation, DEVICE).levels([cuts])
    want = np.stack([transform(image, i) for i, image in enumerate(images)])
    return got.cpu().numpy().astype(int), want.astype(int), cuts


def inception(**changes):
    settings = AugmentationConfig(crop="inception", flip=True, **changes)
    return Augmenter(settings, "crop", SIZE, 3, seed=0)


@pytest.mark.parametrize(
    "transform", [inception(), Viewer("crop", SIZE, 3)], ids=["train", "view"]
)
def test_resized_images_are_those_of_pillow(transform):
    got, want, cuts = made(transform, [noise(size, i) for i, size in enumerate(WIDE)])
    assert (got == want).all()
    assert cuts.most_rows > SIZE


def test_high_images_differ_by_one_level_at_most():
    got, want, _ = made(inception(), [noise(size, i) for i, size in enumerate(HIGH)])
    assert abs(got - want).max() <= 1


def test_gray_images_become_color():
    got, want, _ = made(inception(), [noise((40, 30), 1, "L")])
    assert (got == want).all()


def test_large_parts_are_resized_by_the_worker():
    large = noise((200, 150), 3)
    got, want, cuts = made(Viewer("whole", SIZE, 3), [large])
    assert (got == want).all()
    assert len(cuts.content) == 3 * SIZE * SIZE
    assert MAX_AREA * SIZE * SIZE < 200 * 150


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("magnitude", [3.3, 15.0])
def test_operations_are_those_of_pillow(name, magnitude, monkeypatch):
    transform = inception(randaug_ops=1, randaug_magnitude=magnitude)
    flat = Image.new("RGB", (20, 16), (90, 20, 200))
    few = noise((20, 16), 5).point(lambda level: level // 100 * 60 + 40)
    images = [noise((20, 16), 4), few, flat]
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Fixed(name, seed))
    got, want, cuts = made(transform, images)
    assert cuts.operations.shape == (1, 3, 4)
    assert (got == want).all()


class Fixed(np.random.Generator):
    """Random numbers, but the operation is always the same one."""

    def __init__(self, name, seed):
        super().__init__(np.random.PCG64(seed))
        self._choice = list(OPERATIONS).index(name)

    def integers(self, high, size=None):
        drawn = super().integers(high, size=size)
        return drawn if size is None else np.full_like(drawn, self._choice)


def test_operations_are_drawn_as_randaug_draws_them():
    transform = inception(randaug_ops=2, randaug_magnitude=15.0)
    got, want, cuts = made(transform, [noise((40, 30), i) for i in range(24)])
    assert (got == want).all()
    assert len(set(cuts.operations[:, :, 0].flatten().tolist())) > 4
    assert len(draw_operations(np.random.default_rng(0), 0, SIZE)) == 0


def test_mixup_in_one_launch_has_the_same_bits():
    from flashpoint.lab.data.gpu.mix import launch_mix

    own, before = torch.randn(3, 2, 5, 7, device=DEVICE), torch.randn(1, 2, 5, 7, device=DEVICE)
    want = 0.7 * own + (1.0 - 0.7) * torch.cat((before, own[:-1]))
    assert torch.equal(launch_mix(own, before, 0.7), want)


def test_parts_are_even_and_keep_the_order():
    slots = [(i, i) for i in range(2 * PART + 1)]
    parts = split(slots)
    assert list(itertools.chain(*parts)) == slots
    assert {len(part) for part in parts} <= {len(slots) // 3, len(slots) // 3 + 1}


def test_gpus_make_color_images_whose_crop_is_a_resize():
    gpu = torch.device("cuda")
    asked = {"decode": "auto"}
    assert are_made_on(gpu, config(**asked))
    assert are_made_on(gpu, config(augmentation={"crop": "inception"}, **asked))
    assert not are_made_on(gpu, config())
    assert not are_made_on(gpu, config(augmentation={"crop": "pad"}, **asked))
    assert not are_made_on(gpu, config(channels=1, **asked))
    assert not are_made_on(torch.device("cpu"), config(**asked))


def shards(folder, count=20, broken=()):
    """One shard of noise; gives the words of a config."""
    members = []
    for i in range(count):
        content = b"no image" if i in broken else encoded(noise((20, 16), i))
        members += [(f"{i:03}.png", content), (f"{i:03}.cls", str(i % 3).encode())]
    make_tar(folder / "set.tar", members)
    return f"shards:{folder}/set.tar"


@pytest.fixture
def kernels_everywhere(monkeypatch):
    """Without a GPU the path of a GPU runs in Triton's interpreter."""
    monkeypatch.setattr(stream, "are_made_on", lambda device, config: True)
    monkeypatch.setattr(device_images, "PART", 3)
    monkeypatch.setattr(device_images, "TOGETHER", 2)  # of the three parts of 8 images


AUGMENTED = {"crop": "inception", "flip": True, "randaug_ops": 1, "randaug_magnitude": 10.0}


def first_batches(source, settings, steps, start=0):
    batches = TrainBatches(source, settings, batch_size=8, seed=3, device=DEVICE)
    found = list(itertools.islice(batches.iterate(start), steps))
    return [(batch.images.cpu(), batch.labels.cpu()) for batch in found], batches


def test_batches_are_the_same_either_way_also_after_a_break(tmp_path, monkeypatch):
    settings = config(shards(tmp_path), augmentation=AUGMENTED)
    source = open_source(settings.train, "train")
    monkeypatch.setattr(stream, "are_made_on", lambda device, config: False)
    plain, _ = first_batches(source, settings, 3)
    monkeypatch.setattr(stream, "are_made_on", lambda device, config: True)
    monkeypatch.setattr(device_images, "PART", 3)
    got, _ = first_batches(source, settings, 3)
    later, _ = first_batches(source, settings, 1, start=2)
    for (images, labels), (others, theirs) in zip([*got, *later], [*plain, plain[2]], strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, theirs)


@pytest.mark.usefixtures("kernels_everywhere")
def test_broken_images_are_replaced_and_counted(tmp_path):
    settings = config(
        shards(tmp_path, broken=(2, 7)), augmentation=AUGMENTED, max_broken_share=1.0
    )
    (batch, *_), batches = first_batches(open_source(settings.train, "train"), settings, 3)
    assert len(batch[0]) == 8
    assert batches.num_broken >= 2
    assert len(batches.broken) == 2


@pytest.mark.usefixtures("kernels_everywhere")
def test_validation_leaves_broken_images_out(tmp_path):
    settings = config(shards(tmp_path, 7, broken=(0, 5)), max_broken_share=1.0)
    source = open_source(settings.train, "train")
    batches = EvalBatches(source, settings, batch_size=4, device=DEVICE)
    for _ in range(2):
        found = list(batches.iterate())
        assert [len(batch.images) for batch in found] == [2, 3]
        assert torch.cat([batch.labels for batch in found]).tolist() == [1, 2, 0, 1, 0]
    assert len(batches.broken) == 2


class HostDecoder:
    """As the GPU's, by Pillow; refuses all files at once if one of them is odd."""

    device = torch.device(DEVICE)

    def __call__(self, files):
        if any(file[-3] == 77 for file in files):
            raise RuntimeError("one of them is odd")
        contents = (io.BytesIO(file.numpy().tobytes()) for file in files)
        pixels = (to_pixels(Image.open(content), 3) for content in contents)
        return [torch.from_numpy(each).to(DEVICE) for each in pixels]

    def keep(self, images):
        pass


@pytest.fixture
def files_too(kernels_everywhere, monkeypatch):
    """The GPU's part of decoding, without one."""
    monkeypatch.setattr(stream, "files_on_gpu", lambda config, device: 3)
    made = ImageMaker.__init__

    def make(self, *arguments):
        made(self, *arguments)
        self._decoder = HostDecoder()

    monkeypatch.setattr(ImageMaker, "__init__", make)


def jpegs(folder, count=20, end=b""):
    members = []
    for i in range(count):
        content = encoded(noise((20, 16), i), "JPEG") + end
        members += [(f"{i:03}.jpg", content), (f"{i:03}.cls", str(i % 3).encode())]
    make_tar(folder / "set.tar", members)
    return f"shards:{folder}/set.tar"


@pytest.mark.usefixtures("files_too")
def test_files_that_the_gpu_decodes_become_the_same_images(tmp_path, monkeypatch):
    settings = config(jpegs(tmp_path), augmentation=AUGMENTED)
    source = open_source(settings.train, "train")
    mixed, _ = first_batches(source, settings, 2)
    monkeypatch.setattr(stream, "files_on_gpu", lambda config, device: 0)
    plain, _ = first_batches(source, settings, 2)
    for (images, _), (others, _) in zip(mixed, plain, strict=True):
        assert torch.equal(images, others)


@pytest.mark.usefixtures("files_too")
def test_files_that_the_gpu_refuses_are_decoded_otherwise(tmp_path, monkeypatch):
    odd = bytes([77, 0, 0])  # behind the end of the file
    settings = config(jpegs(tmp_path, end=odd), augmentation=AUGMENTED)
    source = open_source(settings.train, "train")
    mixed, batches = first_batches(source, settings, 2)
    assert batches.num_broken == 0
    monkeypatch.setattr(stream, "files_on_gpu", lambda config, device: 0)
    plain, _ = first_batches(source, settings, 2)
    for (images, _), (others, _) in zip(mixed, plain, strict=True):
        assert torch.equal(images, others)


def test_files_that_nobody_reads_are_gray_and_named_by_their_places(tmp_path):
    """One of six files, in the second of two parts; the others are found by halves."""
    source = open_source(jpegs(tmp_path), "train")
    cutter = Cutter(inception(), files=5)
    cuts = [cutter(source, i, i)[0] for i in range(6)]
    broken = cuts[4]._replace(content=cuts[4].content[:40] + bytes([77, 0, 0]))
    maker = ImageMaker(SIZE, None, torch.device(DEVICE))
    maker._decoder = HostDecoder()
    whole, lost = maker.levels([pack(cuts, SIZE)])
    assert lost == {}
    some, lost = maker.levels([pack(cuts[:3], SIZE), pack([cuts[3], broken, cuts[5]], SIZE)])
    assert list(lost) == [4]
    are_equal = [torch.equal(x, y) for x, y in zip(some, whole, strict=True)]
    assert are_equal == [True, True, True, True, False, True]
    assert (some[4] == some[4, 0, 0, 0]).all()


def test_memory_is_counted_where_the_gpu_makes_images(tmp_path):
    """The next batch and the last as fp32, and what is made at once, 1,024 images at most."""
    where = shards(tmp_path)
    source = open_source(where, "train")
    ahead = {}
    for decode, count in (("cpu", 64), ("auto", 64), ("auto", 1024), ("auto", 2048)):
        settings = config(where, decode=decode)
        batches = TrainBatches(source, settings, batch_size=count, seed=0, device="cuda")
        ahead[decode, count] = batches.bytes_ahead(count) - 8 * count * 3 * settings.image_size**2
    assert ahead["cpu", 64] == 0
    assert ahead["auto", 1024] == 16 * ahead["auto", 64] == ahead["auto", 2048] > 0


def test_some_files_are_for_the_gpu_and_all_others_not(tmp_path):
    source = open_source(jpegs(tmp_path), "train")
    cutter = Cutter(inception(), files=3)
    are_files = [cutter(source, 4, position)[0].is_file for position in range(10)]
    assert are_files == [True, True, True, False, False] * 2
    (folder := tmp_path / "png").mkdir()
    assert not cutter(open_source(shards(folder), "train"), 4, 0)[0].is_file


def test_decoding_that_is_named_is_done_or_refused():
    cpu = torch.device("cpu")
    assert files_on_gpu(config(decode="auto"), cpu) == 0
    assert files_on_gpu(config(decode="cpu"), cpu) == 0
    with pytest.raises(InputError, match=r"data\.decode='gpu' needs nvJPEG"):
        files_on_gpu(config(decode="gpu"), cpu)


@needs_gpu
def test_gpu_decodes_as_pillow_within_some_levels(tmp_path):
    if not can_decode(torch.device("cuda", 0)):
        pytest.skip("torchvision has no nvJPEG")
    datasets = pytest.importorskip("sklearn.datasets")
    photograph = Image.fromarray(datasets.load_sample_image("china.jpg"))
    file = torch.frombuffer(bytearray(encoded(photograph, "JPEG")), dtype=torch.uint8)
    want = to_pixels(Image.open(io.BytesIO(file.numpy().tobytes())), 3).astype(int)
    got = GpuDecoder(torch.device("cuda", 0))([file])[0].cpu().numpy().astype(int)
    assert abs(got - want).mean() < 2.0
    assert np.percentile(abs(got - want), 99) <= 16


@needs_gpu
def test_batches_that_the_gpu_decodes_are_the_same_again(tmp_path):
    settings = config(jpegs(tmp_path), augmentation=AUGMENTED, workers=2, decode="auto")
    source = open_source(settings.train, "train")
    first, _ = first_batches(source, settings, 3)
    later, _ = first_batches(source, settings, 1, start=2)
    assert torch.equal(first[2][0], later[0][0])


@needs_gpu
def test_host_does_not_wait_for_the_gpu(tmp_path):
    settings = config(shards(tmp_path), augmentation=AUGMENTED, workers=1, decode="auto")
    batches = TrainBatches(
        open_source(settings.train, "train"), settings, batch_size=8, seed=3, device="cuda"
    )
    assert second_without_waiting(batches.iterate()).images.is_cuda
