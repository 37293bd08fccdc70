"""Passages: folders as users have them, and what is made up."""

import json

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.data.text.passages import (
    LONGEST_LINE,
    Passage,
    Passages,
    open_passages,
    split_off,
)


def texts(where, split="train"):
    return [passage.text for passage in open_passages(str(where), split).passages]


def write(folder, **files):
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_files_named_by_splits(tmp_path):
    lines = [json.dumps({"text": "one\n\ntwo"}), "", json.dumps({"name": "b", "text": " "})]
    write(tmp_path, train_jsonl="\n".join(lines), val_txt="other\ntext\n")
    assert texts(tmp_path) == ["one\n\ntwo"]  # what is empty is left out
    assert texts(f"passages:{tmp_path}", "validation") == ["other\ntext"]
    assert texts(f"passages:{tmp_path}:val") == ["other\ntext"]
    found = open_passages(str(tmp_path), "train")
    assert (found.num_texts, list(found.texts())) == (3, ["one", "", "two"])
    assert found.pieces_file is None


def test_folders_named_by_splits_are_searched_to_their_depths(tmp_path):
    write(tmp_path, train__a_txt="a", train__deep__b_txt="b", test__c_txt="c", train__no_md="d")
    assert texts(tmp_path) == ["a", "b"]
    assert texts(tmp_path, "validation") == ["c"]
    assert open_passages(str(tmp_path), "test").name == f"passages:{tmp_path}:test"


def test_a_folder_without_splits_is_split_by_file_always_alike(tmp_path):
    for number in range(45):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    found = {split: texts(tmp_path, split) for split in ("train", "validation", "test")}
    assert [len(found[split]) for split in found] == [39, 3, 3]
    assert len({text for part in found.values() for text in part}) == 45
    (tmp_path / "more.md").write_text("no passage")
    assert texts(tmp_path, "test") == found["test"]


def test_pieces_that_lie_with_passages_are_named(tmp_path):
    write(tmp_path, train_txt="a", test_txt="b", pieces_model="x")
    assert open_passages(str(tmp_path), "train").pieces_file == tmp_path / "pieces.model"


def test_made_up_passages_are_the_same_every_time_and_differ_by_split():
    assert texts("words:20") == texts("words:20")
    assert (len(texts("words:20")), len(texts("words:20", "test"))) == (20, 2)
    assert not set(texts("words:20")) & set(texts("words:20", "test"))


def test_long_lines_are_cut_at_spaces_for_pieces():
    """SentencePiece would leave them out."""
    line = "word " * 20_000 + "x" * 10_000
    passages = Passages("one", [Passage("a", f"short\n{line}")])
    parts = list(passages.texts())
    assert parts[0] == "short"
    assert "".join(parts[1:]) == line
    assert max(map(len, parts)) <= LONGEST_LINE
    assert all(part.startswith(" word") for part in parts[2:20])
    assert passages.num_texts == len(parts)


def test_tests_are_of_the_same_folder_as_the_validation(tmp_path):
    write(tmp_path, train_txt="a", validation_txt="b", test_txt="c")
    assert texts(split_off(f"passages:{tmp_path}:validation"), "test") == ["c"]
    assert texts(split_off(str(tmp_path)), "test") == ["c"]


BROKEN = {
    "no folder": ({}, "nowhere", "is no folder of passages"),
    "typo": ({}, "passage:x", "Did you mean 'passages'"),
    "no place": ({}, "passages:", "needs a place: passages:DIR"),
    "words": ({}, "words:many", r"must name how many passages.*1 to 100,000"),
    "none": ({"train_txt": "x", "val__a_md": "x"}, "", r"holds no .jsonl or .txt files.*a.md"),
    "few": ({"a_txt": "x", "b_txt": "y"}, "", "has 2 files of .* too few to split"),
    "two": ({"train_txt": "x", "train_jsonl": "{}"}, "", "has train.jsonl and train.txt. Keep"),
    "split": ({"train_txt": "x"}, "", "has no split 'validation'. It has: train"),
    "empty": ({"train_txt": "x", "val_txt": "\n"}, "", "holds no passages with text"),
    "field": ({"train_txt": "x", "val_jsonl": '{"txt": "a"}'}, "", "line 1: text is None.*txt"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_said_in_a_line(tmp_path, case):
    files, place, said = BROKEN[case]
    write(tmp_path, **files)
    with pytest.raises(InputError, match=said) as caught:
        open_passages(place or str(tmp_path), "validation")
    assert "\n" not in str(caught.value)
