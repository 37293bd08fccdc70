"""Hugging Face datasets on disk with two texts a row."""

from pathlib import Path

from flashpoint.errors import InputError
from flashpoint.lab.data.huggingface import load_split, require_datasets
from flashpoint.lab.data.source import SPLIT_NAMES, open_splits
from flashpoint.lab.data.text.collecting import Collector
from flashpoint.lab.data.text.documents import Documents
from flashpoint.lab.data.text.rows import TRANSLATION, as_row, collect_rows, find_fields


def open_huggingface(folder: Path, split: str, languages: tuple[str, str]) -> Documents:
    """A dataset that ``save_to_disk`` wrote.

    It has a column "translation", or a column for each language, or the columns source and
    target; a column such as "document" says which rows belong together.
    """
    dataset, name = load_split(folder, split)
    if TRANSLATION not in dataset.column_names:
        find_fields(dataset.column_names, languages, name)
    collector = Collector(name)
    rows = (as_row(row, languages, f"{name}, row {n}") for n, row in enumerate(dataset))
    collect_rows(collector, rows)
    return collector.finish(languages)


def holds_text(folder: Path) -> bool:
    """Whether there is a dataset, and no column of it holds images."""
    library = require_datasets()
    try:
        splits, _ = open_splits(tuple(SPLIT_NAMES), lambda split: load_split(folder, split)[0])
    except InputError:
        return False
    return bool(splits) and not any(
        isinstance(kind, library.Image)
        for dataset in splits.values()
        for kind in dataset.features.values()
    )
