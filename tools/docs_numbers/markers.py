"""Parts of a document that stand between markers: found, made anew, compared."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from docs_numbers.stored import Stored
from docs_numbers.tables import Generator
from flashpoint.errors import FlashpointError, hint

BEGIN = re.compile(r"<!-- numbers: *(\S*) *-->")
END = "<!-- end -->"
FENCE = "```"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why a part cannot be made; one line with file and line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What stands between two markers.

    Attributes:
        line: of the first marker, from 1 on.
        end: of the second marker, from 1 on.
    """

    name: str
    line: int
    end: int


def find_parts(file: str, text: str) -> tuple[list[Part], list[Problem]]:
    """All parts of a document, and markers that have no other half."""
    parts: list[Part] = []
    problems: list[Problem] = []
    begun: tuple[str, int] | None = None
    for number, line in _lines_of_text(text):
        begin = BEGIN.fullmatch(line)
        if begin and begun:
            problems.append(_unclosed(file, *begun))
        if begin:
            begun = (begin[1], number)
        elif line == END and begun:
            parts.append(Part(name=begun[0], line=begun[1], end=number))
            begun = None
        elif line == END:
            problems.append(Problem(file=file, line=number, text=f"{END} closes nothing."))
    if begun:
        problems.append(_unclosed(file, *begun))
    return parts, problems


def _lines_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without blocks of code, which may show a marker."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith(FENCE):
            is_code = not is_code
        elif not is_code:
            yield number, stripped


def _unclosed(file: str, name: str, line: int) -> Problem:
    text = f"numbers {name!r} are not closed. End them by a line {END}."
    return Problem(file=file, line=line, text=text)


def renew(
    file: str, text: str, tables: Mapping[str, Generator], stored: Stored
) -> tuple[str, list[Problem]]:
    """The document with all its parts made anew; those that cannot be stay as they are."""
    parts, problems = find_parts(file, text)
    lines = text.splitlines()
    for part in reversed(parts):  # from the end on, so that numbers of lines stay true
        made = _make(file, part, tables, stored)
        if isinstance(made, Problem):
            problems.append(made)
            continue
        marker = lines[part.line - 1]
        indent = marker[: len(marker) - len(marker.lstrip())]
        lines[part.line : part.end - 1] = [f"{indent}{line}" for line in made.splitlines()]
    return "\n".join(lines) + "\n", sorted(problems, key=lambda problem: problem.line)


def _make(file: str, part: Part, tables: Mapping[str, Generator], stored: Stored) -> str | Problem:
    if part.name not in tables:
        close = hint(part.name, tables)
        text = f"numbers {part.name!r} are unknown. {close}tools/docs_numbers has all names."
        return Problem(file=file, line=part.line, text=text)
    try:
        return tables[part.name](stored)
    except FlashpointError as error:
        text = f"numbers {part.name!r}: {' '.join(str(error).split())}"
        return Problem(file=file, line=part.line, text=text)


def changes(file: str, before: str, after: str) -> list[str]:
    """The first line that differs in each part, as "README.md:12: numbers 'speed-long': ..."."""
    found: list[str] = []
    old, new = before.splitlines(), after.splitlines()
    parts, _ = find_parts(file, before)
    for tag, first, last, begin, end in difflib.SequenceMatcher(a=old, b=new).get_opcodes():
        if tag == "equal":
            continue
        name = next((p.name for p in parts if p.line <= first < p.end), "?")
        found.append(f"{file}:{first + 1}: numbers {name!r} differ from the stored files")
        found += [f"  - {line.strip()}" for line in old[first:last]]
        found += [f"  + {line.strip()}" for line in new[begin:end]]
    return found
