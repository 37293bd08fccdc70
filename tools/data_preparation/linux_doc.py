"""Long text for language models: the sources of the Linux kernel's documentation, from Debian.

The package has every page as reStructuredText. Translations are left out. A passage is a page, and
its paragraphs are there once in the whole set: the splits are made by page, and what stands in the
test pages is taken out of the others.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_preparation.fetching import Report, fetch_packages, require_packages
from data_preparation.packages import read_pages
from data_preparation.splitting import SPLITS, draw, groups
from flashpoint.errors import InputError
from flashpoint.files import cache_folder, write_atomically
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.passages import Passage, Passages
from flashpoint.lab.data.text.pieces import train_pieces
from flashpoint.lab.data.text.prepared import SUMMARY
from flashpoint.lab.runs.names import PIECES

NAME = "linux-doc"
PACKAGE = "linux-doc-6.1"
PATTERN = r"usr/share/doc/linux-doc[^/]*/html/_sources/(?!translations/)(?P<page>.*)\.rst\.txt"
SEED = 0
LEAST_LETTERS = 40
"""Of a paragraph that may stand in the set only once; shorter ones, as headings, may repeat."""
LEAST_WORDS = 50
"""Of a page that is kept: shorter ones only list others."""

_LETTERS = re.compile(r"[^\W\d_]+")
Splits = dict[str, list[Passage]]


@dataclass(frozen=True)
class PreparedPassages:
    """What was written.

    Attributes:
        pages: that the package has.
        splits: passages and words of each, as written.
        removed: paragraphs that were taken out of each, since they stand elsewhere.
        num_pieces: subword pieces beside them.
    """

    pages: int
    splits: dict[str, tuple[int, int]]
    removed: dict[str, int]
    num_pieces: int


def prepare_passages(folder: Path, source: Path | None, report: Report) -> PreparedPassages:
    """Fetch, clean, split; write one file a split, subword pieces and a summary.

    The same package gives the same files.

    Args:
        folder: to write to.
        source: the .deb file, a folder that holds it, or one it was extracted to; None: apt
            downloads it into the cache.
        report: is told what happens.
    """
    package = _package(source, report)
    report(f"reading {package.name}")
    (pages,) = read_pages(package, [PATTERN])
    if not pages:
        raise InputError(f"{package} has no pages at html/_sources. Is it {PACKAGE}?")
    passages = [Passage(name, clean(text)) for name, text in sorted(pages.items())]
    splits, removed = remove_repeats(split_pages(passages))
    report("finding subword pieces")
    pieces = train_pieces(Passages(f"{NAME}:train", splits["train"]), PiecesConfig())
    counts = {name: (len(part), sum(map(_num_words, part))) for name, part in splits.items()}
    found = PreparedPassages(len(pages), counts, removed, pieces.size)
    try:
        (folder / SUMMARY).unlink(missing_ok=True)
        for name, part in splits.items():
            _write_passages(folder / f"{name}.jsonl", part)
        pieces.save(folder / PIECES)
        _write_summary(folder / SUMMARY, found, package.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
    return found


def _package(source: Path | None, report: Report) -> Path:
    if source is None:
        return fetch_packages([PACKAGE], cache_folder() / "debian", report)[PACKAGE]
    if source.is_file() or (source / "usr").is_dir():
        return source
    return require_packages([PACKAGE], source)[PACKAGE]


def clean(text: str) -> str:
    """Text with single spaces in its lines and single empty lines.

    Example:
        >>> clean("A title\\n=======\\n\\n\\n   some   text \\n")
        'A title\\n=======\\n\\nsome text'
    """
    lines = "\n".join(" ".join(line.split()) for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def split_pages(passages: Sequence[Passage]) -> Splits:
    """Pages for training, validation and test: of 25 of about one length, one each."""
    splits: Splits = {name: [] for name in SPLITS}
    ordered = sorted(passages, key=lambda passage: (-len(passage.text), passage.name))
    for group in groups(ordered):
        drawn = sorted(group, key=lambda passage: draw(SEED, passage.name))
        held_out = ("test", "validation") if len(drawn) > 2 else ()
        for number, passage in enumerate(drawn):
            splits[held_out[number] if number < len(held_out) else "train"].append(passage)
    return {name: sorted(part, key=lambda p: p.name) for name, part in splits.items()}


def remove_repeats(splits: Splits) -> tuple[Splits, dict[str, int]]:
    """Take paragraphs out that stand earlier: in the same split, or in the test, the validation.

    Paragraphs count as the same by their letters. Pages that have few words left go, too.

    Returns:
        the splits; removed paragraphs of each.
    """
    kept: Splits = {}
    removed: dict[str, int] = {}
    known: set[str] = set()
    for name in reversed(SPLITS):
        kept[name], removed[name] = [], 0
        for passage in splits[name]:
            paragraphs = passage.text.split("\n\n")
            new = [text for text in paragraphs if _is_new(text, known)]
            removed[name] += len(paragraphs) - len(new)
            rest = Passage(passage.name, "\n\n".join(new))
            if _num_words(rest) >= LEAST_WORDS:
                kept[name].append(rest)
    return {name: kept[name] for name in SPLITS}, {name: removed[name] for name in SPLITS}


def _is_new(paragraph: str, known: set[str]) -> bool:
    """Whether a paragraph is short, or not known yet; it is known from then on."""
    letters = " ".join(_LETTERS.findall(paragraph.casefold()))
    if len(letters) < LEAST_LETTERS:
        return True
    if letters in known:
        return False
    known.add(letters)
    return True


def _num_words(passage: Passage) -> int:
    return len(passage.text.split())


def _write_passages(file: Path, passages: Sequence[Passage]) -> None:
    lines = (
        json.dumps({"name": p.name, "text": p.text}, ensure_ascii=False) + "\n" for p in passages
    )
    write_atomically(file, lambda handle: handle.writelines(line.encode() for line in lines))


def _write_summary(file: Path, found: PreparedPassages, package: str) -> None:
    summary = {
        "name": NAME,
        "kind": "passages",
        "seed": SEED,
        "packages": {PACKAGE: package},
        "pages": found.pages,
        "splits": {n: {"passages": p, "words": w} for n, (p, w) in found.splits.items()},
        "removed": found.removed,
        "pieces": found.num_pieces,
    }
    text = json.dumps(summary, indent=2) + "\n"
    write_atomically(file, lambda handle: handle.write(text.encode()))
