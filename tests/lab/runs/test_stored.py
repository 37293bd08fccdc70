"""Stored files: valid ones come back as they are, any other is one line."""

import errno
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import broken_files
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.errors import InputError
from flashpoint.lab.runs.stored import (
    MAX_DEPTH,
    exists,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_json_lines,
    read_yaml,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A closed section."""

    name: str
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A shape of everything that a schema can hold."""

    steps: int
    loss: float | None
    numbers: dict[str, int | float]
    pair: tuple[int, int]
    names: list[str]
    inner: Inner
    rest: dict[str, Any] = field(default_factory=dict)


class Line(TypedDict):
    """An open shape."""

    kind: str
    step: int
    loss: NotRequired[float | None]


VALID = {
    "steps": 3,
    "loss": 0.5,
    "numbers": {"top1": 0.25, "count": 7},
    "pair": [1, 2],
    "names": ["one", "two"],
    "inner": {"name": "x", "kind": "b"},
    "rest": {"any": [1, {"thing": None}]},
}


def one_line(error, file):
    assert str(error).startswith(str(file))
    assert "\n" not in str(error)
    assert len(str(error)) < 600


def test_valid_file_comes_back_unchanged(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(VALID))
    found = read_json(file, Closed)
    assert found.numbers == VALID["numbers"]
    assert [type(value) for value in found.numbers.values()] == [float, int]
    assert found.pair == (1, 2)
    assert found.inner == Inner(name="x", kind="b")
    assert found.rest == VALID["rest"]
    assert read_json(file, dict[str, Any]) == VALID


@given(content=broken_files.broken(VALID))
@settings(max_examples=400, deadline=None)
def test_broken_json_is_one_line_or_has_the_shape(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "broken.json"
    file.write_bytes(content)
    try:
        found = read_json(file, Closed)
    except InputError as error:
        one_line(error, file)
        return
    assert isinstance(found.steps, int)
    assert found.loss is None or abs(found.loss) < float("inf")
    assert all(isinstance(value, int | float) for value in found.numbers.values())
    assert isinstance(found.inner, Inner)


@given(content=broken_files.broken({"kind": "train", "step": 1, "loss": 0.5, "other": [1]}))
@settings(max_examples=300, deadline=None)
def test_broken_line_is_named_and_a_half_one_left_out(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "broken.jsonl"
    whole = b'{"kind": "train", "step": 0}\n'
    file.write_bytes(whole + content)
    try:
        found = read_json_lines(file, Line)
    except InputError as error:
        one_line(error, f"{file}, line ")
    else:
        assert found[0] == {"kind": "train", "step": 0}
        assert all(type(line["step"]) is int for line in found)
    file.write_bytes(content.replace(b"\n", b"") + b"\n" + whole)
    try:
        found = read_json_lines(file, Line)
    except InputError as error:
        one_line(error, f"{file}, line 1")
    else:
        assert len(found) == 2


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        (("steps",), "ten", "steps='ten' must be a whole number."),
        (("steps",), 3.0, "steps=3.0 must be a whole number."),
        (("steps",), True, "steps=True must be a whole number."),
        (("steps",), ..., "steps is missing."),
        (("loss",), "0.5", "loss='0.5' must be null or a number."),
        (("steps",), float("nan"), "steps=None must be a whole number."),
        (("numbers", "top1"), None, "numbers.top1=None must be a whole number or a number."),
        (("numbers",), [], "numbers=[] must be a section."),
        (("pair", 1), "x", "pair[1]='x' must be a whole number."),
        (("names",), "one", "names='one' must be a list of values, each text."),
        (("inner", "kind"), "c", "inner.kind='c' must be 'a' or 'b'."),
        (("inner",), 3, "inner must be a section, not 3."),
        (("inner", "nmae"), 3, "inner.nmae is unknown. Did you mean 'inner.name'? Known: "),
        ((), [1], "it must hold a section, not [1]."),
    ],
)
def test_message_names_the_field_and_what_was_found(path, new, message):
    text = json.dumps(broken_files.replaced(VALID, path, new))
    with pytest.raises(InputError) as error:
        parse_json(text, Closed, "a.json")
    assert str(error.value).startswith(f"a.json: {message}")


@pytest.mark.parametrize("put", broken_files.NO_FILES)
@pytest.mark.parametrize("read", [lambda file: read_json(file, Closed, "Do."), read_yaml])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path, put, read):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(VALID))
    put(file)
    start = time.monotonic()
    with pytest.raises(InputError) as error:
        read(file)
    one_line(error.value, file)
    assert time.monotonic() - start < 5


