"""A study's section and what is in it, made up in few words."""

import random

from flashpoint.lab.runs.findings import Chart, DataTable, Findings, Series, StudySection, Verdict

POINTS = "points of top-1"


def around(name, x, y, spread, **more):
    """A series whose interval is as wide as ``spread`` says."""
    low, high = [v - spread for v in y], [v + spread for v in y]
    return Series(name=name, x=x, y=y, low=low, high=high, **more)


def chart(name, title, x_title, y_title, series, caption="", **more):
    caption = (
        caption or f"What the paper's figure says about {title.lower()}, and what ours shows."
    )
    return Chart(
        **{"name": name, "title": title, "caption": caption, "series": series},
        **{"x_title": x_title, "y_title": y_title},
        **more,
    )


def verdict(claim, word, value, half, region, unit=POINTS, note=""):
    found = None if value is None else (value, value - half, value + half)
    value, low, high = found or (None, None, None)
    return Verdict(
        **{"claim": claim, "word": word, "value": value, "low": low, "high": high},
        **{"region": region, "unit": unit, "note": note},
    )


def trials_of(factors, numbers, rows=12, seed=0):
    draw = random.Random(seed)
    head = ("trial", "status", *factors, *numbers)
    body = []
    for i in range(rows):
        status = ("finished", "finished", "finished", "finished", "failed")[i % 5]
        found = [draw.random() if status == "finished" else None for _ in numbers]
        levels = [f"{factor}{i % 3}" if factor != "seed" else i % 3 for factor in factors]
        body.append((f"trial-{i:03d}", status, *levels, *found))
    return DataTable(name="trials", title="All trials", head=head, rows=body)


def section(name, question, source, claim, verdicts, charts=(), tables=(), notes=(), **more):
    findings = Findings(verdicts=verdicts, charts=charts, tables=tables, notes=notes)
    more.setdefault("runs", [])
    more.setdefault("factors", [{"seed": i} for i in range(len(more["runs"]))])
    more.setdefault("environments", [])
    more.setdefault("scope", "small: cifar10, ViT of 2.70 M parameters, 10 epochs, 3 seeds")
    more.setdefault("departures", "")
    more.setdefault("trials", trials_of(("attention", "seed"), ("top1", "loss"), seed=len(name)))
    more.setdefault("commands", ("git checkout 273871d145c4", f"flashpoint study run {name}"))
    return StudySection(
        **{"name": name, "question": question, "source": source, "claim": claim},
        findings=findings,
        **more,
    )
