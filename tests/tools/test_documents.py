"""From packages to a prepared folder, whole."""

import json
import shutil
import subprocess

import pytest
from lab.data.text.corpora import word
from tools.debian import NUM_PAGES, extract_packages, make_packages

from data_preparation.alignment import fingerprint
from data_preparation.corpora import CORPORA
from data_preparation.documents import prepare_documents
from data_preparation.packages import read_pages
from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.data.text.document_kinds import open_documents

FILES = ["summary.json", "test.jsonl", "train.jsonl", "validation.jsonl"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    names = make_packages(folder)
    assert names == sorted(name for corpus in CORPORA for name in corpus.packages)
    return folder


@pytest.fixture(scope="module")
def prepared(packages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return folder, prepare_documents(folder, packages, list)


def all_documents(folder):
    return {
        d.name: d for s in ("train", "validation", "test") for d in open_documents(str(folder), s)
    }


def test_every_page_of_every_corpus_is_found(prepared):
    folder, result = prepared
    rows = {row.name: row for row in result.corpora}
    assert [row.counts.documents for row in result.corpora] == [NUM_PAGES] * 6
    num_sentences = sum(3 + page for page in range(NUM_PAGES))
    heading, key = NUM_PAGES, NUM_PAGES
    assert rows["libreoffice-help"].counts.segments == num_sentences + heading + key
    assert rows["gimp-help"].counts.segments == num_sentences + heading
    assert rows["debian-handbook"].counts.segments == num_sentences + heading
    assert rows["manpages"].counts.segments == num_sentences + (4 + 1 + 1) * NUM_PAGES
    assert rows["gimp-help"].num_aligned == num_sentences + heading + NUM_PAGES  # the 42s
    assert sum(c.documents for c in result.splits.values()) == 6 * NUM_PAGES
    assert sorted(file.name for file in folder.iterdir()) == FILES


def test_segments_are_aligned_and_free_of_markup(prepared):
    documents = all_documents(prepared[0])
    help_page = documents["libreoffice-help/swriter/guide/page3"].segments
    assert help_page[0] == (f"Objects {word(3)}", f"Objekte {word(3)}")
    assert help_page[-1] == (f"Press Ctrl+{word(3)}.", f"Drücken Sie Strg+{word(3)}.")
    manual = documents["manpages/man2/page3.2"].segments
    assert (
        f"The file is opened in append mode by {word(203)}().",
        f"Die Datei wird durch {word(203)}() im Anhängemodus geöffnet.",
    ) in manual
    for document in documents.values():
        for source, target in document.segments:
            if word(0)[0] in source and source.endswith("any time."):
                name = source.split()[4]
                assert target == f"Sie können einen {name} jederzeit schließen."
            assert "<" not in source + target


def test_splits_share_no_segment(prepared):
    folder, result = prepared
    splits = {s: open_documents(str(folder), s) for s in ("train", "validation", "test")}
    assert [len(splits[s]) for s in ("train", "validation", "test")] == [48, 6, 18]
    seen = {
        s: {fingerprint(t) for d in documents for pair in d.segments for t in pair}
        for s, documents in splits.items()
    }
    assert seen["train"].isdisjoint(seen["test"] | seen["validation"])
    assert seen["validation"].isdisjoint(seen["test"])
    assert result.removed["train"] > 0  # headings of manual pages


def test_the_same_packages_give_the_same_files(prepared, packages, tmp_path):
    prepare_documents(tmp_path, packages, list)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (prepared[0] / name).read_bytes()


def test_the_summary_says_what_was_made_from_what(prepared):
    summary = json.loads((prepared[0] / "summary.json").read_text())
    assert summary["languages"] == ["en", "de"]
    assert summary["packages"]["manpages-de"] == "manpages-de_1.0_all.deb"
    assert summary["splits"]["test"]["documents"] == len(open_documents(str(prepared[0]), "test"))
    assert summary["removed"] == prepared[1].removed


def test_extracted_packages_serve_too(prepared, tmp_path):
    extract_packages(tmp_path / "packages")
    for package, place in (("manpages-dev", "man2"), ("manpages-de-dev", "de/man2")):
        folder = tmp_path / "packages" / package / "usr/share/man" / place
        (folder / "another-name.2.gz").symlink_to("page1.2.gz")
    result = prepare_documents(tmp_path / "set", tmp_path / "packages", list)
    assert result == prepared[1]
    assert all_documents(tmp_path / "set") == all_documents(prepared[0])


@pytest.fixture
def zstd_package(tmp_path):
    """gimp-help-en as Ubuntu packs it."""
    extract_packages(tmp_path / "files")
    root = tmp_path / "files" / "gimp-help-en"
    (root / "DEBIAN").mkdir()
    fields = (
        "Package: gimp-help-en\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    )
    (root / "DEBIAN" / "control").write_text(fields)
    package = tmp_path / "gimp-help-en_1_all.deb"
    command = ["dpkg-deb", "-Zzstd", "--build", root, package]
    subprocess.run(command, check=True, capture_output=True)
    return package


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_zstd_packages_are_read_with_dpkg(zstd_package, monkeypatch):
    pattern = r"usr/share/gimp/[^/]*/help/en/(?P<page>[^/]*)\.html"
    assert len(read_pages(zstd_package, [pattern])[0]) == NUM_PAGES
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UnsupportedError, match="dpkg -x FILE FOLDER"):
        read_pages(zstd_package, [pattern])


def test_an_interrupted_preparation_is_not_used(prepared, packages, tmp_path, monkeypatch):
    shutil.copytree(prepared[0], tmp_path / "set")

    def stop(file, documents):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_preparation.documents.write_documents", stop)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        prepare_documents(tmp_path / "set", packages, list)
    with pytest.raises(InputError, match=r"has no summary.json: nothing was prepared there"):
        open_documents(f"documents:{tmp_path}/set", "train")


def test_damaged_packages_are_named(packages, tmp_path):
    shutil.copytree(packages, tmp_path / "packages")
    file = tmp_path / "packages" / "gimp-help-de_1.0_all.deb"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"gimp-help-de_1.0_all.deb cannot be read: .*again"):
        prepare_documents(tmp_path / "set", tmp_path / "packages", list)
    assert not (tmp_path / "set").exists()


def test_packages_with_other_content_are_refused(packages, tmp_path):
    shutil.copytree(packages, tmp_path / "packages")
    file = tmp_path / "packages" / "gimp-help-de_1.0_all.deb"
    shutil.copy(tmp_path / "packages" / "gimp-help-en_1.0_all.deb", file)
    with pytest.raises(InputError, match="gimp-help: 12 English and 0 German pages have nothing"):
        prepare_documents(tmp_path / "set", tmp_path / "packages", list)
