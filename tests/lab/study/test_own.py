"""A study that no registry knows: run from Python, gone on with, and shown on a page."""

from dataclasses import replace

import pytest
from lab.study.tiny import SETTINGS, STUDY, training, use_in_processes

import flashpoint
from flashpoint.lab.report.study_report import report_studies
from flashpoint.lab.study.own import run_study
from flashpoint.lab.study.registry import STUDIES


def plan(settings):
    return tuple(training("relu", seed, steps=4) for seed in range(settings.seeds))


@pytest.mark.slow
def test_own_study_is_run_gone_on_with_and_shown(monkeypatch, tmp_path):
    (tmp_path / "site").mkdir()
    use_in_processes(monkeypatch, tmp_path / "site")
    study, looks = replace(STUDY, plan=plan), []
    folder = tmp_path / study.name
    first = run_study(study, folder, replace(SETTINGS, seeds=1), on_look=looks.append)
    assert [row[:2] for row in first.trials.rows] == [("relu-seed0", "finished")]
    assert looks
    record = folder / "relu-seed0" / "record.json"
    stored = record.read_bytes()
    again = run_study(study, folder, SETTINGS)
    assert [row[1] for row in again.trials.rows] == ["finished"] * 2
    assert record.read_bytes() == stored
    page = str(report_studies([again], title="Mine"))
    assert "Whoever looks longer sees more." in page
    assert f"study run {study.name}" not in page  # there is no such command


def test_name_of_the_registry_is_refused(tmp_path):
    study = replace(STUDY, name=next(iter(STUDIES)))
    with pytest.raises(flashpoint.InputError, match="is in the registry"):
        run_study(study, tmp_path / "study", SETTINGS)
    assert not (tmp_path / "study").exists()
