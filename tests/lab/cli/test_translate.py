"""``flashpoint translate``, and ``train`` and ``evaluate`` of text, from the command line."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from caches import new_cache
from lab.evaluation.trained import call, trained_run
from lab.training.text_runs import text_config, write_corpus
from typer.testing import CliRunner

from flashpoint.errors import InputError
from flashpoint.lab.cli import translate as verb
from flashpoint.lab.cli.evaluate import evaluate
from flashpoint.lab.cli.inspect import inspect
from flashpoint.lab.cli.train import train
from flashpoint.lab.cli.translate import translate
from flashpoint.lab.evaluation.translation import Translated
from flashpoint.lab.training import loop


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a few documents; read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
        corpus = write_corpus(tmp_path_factory.mktemp("corpus"))
        folder = tmp_path_factory.mktemp("runs") / "text"
        # enough to say something about every line
        changes = ("steps=80", "evaluate_every=40", "schedule.warmup_steps=5")
        loop.train(text_config(corpus, *changes), folder)
    return folder


def pipe(run, content, *options):
    """Translate bytes of standard input; gives the bytes of stdout, and stderr."""
    app = typer.Typer()
    app.command()(translate)
    words = [str(run), "--beam", "1", "--device", "cpu", *map(str, options)]
    result = CliRunner().invoke(app, words, input=content, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout_bytes, result.stderr


def test_every_line_has_its_line_and_empty_ones_stay_where_they_are(run):
    content = b"time house\nwater\n\n \nriver music\r\n\nwinter"
    out, err = pipe(run, content)
    lines = out.decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 7
    assert [lines[n] for n in (2, 3, 5)] == ["", "", ""]
    assert all(lines[n] for n in (0, 1, 6))
    assert "7 lines translated" in err


def test_documents_do_not_see_each_other_and_keep_their_order(run):
    first, second = (pipe(run, text)[0] for text in (b"time house\n", b"winter paper people\n"))
    assert first != second
    both, _ = pipe(run, b"time house\n\nwinter paper people\n")
    assert both == first + b"\n" + second
    assert pipe(run, b"time house\n\nwinter paper people\n", "--batch-size", 1)[0] == both


class Shouting:
    """In place of a translator: capitals, and a note of what it was given at once."""

    def __init__(self):
        self.given = []

    def translate(self, documents, on_count):
        self.given.append(documents)
        return [Translated([line.strip().upper() for line in each], "", 0) for each in documents]


def test_empty_lines_end_documents_and_many_lines_are_written_in_turns(monkeypatch):
    translator = Shouting()
    monkeypatch.setattr(verb, "open_translator", lambda *a, **k: (None, translator, 0))
    monkeypatch.setattr(verb, "LINES_AT_ONCE", 3)
    content = b"\xef\xbb\xbfa\nb\n\nc\n\n \n\nd\ne\nf\ng\nh\ni\nj"
    out, _ = pipe("run", content)
    assert out == b"A\nB\n\nC\n\n\n\nD\nE\nF\nG\nH\nI\nJ\n"
    stripped = [[[line.strip() for line in each] for each in turn] for turn in translator.given]
    assert stripped == [[["a", "b"]], [["c"]], [["d", "e", "f", "g", "h"]], [["i", "j"]]]


def test_file_is_read_as_standard_input_is(run, tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"time\n\nhouse water\n")
    assert pipe(run, b"", file)[0] == pipe(run, file.read_bytes())[0]
    assert pipe(run, b"") == (b"", "the input is empty, nothing is translated\n")


def test_invalid_bytes_unknown_letters_and_long_lines_are_translated(run):
    content = b"\xff\xfe time\n" + "\u6f22\u5b57\n".encode() + b"house " * 200 + b"\nx\n"
    out, err = pipe(run, content)
    assert out.count(b"\n") == 4
    out.decode()
    assert "1 line with invalid UTF-8, the first is line 1" in err


def test_beam_is_searched(run):
    greedy, _ = pipe(run, b"time house water people\n")
    wide, _ = pipe(run, b"time house water people\n", "--beam", 4, "--length-penalty", 0)
    assert wide.count(b"\n") == 1
    assert greedy.count(b"\n") == 1


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (translate, ("/no/such.txt",), "/no/such.txt cannot be read: No such file"),
        (translate, ("--device", "gpu"), "--device 'gpu' must be auto, cpu or cuda"),
        (translate, ("--checkpoint", "7"), "has no checkpoint of step 7"),
        (translate, ("--checkpoint", "x"), r"--checkpoint 'x' must be best, last or a step\.$"),
        (evaluate, ("--labels", "matching"), "--labels and --classes are for images"),
        (evaluate, ("--classes", "x.txt"), "--labels and --classes are for images"),
    ],
)
def test_wrong_arguments_are_one_line(run, command, arguments, message):
    with pytest.raises(InputError, match=message):
        call(command, run, *arguments)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line(run, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("time\n")
    words = ("translate", str(run), str(file), "--beam", "1", "--device", "cpu")
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "flashpoint", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output cannot be written: No space left on device." in done.stderr


def test_run_of_the_other_task_is_refused(run):
    with pytest.raises(InputError, match=r"classifies no images\. For text there is"):
        call(inspect, run)
    with pytest.raises(InputError, match=r"trained ViT, which translates nothing\. There is"):
        call(translate, trained_run())
    with pytest.raises(InputError, match="--beam and --length-penalty are for text"):
        call(evaluate, trained_run(), "--beam", 2)


def test_evaluate_shows_scores_and_signatures(run, tmp_path):
    out, _ = call(evaluate, run, "--beam", 1, "--json", tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["all"]["num_documents"] == 6
    assert (content["beam"], content["length_penalty"]) == (1, 1.0)
    assert (
        sum(s["num_segments"] for s in content["by_length"].values())
        == (content["all"]["num_segments"])
    )
    for text in ("BLEU", "d-BLEU", "chrF", content["signatures"]["bleu"][:40], "1-128"):
        assert text in out


def test_text_model_by_name_needs_documents():
    with pytest.raises(
        InputError, match="needs documents: pass --data WHERE, as --data documents"
    ):
        call(train, "reluformer_base")


def test_dry_run_of_a_text_model_shows_the_whole_config(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path / "cache"))
    corpus = write_corpus(tmp_path)
    changes = ("--set", "data.pieces.vocabulary_size=330", "--set", "data.length=64")
    data = ("--data", f"jsonl:{corpus}")
    out, _ = call(train, "reluformer_tiny", *data, *changes, "--dry-run")
    count = re.match(r"# 20000 steps, ([\d,]+) tokens, ", out)
    assert 0 < int(count[1].replace(",", "")) < 20_000 * 16_384  # without padding
    assert "vocabulary_size: 330" in out
    assert "penalty: 0.1" in out
