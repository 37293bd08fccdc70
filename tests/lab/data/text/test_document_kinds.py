"""Documents from JSON lines, prepared folders and Hugging Face datasets."""

import json

import pytest

from flashpoint.errors import InputError
from flashpoint.lab.data.text.config import DocumentConfig, PiecesConfig
from flashpoint.lab.data.text.document_kinds import names_documents, open_both, open_documents
from flashpoint.lab.data.text.documents import Document
from flashpoint.lab.data.text.prepared import write_documents

TWO = [("x", (("A", "a"), ("B", "b"))), ("y", (("C", "c"),))]


def opened(where, split="train", languages=("en", "de")):
    return [(d.name, d.segments) for d in open_documents(str(where), split, languages)]


def write_lines(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_prepared(folder, **splits):
    folder.mkdir(exist_ok=True)
    for name, documents in splits.items():
        write_documents(folder / f"{name}.jsonl", documents)
    (folder / "summary.json").write_text('{"languages": ["en", "de"]}')
    return folder


def test_a_document_a_line(tmp_path):
    write_lines(
        tmp_path / "t.jsonl",
        {"name": "x", "origin": "o", "segments": [["A", "a"], ["B", "b"], ["", "empty"]]},
        {"name": "y", "segments": [["C", "c"]]},
    )
    assert opened(f"jsonl:{tmp_path}/t.jsonl") == TWO
    documents = open_documents(f"jsonl:{tmp_path}/t.jsonl", "train")
    assert (documents[0].origin, documents.num_left_out) == ("o", 1)


@pytest.mark.parametrize(
    "row",
    [
        lambda s, t, d: {"en": s, "de": t, "document": d},
        lambda s, t, d: {"source": s, "target": t, "doc_id": d, "score": 1},
        lambda s, t, d: {"translation": {"en": s, "de": t, "fr": ""}, "docid": d},
    ],
    ids=["languages", "sides", "translation"],
)
def test_a_segment_a_line_wherever_it_stands(tmp_path, row):
    rows = (row("A", "a", "x"), row("C", "c", "y"), row("B", "b", "x"))
    write_lines(tmp_path / "train.jsonl", *rows)
    assert opened(f"jsonl:{tmp_path}") == TWO


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"en": "A"', "line 2 cannot be read: "),
        ("[1]", r"line 2: it must hold a section, not \[1\]"),
        ('{"en": "A", "fr": "a"}', "line 2 has the fields en, fr; needed are en and de"),
        ('{"en": "A", "de": 3}', "line 2: de is 3, not a text"),
        ('{"segments": {}}', "line 2: segments is {}, not a list"),
        ('{"segments": [["A", "a"], "Aa"]}', "line 2: a segment is 'Aa', not two texts"),
        ('{"segments": [["A", null]]}', r"line 2: a segment is \['A', None\], not two texts"),
        ('{"translation": "A"}', "line 2: translation is 'A', not a text by language"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line, message):
    (tmp_path / "t.jsonl").write_text('{"en": "A", "de": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=f"t.jsonl, {message}"):
        opened(f"jsonl:{tmp_path}/t.jsonl")


def test_missing_files_and_splits_are_named(tmp_path):
    with pytest.raises(InputError, match=r"t.jsonl cannot be read: No such file"):
        opened(f"jsonl:{tmp_path}/t.jsonl")
    write_lines(tmp_path / "train.jsonl", {"en": "A", "de": "a"})
    with pytest.raises(InputError, match=r"has no split 'validation'.*It has: train"):
        opened(f"jsonl:{tmp_path}", "validation")
    place = open_documents(f"jsonl:{tmp_path}", "train").name
    assert opened(place, "validation") == opened(f"jsonl:{tmp_path}")  # as messages name it


def test_prepared_folders_come_back_in_both_directions(tmp_path):
    documents = [Document(name, "o", segments) for name, segments in TWO]
    folder = make_prepared(tmp_path / "set", train=documents, test=documents[:1])
    assert opened(folder) == opened(f"documents:{folder}") == TWO
    assert list(open_documents(str(folder), "train")) == documents
    assert opened(f"documents:{folder}:test", "train") == TWO[:1]
    assert opened(folder, "validation") == TWO[:1]
    assert opened(folder, languages=("de", "en"))[1] == ("y", (("c", "C"),))
    with pytest.raises(InputError, match="holds en-de, not en-fr"):
        opened(folder, languages=("en", "fr"))
    (folder / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary.json cannot be read: .* Prepare it again"):
        opened(folder)


@pytest.fixture
def datasets():
    """The library, where it is installed."""
    return pytest.importorskip("datasets")


def make_dataset(datasets, rows, features=None):
    return datasets.Dataset.from_list(rows, features=features)


def test_huggingface_translation_feature(tmp_path, datasets):
    languages = datasets.Translation(languages=["en", "de"])
    features = datasets.Features({"translation": languages, "doc_id": datasets.Value("int64")})
    rows = [
        {"translation": {"en": s, "de": t}, "doc_id": d}
        for s, t, d in (("A", "a", 1), ("B", "b", 1), ("C", "c", 2))
    ]
    data = datasets.DatasetDict(
        train=make_dataset(datasets, rows, features),
        test=make_dataset(datasets, rows[:1], features),
    )
    data.save_to_disk(tmp_path / "set")
    assert [segments for _, segments in opened(f"hf:{tmp_path}/set")] == [s for _, s in TWO]
    assert opened(f"hf:{tmp_path}/set", "validation") == [("1", (("A", "a"),))]
    assert opened(f"hf:{tmp_path}/set:test") == [("1", (("A", "a"),))]
    assert names_documents(f"hf:{tmp_path}/set")
    assert names_documents(f"hf:{tmp_path}/set:test")


def test_huggingface_two_columns_and_errors(tmp_path, datasets):
    rows = [{"source": s, "target": t, "document": d} for d, ps in TWO for s, t in ps]
    make_dataset(datasets, rows).save_to_disk(tmp_path / "set")
    assert opened(f"hf:{tmp_path}/set") == TWO
    with pytest.raises(InputError, match=r"one dataset without splits. Leave 'dev' out"):
        opened(f"hf:{tmp_path}/set", "dev")
    make_dataset(datasets, [{"en": "A", "text": "a"}]).save_to_disk(tmp_path / "wrong")
    with pytest.raises(InputError, match="has the fields en, text; needed are en and de"):
        opened(f"hf:{tmp_path}/wrong")
    make_dataset(datasets, [{"en": "A", "de": "a"}, {"en": "B", "de": None}]).save_to_disk(
        tmp_path / "none"
    )
    with pytest.raises(InputError, match="none, row 1: de is None, not a text"):
        opened(f"hf:{tmp_path}/none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty is no Hugging Face dataset on disk"):
        opened(f"hf:{tmp_path}/empty")


def test_what_names_documents(tmp_path):
    make_prepared(tmp_path / "set", train=[Document("x", "", (("A", "a"),))])
    assert names_documents(str(tmp_path / "set"))
    assert names_documents("text:anything")
    for other in (str(tmp_path), "digits", f"hf:{tmp_path}", "hf:/nowhere", "shards:x"):
        assert not names_documents(other)


def test_unknown_kinds_and_places_are_one_line(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'documents'"):
        opened("document:set")
    with pytest.raises(InputError, match=r"nowhere is no folder\. .*data prepare en-de-docs"):
        opened(f"documents:{tmp_path}/nowhere")


def test_training_and_validation_must_differ(tmp_path):
    document = Document("x", "", (("A", "a"),))
    folder = make_prepared(tmp_path / "set", train=[document], validation=[document])
    train, validation = open_both(DocumentConfig(train=str(folder), validation=str(folder)))
    assert (train.name, validation.name) == tuple(
        f"documents:{folder}:{name}" for name in ("train", "validation")
    )
    write_lines(tmp_path / "t.jsonl", {"en": "A", "de": "a"})
    same = f"jsonl:{tmp_path}/t.jsonl"
    with pytest.raises(InputError, match="are the same documents: there are no splits"):
        open_both(DocumentConfig(train=same, validation=same))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 8}, "data.length=8 must be a whole number from 16 to 65,536"),
        (
            {"resolutions": 0},
            "data.resolutions=0 must be a whole number from 1 to",
        ),
        (
            {"resolutions": 4, "length": 127},
            r"=4 must lie in \[1, 3\]: data.length=127 can be halved 2 times down to 16 tokens",
        ),
        ({"source": "de"}, "data.source='de' and data.target='de' must differ"),
        ({"samples": "lines"}, "data.samples='lines' is unknown. Known: documents, segments"),
        (
            {"samples": "segments", "resolutions": 2},
            "data.resolutions=2 cuts documents, but data.samples='segments'",
        ),
    ],
)
def test_configs_are_checked(changes, message):
    with pytest.raises(InputError, match=message):
        DocumentConfig(train="a", validation="b", **changes)


def test_piece_configs_are_checked():
    with pytest.raises(InputError, match=r"kind='bpee' is unknown. Did you mean 'bpe'"):
        PiecesConfig(kind="bpee")
    with pytest.raises(InputError, match=r"data.pieces.vocabulary_size=10 must be"):
        PiecesConfig(vocabulary_size=10)
