"""``flashpoint page`` from the command line, without browser and runtime."""

import base64
import html
import json
import re

import numpy as np
import pytest
from lab.evaluation.trained import call, trained_run

from flashpoint.errors import InputError
from flashpoint.lab.browser import contents, runtime
from flashpoint.lab.browser.graphs import Graphs
from flashpoint.lab.browser.runtime import Runtime
from flashpoint.lab.cli.page import page
from flashpoint.lab.data.image_kinds import open_source


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    """In a folder of its own, with words in the place of binaries."""
    monkeypatch.chdir(tmp_path)
    words = Runtime(script=b"ort", loader=b"loader", program=b"program")
    monkeypatch.setattr(runtime, "read_runtime", lambda file: words)
    graphs = Graphs(logits=b"logits", maps=b"maps", tensors=b"tensors")
    monkeypatch.setattr(contents, "make_graphs", lambda model: graphs)


def facts_of(text):
    found = re.search(r'<script type="text/plain" id="facts">(.*?)</script>', text)
    return json.loads(found[1])


def test_page_is_one_file_with_facts_of_the_runs(tmp_path):
    runs = [trained_run("relu"), trained_run("softmax")]
    out, _ = call(page, *runs, "--samples", "12", "--title", "<b>")
    assert out.startswith("page.html (0.0 MB), open it in a browser")
    text = (tmp_path / "page.html").read_text()
    assert "<title>&lt;b&gt;</title>" in text
    assert not re.search(
        r"(src|href)=", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    )
    assert "default-src 'none'" in html.unescape(text)
    facts = facts_of(text)
    assert [model["attention"] for model in facts["models"]] == ["relu", "softmax"]
    assert [model["tokens"] for model in facts["models"]] == [16, 16]
    assert facts["is_drawn"]
    assert facts["differences"] == []
    assert [sample["name"] for sample in facts["samples"]] == [*"0123456789", "0", "1"]
    assert len({sample["pixels"] for sample in facts["samples"]}) == 12


def test_samples_are_validation_images(tmp_path):
    call(page, trained_run("relu"), "--samples", "3", "--out", "a/b.html")
    facts = facts_of((tmp_path / "a" / "b.html").read_text())
    known = open_source("digits", "validation").images[..., 0]
    for sample in facts["samples"]:
        pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8).reshape(8, 8)
        assert (known == pixels).all((1, 2)).any()


def test_runs_on_other_images_are_refused():
    with pytest.raises(InputError, match=r"of 10 classes.* of 12 classes.*Make a page for each"):
        call(page, trained_run("relu"), trained_run("relu", num_classes=12))


def test_more_runs_than_a_page_shows_are_refused():
    with pytest.raises(InputError, match="5 runs were given, and a page shows 4 at most"):
        call(page, *[trained_run("relu")] * 5)


def test_model_with_too_many_weights_is_refused(monkeypatch):
    monkeypatch.setattr(contents, "MOST_WEIGHTS", 1000)
    with pytest.raises(InputError, match=r"1,024 attention weights .* at most 1,000"):
        call(page, trained_run("relu"))


def test_page_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write --out .*: Is a directory"):
        call(page, trained_run("relu"), "--out", tmp_path)
