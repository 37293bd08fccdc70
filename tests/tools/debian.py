"""The twelve packages of the corpus with small pages, in the layout of the real ones."""

import gzip
import lzma
from pathlib import Path

from lab.data.pictures import make_tar
from lab.data.text.corpora import word

NUM_PAGES = 12
WORDS = (
    ("The {0} opens the window number {1}.", "Der {0} öffnet das Fenster mit der Nummer {1}."),
    ("You can close a {0} at any time.", "Sie können einen {0} jederzeit schließen."),
    ("This {0} does not depend on the other ones.", "Dieser {0} hängt nicht von den anderen ab."),
)


def sentences(page, language, count=3):
    """Some sentences of a page, the same in number for both languages."""
    return [WORDS[n % 3][language].format(word(100 * page + n), n) for n in range(count)]


def docbook(page, language, *, para="p", extra=""):
    """A page as DocBook's stylesheets make it: navigation, contents, lists and a listing."""
    first, second, third, *more = sentences(page, language, 3 + page % 100)
    title = ("Chapter {}. The {}", "Kapitel {}. Der {}")[language].format(page, word(page))
    items = "".join(f"<li class='listitem'><{para}>{text}</{para}></li>" for text in more)
    start, end = f"<{para} class='para'>", f"</{para}>"
    return f"""<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{title}</title></head><body>
<div class="navheader"><table><tr><th>{("Prev", "Zurück")[language]}</th></tr></table><hr /></div>
<div class="chapter"><div class="titlepage">
<h1 class="title"><a id="page-{page}"></a>{title}</h1></div>
<div class="toc"><p>{("Contents", "Inhalt")[language]}</p><dl><dt>{first}</dt></dl></div>
{start}{first.replace("window", "<em>window</em>")}{end}
{start}
   {second}
{end}<a id="id{page + language}" class="indexterm"></a>
<pre class="screen">{("the listing", "die Liste")[language]}</pre>
<ul>{items}</ul>{extra}
<table><tr><td>{third}</td><td>42</td></tr></table></div>
<div class="navfooter"><p>{("Next", "Weiter")[language]}</p></div></body></html>"""


def libreoffice(page, language):
    """A help page: paragraphs have ids; a switch holds texts for two systems."""
    texts = sentences(page, language, 3 + page % 100)
    paragraphs = "\n".join(
        f'<p id="par_id{page}{n}" class="paragraph" dir="auto">{text}</p>'
        for n, text in enumerate(texts)
    )
    keys = ("Command", "Ctrl") if language == 0 else ("Befehl", "Strg")
    switch = (
        '<span id="swlnsys1" class="switchinline">'
        f'<span hidden="true" id="MAC1" class="MAC">{keys[0]}</span>'
        f'<span hidden="true" id="default1">{keys[1]}</span></span>'
    )
    press = ("Press", "Drücken Sie")[language]
    more = '<p id="par_only_here">Only English</p>' if language == 0 else ""
    return f"""<!DOCTYPE html>
<html lang="x" dir="ltr"><head><title>x</title></head><body>
<header id="TopLeftHeader"><p dir="auto">{("Help", "Hilfe")[language]}</p></header>
<div id="DisplayArea">
<h1 id="hd_id{page}" dir="auto">
<a name="top"></a>{("Objects", "Objekte")[language]} {word(page)}</h1>
{paragraphs}{more}
<p id="par_key" dir="auto">{press} {switch}+{word(page)}.</p>
<p class="embedded">{("Related Topics", "Verwandte Themen")[language]}</p></div>
<footer><p>{("Debug", "Fehlersuche")[language]}</p></footer></body></html>"""


def manual(page, language):
    """A manual page; the German one is filled and marked as po4a does it."""
    texts = sentences(page, language, 3 + page % 100)
    name = word(page)
    if language == 0:
        body = "\n.PP\n".join(text.replace(" ", "\n", 2) for text in texts)
        return f""".\\" A comment
.TH {name} 2 2023-02-05 "Linux man-pages"
.SH NAME
{name} \\- open and possibly create a file
.SH SYNOPSIS
.nf
.BI "int {name}(const char *" path );
.fi
.SH DESCRIPTION
{body}
.TP
.BR O_APPEND " (since Linux 2.6)"
The file is opened in append mode by
.BR {name} ().
"""
    body = "\n.PP\n".join(texts)
    return f""".\\" -*- coding: UTF-8 -*-
.TH {name} 2 "5. Februar 2023" "Linux man\\-pages"
.SH BEZEICHNUNG
{name} \\- eine Datei öffnen und möglicherweise erzeugen
.SH ÜBERSICHT
.nf
\\fBint {name}(const char *\\fP\\fIPfad\\fP);
.fi
.SH BESCHREIBUNG
{body}
.TP
\\fBO_APPEND\\fP (seit Linux 2.6)
Die Datei wird durch \\fB{name}\\fP() im Anhängemodus geöffnet.
.SH ÜBERSETZUNG
Die deutsche Übersetzung wurde von jemandem erstellt.
"""


def members():
    """Files of each package."""
    files = {}
    help_root = "./usr/share/libreoffice/help"
    guide = "./usr/share/doc/installation-guide-amd64"
    book = "./usr/share/doc/debian-handbook/html"
    for page in range(NUM_PAGES):
        for language, code in enumerate(("en", "de")):
            package = ("en-us", "de")[language]
            folder = ("en-US", "de")[language]
            place = f"{help_root}/{folder}/text/swriter/guide/page{page}.html"
            files[f"libreoffice-help-{package}", place] = libreoffice(page, language)
            place = f"./usr/share/gimp/2.0/help/{code}/page{page}.html"
            files[f"gimp-help-{code}", place] = docbook(100 + page, language)
            number = 2 if page % 2 else 7
            suffix = ("", "-de")[language] + ("-dev" if number == 2 else "")
            place = f"./usr/share/man{('', '/de')[language]}/man{number}/page{page}.{number}.gz"
            files[f"manpages{suffix}", place] = manual(200 + page, language)
            place = f"{book}/{('en-US', 'de-DE')[language]}/page{page}.html"
            files["debian-handbook", place] = docbook(300 + page, language, para="div")
            place = f"./usr/share/debian-reference/ch{page:02}.{code}.html"
            files[f"debian-reference-{code}", place] = docbook(400 + page, language)
            place = f"{guide}/{code}/ch{page:02}.html"
            files["installation-guide-amd64", place] = docbook(500 + page, language)
    return files


def packed():
    """Files of each package as bytes."""
    files: dict[str, list[tuple[str, bytes]]] = {}
    for (package, place), text in members().items():
        content = gzip.compress(text.encode()) if place.endswith(".gz") else text.encode()
        files.setdefault(package, []).append((place, content))
    return files


def make_deb(path, members, suffix="xz"):
    """A Debian package: an ar file of debian-binary, control and data."""
    tar = make_tar(path.with_suffix(".tar"), members).read_bytes()
    data = lzma.compress(tar) if suffix == "xz" else tar
    content = b"!<arch>\n"
    for name, part in (
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", b"odd"),
        (f"data.tar.{suffix}", data),
    ):
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode()
        content += head + part + b"\n" * (len(part) % 2)
    path.write_bytes(content)
    return path


def make_packages(folder: Path):
    """All packages as .deb files; returns their names."""
    for package, files in packed().items():
        make_deb(folder / f"{package}_1.0_all.deb", files)
        (folder / f"{package}_1.0_all.tar").unlink()
    return sorted(packed())


def extract_packages(folder: Path):
    """All packages as folders."""
    for package, files in packed().items():
        for place, content in files:
            file = folder / package / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
