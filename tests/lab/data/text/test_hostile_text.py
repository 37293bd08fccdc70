"""Text that is no text: other bytes, other types, other kinds of files; one line for each."""

import json

import broken_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import answer, limited

from flashpoint.errors import InputError
from flashpoint.lab.data.labels import read_class_list
from flashpoint.lab.data.text.document_kinds import open_documents
from flashpoint.lab.data.text.documents import Document
from flashpoint.lab.data.text.prepared import write_documents

SEGMENTS = {"name": "a", "origin": "o", "segments": [["Yes", "Ja"], ["No", "Nein"]]}
SUMMARY = {"name": "en-de-docs", "languages": ["en", "de"], "seed": 0}


def one_line_or_documents(where):
    """Whatever opens can be encoded, as tokens are."""
    documents, said = answer(lambda: open_documents(where, "train"))
    for text in documents.texts() if documents else ():
        text.encode()
    return said


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    broken_files.broken(SEGMENTS)
    | broken_files.broken({"en": "Yes", "de": "Ja", "document": "a"})
    | broken_files.broken({"translation": {"en": "Yes", "de": "Ja"}, "doc_id": 3})
)
def test_any_json_line_is_documents_or_one_line(tmp_path_factory, line):
    file = tmp_path_factory.mktemp("text") / "train.jsonl"
    file.write_bytes(json.dumps(SEGMENTS).encode() + b"\n" + line + b"\n")
    one_line_or_documents(f"jsonl:{file}")


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(broken_files.broken(SUMMARY))
def test_any_summary_is_read_or_one_line(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder / "train.jsonl", [Document("a", "o", (("Yes", "Ja"),))])
    (folder / "summary.json").write_bytes(content)
    said = one_line_or_documents(f"documents:{folder}")
    assert not said or "summary.json" in said or "not en-de" in said


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=60), st.binary(max_size=60), st.none() | st.binary(max_size=20))
def test_any_bytes_are_parallel_text_or_one_line(tmp_path_factory, source, target, documents):
    folder = tmp_path_factory.mktemp("text")
    (folder / "t.en").write_bytes(source)
    (folder / "t.de").write_bytes(target)
    if documents is not None:
        (folder / "t.docs").write_bytes(documents)
    one_line_or_documents(f"text:{folder}/t")


@pytest.mark.parametrize(
    "put", [broken_files.put_fifo, broken_files.put_folder, broken_files.put_socket]
)
@pytest.mark.parametrize("place", ["jsonl:{}/t.jsonl", "text:{}/t.tsv", "text:{0}/t.en,{0}/t.de"])
def test_special_files_are_one_line(tmp_path, put, place):
    (tmp_path / "t.jsonl").write_text(json.dumps(SEGMENTS))
    (tmp_path / "t.tsv").write_text("Yes\tJa\n")
    (tmp_path / "t.en").write_text("Yes\n")
    (tmp_path / "t.de").write_text("Ja\n")
    where = place.format(tmp_path)
    assert one_line_or_documents(where) == ""
    put(tmp_path / where.rpartition("/")[2])
    said = one_line_or_documents(where)
    assert "no plain file" in said or "has no split" in said or "cannot be read" in said


@pytest.mark.parametrize("put", broken_files.NO_FILES)
def test_class_list_that_is_no_file_is_one_line(tmp_path, put):
    file = tmp_path / "classes.txt"
    file.write_text("a\nb\n")
    assert read_class_list(file) == ["a", "b"]
    put(file)
    with limited(), pytest.raises(InputError, match=r"^the class list .*classes\.txt "):
        read_class_list(file)


@pytest.mark.parametrize(
    "place", ["2-64,99999999999", "2,10000001", "9" * 5000, f"2,{'9' * 5000}"]
)
def test_generated_sets_of_any_size_are_one_line(place):
    with limited(), pytest.raises(InputError, match="recall"):
        open_documents(f"recall:{place}", "train")
