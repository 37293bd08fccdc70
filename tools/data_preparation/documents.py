"""From Debian's packages to a folder of documents that training reads."""

import json
from dataclasses import dataclass
from pathlib import Path

from data_preparation.corpora import CORPORA, LANGUAGES, Counts, count, extract
from data_preparation.fetching import Report, fetch_packages, require_packages
from data_preparation.splitting import remove_repeats, split_documents
from flashpoint.errors import InputError
from flashpoint.files import cache_folder, write_atomically
from flashpoint.lab.data.text.documents import Document
from flashpoint.lab.data.text.prepared import SUMMARY, write_documents

NAME = "en-de-docs"
SEED = 0


@dataclass(frozen=True)
class CorpusRow:
    """What came out of one corpus.

    Attributes:
        name: of the corpus.
        num_aligned: pairs before cleaning.
        counts: after it.
        known: what an earlier extraction gave, to compare with.
    """

    name: str
    num_aligned: int
    counts: Counts
    known: Counts


@dataclass(frozen=True)
class Prepared:
    """What was written.

    Attributes:
        corpora: a row for each.
        splits: sizes of each, as written.
        removed: segments that were taken out of each, since another one holds them.
    """

    corpora: list[CorpusRow]
    splits: dict[str, Counts]
    removed: dict[str, int]


def prepare_documents(folder: Path, source: Path | None, report: Report) -> Prepared:
    """Fetch, read, align, clean and split; write one file a split and a summary.

    The same packages give the same files.

    Args:
        folder: to write to.
        source: a folder with the .deb files; None: apt downloads them into the cache.
        report: is told what happens.
    """
    names = [name for corpus in CORPORA for name in corpus.packages]
    if source is not None:
        packages = require_packages(names, source)
    else:
        packages = fetch_packages(names, cache_folder() / "debian", report)
    documents: list[Document] = []
    rows: list[CorpusRow] = []
    for corpus in CORPORA:
        report(f"reading {corpus.name}")
        found, num_aligned = extract(corpus, packages)
        documents += found
        rows.append(CorpusRow(corpus.name, num_aligned, count(found), corpus.known))
    report("splitting")
    splits, removed = remove_repeats(split_documents(documents, SEED))
    prepared = Prepared(rows, {name: count(part) for name, part in splits.items()}, removed)
    files = {name: packages[name].name for name in names}
    _write(folder, splits, prepared, files)
    return prepared


def _write(
    folder: Path,
    splits: dict[str, list[Document]],
    prepared: Prepared,
    packages: dict[str, str],
) -> None:
    """The summary goes first and comes last: a folder with one is complete."""
    summary = {
        "name": NAME,
        "languages": list(LANGUAGES),
        "seed": SEED,
        "packages": packages,
        "corpora": {
            row.name: {"aligned": row.num_aligned, **row.counts._asdict()}
            for row in prepared.corpora
        },
        "splits": {name: counts._asdict() for name, counts in prepared.splits.items()},
        "removed": prepared.removed,
    }
    try:
        (folder / SUMMARY).unlink(missing_ok=True)
        for name, documents in splits.items():
            write_documents(folder / f"{name}.jsonl", documents)
        text = json.dumps(summary, indent=2) + "\n"
        write_atomically(folder / SUMMARY, lambda handle: handle.write(text.encode()))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.") from error
