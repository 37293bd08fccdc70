"""Every file of runs and studies has its name from one place."""

import ast
import re
from collections import Counter
from pathlib import Path

from flashpoint.lab.runs import names

SOURCE = Path(names.__file__).parents[2]
NAMES = {
    value
    for name, value in vars(names).items()
    if name.isupper() and (value.startswith(".") or "." in value)
}
PATTERNS = {name: re.compile(rf"(?<![\w./*-]){re.escape(name)}(?!\w)") for name in NAMES}
OTHERS = {("lab/data/huggingface.py", names.STATE), ("models/pretrained.py", names.MODEL)}
"""Files of another project, or as it names them, that have the same name."""


def spelled(file):
    """All names of files that stand in the code of a module, in words of a sentence too.

    Docstrings and examples are for readers: they may name a file.
    """
    tree = ast.parse(file.read_text("utf-8"))
    texts = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in texts:
            yield from (name for name in NAMES if PATTERNS[name].search(node.value))


def test_there_are_names():
    assert {"record.json", "metrics.jsonl", "config.yaml", ".lock", "trials.jsonl"} <= NAMES


def test_each_name_is_spelled_once_in_the_source():
    places = [
        (str(file.relative_to(SOURCE)), name)
        for file in sorted(SOURCE.rglob("*.py"))
        for name in spelled(file)
    ]
    found = [place for place in places if place not in OTHERS]
    assert Counter(name for _, name in found) == Counter(NAMES), found
    assert {file for file, _ in found} == {"lab/runs/names.py"}