def test_missing_file_is_refused_and_does_not_exist(tmp_path):
    file = tmp_path / "a.json"
    assert not exists(file)
    assert not exists(file / "b")
    with pytest.raises(
        InputError, match=r"a\.json cannot be read: No such file or directory\. Do"
    ):
        read_json(file, Closed, "Do this.")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_unreadable_file_is_refused(tmp_path, monkeypatch, error):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(VALID))
    broken_files.unreadable(monkeypatch, error, "a.json")
    with pytest.raises(InputError, match=r"a\.json cannot be read: "):
        read_json(file, Closed)


def test_folder_that_may_not_be_searched_is_no_missing_file(monkeypatch):
    def stat(self, **_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        exists(Path("a/b"))


def test_nul_in_a_path_is_refused():
    for read in (exists, read_bytes):
        with pytest.raises(InputError, match="cannot be read: "):
            read(Path("a\0b"))


def test_number_that_is_not_finite_is_null():
    assert parse_json("[NaN, Infinity, -Infinity, 1]", list[int | None], "a") == [None] * 3 + [1]
    with pytest.raises(InputError, match=r"a: \[0\]=inf must be a number"):
        parse_json("[1e999]", list[float], "a")


def test_depth_is_counted_exactly():
    parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, Any, "a")
    for depth in (MAX_DEPTH + 1, 900, 3_000, 100_000):
        with pytest.raises(InputError, match="a is nested more than 50 deep"):
            parse_json("[" * depth + "]" * depth, Any, "a")
    parse_json("[" + "[]," * 1000 + "[]]", Any, "a")


BOMB = "a: &a [1, 2]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)
MERGE = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{new}: &{new} {{<<: [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]}}\n"
    for old, new in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        *("a: &a [*a]", "a: &a {b: *a}", "a: &a {b: 1, <<: *a, c: *a}", BOMB, MERGE),
        *("[" * 3_000, "a: " + "[" * 3_000 + "]" * 3_000, "- " * 20_000, "{a: " * 2_000),
        *("a: !!int ''", "a: !!float ''", "a: !!bool x", "a: !!timestamp x", "a: 2026-99-99"),
        *("a: 0x" + "f" * 50_000, "a: " + "9" * 5_000, "a: " + "1:" * 5_000 + "1"),
        *("? [a]\n: b", "a: !!binary é", "a: !!python/name:os.system", r'a: "\ud800"', "a: *b"),
        *("a: b: c", "\0", "a: [", "%YAML 9", "a\n---\nb", "!!set {a, b}: 1"),
    ],
)
def test_yaml_that_is_no_config_is_one_line(tmp_path, text):
    start = time.monotonic()
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_yaml(file)
    one_line(error.value, file)
    assert time.monotonic() - start < 20


@given(text=st.text(max_size=30) | st.text("[]{}&*!: -<,ab1\n\"'", max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_yaml_or_one_line(text):
    try:
        found = parse_yaml(text, "a")
    except InputError as error:
        one_line(error, "a: ")
    else:
        assert repr(found) == repr(yaml.safe_load(text))


def test_aliases_and_merges_of_usual_size_are_read():
    text = "base: &base {lr: 1.0, steps: 3}\none: {<<: *base, steps: 4}\ntwo: *base"
    assert parse_yaml(text, "a")["one"] == {"lr": 1.0, "steps": 4}
    assert parse_yaml(text, "a")["two"] == {"lr": 1.0, "steps": 3}


@pytest.mark.parametrize(("text", "number"), [("0x10", 16), ("0b101", 5), ("1_000", 1000)])
def test_whole_numbers_of_yaml_have_all_its_forms(text, number):
    assert parse_yaml(text, "a") == number
