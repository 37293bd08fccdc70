"""``flashpoint data``: prepare and show from the command line."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from lab.data.pictures import encoded, make_folder, make_shards, make_tar
from lab.data.text.corpora import word
from limits import limited
from PIL import Image
from tools.debian import make_packages
from typer.testing import CliRunner

from data_preparation import images as preparing
from flashpoint.errors import InputError
from flashpoint.lab.cli.data import data


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))


def run(*arguments):
    """The result of the verb on a wide terminal; our errors are raised."""
    result = CliRunner().invoke(data, [str(a) for a in arguments], env={"COLUMNS": "160"})
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_show_counts_splits_classes_and_sizes():
    lines = [line.replace("│", " ").split() for line in run("show", "digits").splitlines()]
    assert ["train", "1,437", "10", "8", "x", "8", "139", "to", "147,", "median", "144"] in lines
    assert ["validation", "360", "10", "8", "x", "8", "35", "to", "37,", "median", "36"] in lines
    assert ["9", "9", "144", "36"] in lines


def test_show_one_split():
    out = run("show", "digits", "--split", "validation")
    assert "360" in out
    assert "1,437" not in out


def test_show_without_splits_says_all_and_names_what_is_broken(tmp_path):
    make_folder(tmp_path / "set", {"x": 3, "y": 2})
    (tmp_path / "set" / "x" / "0001.png").write_bytes(b"no image")
    out = run("show", tmp_path / "set")
    assert "all" in out
    assert "20 x 16" in out
    assert "1 of 5 images of all that were tried cannot be read" in out
    assert "one image of ten" in out
    assert "one image of ten" not in run("show", f"{tmp_path / 'set'}:fit")


def test_show_damaged_shards_and_many_classes(tmp_path):
    make_shards(tmp_path / "set", num_shards=8, each=10, classes=40)
    for number in range(7):
        shard = tmp_path / "set" / f"set-{number:03}.tar"
        shard.write_bytes(shard.read_bytes()[:-12_000])
    out = run("show", f"shards:{tmp_path}/set")
    assert "The 5 classes with the most images and the 5 with the fewest:" in out
    assert out.count("damaged: ") == 5
    assert "and 2 more" in out


def test_sheet_shows_images(tmp_path):
    make_folder(tmp_path / "set", {"x": 3, "y": 2})
    (tmp_path / "set" / "y" / "0004.png").write_bytes(b"no image")
    assert "sheet.png" in run("show", tmp_path / "set", "--png", tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (4 + 2 * 68, 112 + 10 * 68, 3)
    cells = [
        sheet[4 + 68 * row + 20, 112 + 68 * column + 20].tolist()
        for row in (0, 1)
        for column in range(3)
    ]
    assert cells == [
        *([0, 0, 128], [1, 0, 128], [2, 0, 128]),
        *([3, 0, 128], [220, 120, 120], [255, 255, 255]),
    ]
    assert (sheet[4:72, :112] < 128).any()  # a name is written


def test_sheet_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        run("show", "digits", "--png", tmp_path / "nowhere" / "sheet.png")


def test_wrong_places_and_splits_are_one_line(tmp_path):
    with pytest.raises(InputError, match="neither a folder nor a known set"):
        run("show", tmp_path / "nowhere")
    with pytest.raises(InputError, match="digits has no split 'dev'"):
        run("show", "digits", "--split", "dev")


def test_prepare_says_where_and_what_next(tmp_path, monkeypatch):
    known = replace(preparing.SETS["cifar10"], num_images={"train": 20, "test": 10}, means=())
    monkeypatch.setitem(preparing.SETS, "cifar10", known)
    monkeypatch.chdir(tmp_path)
    members = []
    for name, split, count in (("data_batch_1", "train", 20), ("test_batch", "test", 10)):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 1024, 3), dtype=np.uint8)
        labels = str([n % 10 for n in range(count)]).encode()
        members.append((f"package/{name}.png", encoded(Image.fromarray(pixels))))
        members.append((f"package/{split}_lables.json", labels))
    package = make_tar(tmp_path / "x.tar", members)
    out = run("prepare", "cifar10", "--from", package)
    assert "train: 20 images, complete, in data/cifar10/train.npz" in out
    assert "flashpoint data show cifar10:data/cifar10 --png cifar10.png" in out
    assert "10" in run("show", "cifar10:data/cifar10")
    run("prepare", "cifar10", "--from", package, "--to", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "test.npz").exists()


def test_prepare_images_needs_the_package():
    with pytest.raises(InputError, match=r"cifar10 needs its package: --from FILE. Get it"):
        run("prepare", "cifar10")


def test_prepare_unknown_names_are_one_line():
    with pytest.raises(InputError, match=r"'en-de-doc' is unknown. Did you mean 'en-de-docs'"):
        run("prepare", "en-de-doc")


def cells(text):
    return [line.replace("│", " ").split() for line in text.splitlines()]


def test_prepare_documents_counts_and_says_what_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_packages(tmp_path / "packages")
    out = run("prepare", "en-de-docs", "--from", tmp_path / "packages")
    lines = cells(out)
    assert "reading manpages" in out  # progress, since this is no terminal
    assert ["gimp-help", "12", "126", "114", "114"] in [line[:5] for line in lines]
    assert ["657", "14,024", "10,215", "192,000"] in lines
    assert any(line[:2] == ["test", "18"] for line in lines)
    assert "data.train and data.validation are documents:data/en-de-docs" in out
    assert "flashpoint data show documents:data/en-de-docs --pairs 10" in out
    assert (tmp_path / "data" / "en-de-docs" / "summary.json").exists()


def test_show_documents_counts_splits_and_origins_and_prints_pairs(tmp_path):
    make_packages(tmp_path / "packages")
    folder = tmp_path / "set"
    run("prepare", "en-de-docs", "--from", tmp_path / "packages", "--to", folder)
    out = run("show", f"documents:{folder}", "--pairs", 3)
    lines = cells(out)
    assert ["documents", "48", "6", "18"] in lines
    assert any(line[:1] == ["installation-guide"] for line in lines)
    assert out.count("\n  en: ") == out.count("\n  de: ") == 3
    only = run("show", folder, "--split", "test", "--languages", "de-en")
    assert ["documents", "18"] in cells(only)
    assert "de words of the longest" in only


def test_show_parallel_text_tells_what_is_left_out(tmp_path):
    (tmp_path / "t.en").write_text(f"One {word(1)}\n\nTwo\nThree\n")
    (tmp_path / "t.fr").write_text(f"Un {word(1)}\n\n\nTrois\n")
    out = run("show", f"text:{tmp_path}/t", "--languages", "en-fr")
    assert ["documents", "2"] in cells(out)
    assert "1 segments of all have no text on one side and are left out" in out
    with pytest.raises(InputError, match="--languages 'french' must be two codes"):
        run("show", f"text:{tmp_path}/t", "--languages", "french")


def test_show_tells_text_from_images_in_huggingface_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"en": "One", "de": "Eins", "document": "a"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "text")
    assert ["segments", "1"] in cells(run("show", f"hf:{tmp_path}/text"))
    with pytest.raises(InputError, match="neither a folder nor a known set"):
        run("show", f"hf:{tmp_path}/nowhere")


def run_broken(*arguments):
    """Output and lines of errors of a verb that shows what it can and ends with status 2."""
    result = CliRunner().invoke(data, [str(a) for a in arguments], env={"COLUMNS": "160"})
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    return result.stdout, result.stderr.splitlines()


TEXT = {
    "train.en": "One\nTwo\n",
    "train.de": "Eins\nZwei\n",
    "dev.en": "Six\n",
    "dev.de": "Sechs\n",
}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("dev.de", b"Sechs\nSieben\n", "validation: .*dev.en has 1 lines and .*dev.de 2: line n"),
        ("dev.en", b"\xff\n", r"validation: .*dev.en, line 1: byte 1 \(0xff\) is no UTF-8"),
        ("train.en", b"\n\n", "train: .*train holds no documents with text on both sides"),
        ("train.de", None, "train: .*train.de does not exist"),
    ],
)
def test_show_names_a_broken_split_of_text_beside_the_others(tmp_path, file, content, said):
    for name, text in TEXT.items():
        (tmp_path / name).write_text(text)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    out, lines = run_broken("show", f"text:{tmp_path}")
    assert any(row[:1] == ["segments"] for row in cells(out))
    assert len(lines) == 1
    assert re.match(f"error: {said}", lines[0])


def test_show_names_every_broken_split(tmp_path):
    for name in TEXT:
        (tmp_path / name).write_text("\n")
    (tmp_path / "dev.de").write_bytes(b"\xff")
    out, lines = run_broken("show", f"text:{tmp_path}")
    assert not out
    assert [line.split(":")[1] for line in lines] == [" train", " validation"]


def spoil_images(root, kind):
    """Shards or folders of two splits, one of them broken; gives the place and the split."""
    if kind == "shards":
        for split in ("train", "val"):
            make_shards(root, 1, 4, classes=2).joinpath("set-000.tar").rename(
                root / f"{split}.tar"
            )
        (root / "val.tar").write_bytes(b"garbage" * 1000)
        return f"shards:{root}", "validation"
    for split in ("train", "val"):
        make_folder(root / split, {"x": 2, "y": 2})
    if kind == "empty train":
        for file in (root / "train" / "x").iterdir():
            file.unlink()
        return root, "train"
    for folder in (root / "val").iterdir():
        folder.rename(root / folder.name)
    return root, "validation"


@pytest.mark.parametrize("kind", ["shards", "empty train", "empty validation"])
def test_show_names_a_broken_split_of_images_beside_the_other(tmp_path, kind):
    where, split = spoil_images(tmp_path / "set", kind)
    out, lines = run_broken("show", where)
    other = "validation" if split == "train" else "train"
    assert any(row[:1] == [other] for row in cells(out))
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {split}: ")


@pytest.mark.parametrize("kind", ["text", "images"])
def test_show_names_a_broken_split_of_a_huggingface_set(tmp_path, kind):
    datasets = pytest.importorskip("datasets")
    rows = [{"en": "One", "de": "Eins"}, {"en": "Two", "de": "Zwei"}]
    if kind == "images":
        rows = [{"image": encoded(Image.new("L", (4, 4))), "label": n} for n in range(2)]
    whole = datasets.Dataset.from_list(rows)
    if kind == "images":
        whole = whole.cast_column("image", datasets.Image())
    splits = datasets.DatasetDict(train=whole.select([]), test=whole)
    splits.save_to_disk(tmp_path / "set")
    out, lines = run_broken("show", f"hf:{tmp_path}/set")
    assert any(row[:2] in (["segments", "2"], ["validation", "2"]) for row in cells(out))
    assert len(lines) == 1
    assert re.match("error: train: .*has no rows", lines[0])


@pytest.mark.slow
def test_show_of_a_broken_split_ends_with_a_status(tmp_path):
    where, _ = spoil_images(tmp_path / "set", "shards")
    command = [sys.executable, "-m", "flashpoint", "data", "show", where]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.count("error: validation: ") == 1
    assert "Traceback" not in process.stderr
    assert "train" in process.stdout


def test_show_counts_special_files_among_images(tmp_path):
    make_folder(tmp_path / "set", {"x": 3, "y": 2})
    os.mkfifo(tmp_path / "set" / "x" / "pipe.jpg")
    with limited():
        out = run("show", tmp_path / "set")
    assert "1 of 6 images of all that were tried cannot be read" in out


def test_passages_are_counted_by_split(tmp_path):
    (tmp_path / "train.txt").write_text("one two three\n\nfour")
    (tmp_path / "test.jsonl").write_text('{"text": "a b"}\n{"text": "c d e"}\n')
    result = CliRunner().invoke(data, ["show", f"passages:{tmp_path}"])
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:4] for line in result.output.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["train", "1", "4"],
        ["test", "2", "5"],
    ]
