"""Every study at smoke, by one command: numbers arrive where findings look for them."""

import math
import subprocess
import sys

import pytest

from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.store import read_outcome, read_study

RUN = "from flashpoint.lab.cli.main import main; main()"


@pytest.mark.slow
@pytest.mark.longest
def test_smoke_studies_draw_their_figures(tmp_path):
    command = (sys.executable, "-c", RUN, "study", "run", "all", "--scale", "smoke")
    done = subprocess.run((*command, "--out", str(tmp_path)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, study in STUDIES.items():
        outcomes = [read_outcome(folder) for folder in read_study(tmp_path / name).trials]
        assert {outcome.status for outcome in outcomes} == {"finished"}, name
        assert all(math.isfinite(value) for o in outcomes for value in o.numbers.values()), name
        found = study.findings(outcomes)
        for chart in found.charts:
            assert all(series.y for series in chart.series), chart.name
        for verdict in found.verdicts:
            assert verdict.word == "undecided", name
            assert verdict.note  # too few seeds, or too few lengths and steps for this claim
