"""``python -m docs_numbers [--check]``: write the numbers of all documents, or compare them."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from docs_numbers.markers import changes, renew
from docs_numbers.stored import Stored
from docs_numbers.tables import TABLES
from flashpoint.files import write_atomically

MODULES = (
    *("converted", "corners", "documents", "exported", "images", "memory", "neighbours"),
    *("overview", "planned", "plans", "powers", "published", "rivals", "sentences", "sequences"),
    *("sharpness", "shift", "speed", "steps", "targets", "trade"),
)
"""Their functions are in TABLES once they are imported."""
for _name in MODULES:
    import_module(f"docs_numbers.{_name}")
PLACES = ("README.md", "docs/*.md", "benchmarks/*.md")
MOST_LINES = 40
"""Of differences that are printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 where something differs or cannot be made."""
    parser = argparse.ArgumentParser(prog="docs_numbers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 on a difference")
    parser.add_argument("--root", type=Path, default=Path(), help="of the repository")
    options = parser.parse_args(arguments)
    stored = Stored(options.root)
    problems: list[str] = []
    differences: list[str] = []
    for path in sorted(file for place in PLACES for file in options.root.glob(place)):
        file, before = str(path.relative_to(options.root)), path.read_text("utf-8")
        after, found = renew(file, before, TABLES, stored)
        problems += map(str, found)
        if after == before:
            continue
        differences += changes(file, before, after)
        if not options.check:
            write_atomically(path, lambda handle, text=after: handle.write(text.encode()))
            sys.stdout.write(f"{file} is written anew\n")
    if options.check and differences:
        left = len(differences) - MOST_LINES
        problems += differences[:MOST_LINES] + ([f"  ... {left} lines more"] if left > 0 else [])
        problems.append("Run `make docs-numbers` and read what is said beside these numbers.")
    sys.stderr.write("".join(f"{line}\n" for line in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
