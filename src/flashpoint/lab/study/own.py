"""Studies of a user's own, from Python: the command line knows those of the registry alone.

A trial is plain data that another process carries out. So it may train any config and be asked
whatever ``Evaluation`` and ``Measurement`` name; functions of the user's do not reach it.
"""

from dataclasses import replace
from pathlib import Path

from flashpoint.errors import InputError
from flashpoint.lab.runs.findings import StudySection
from flashpoint.lab.runs.trials import claim_study
from flashpoint.lab.study.local import OnLook, run_locally
from flashpoint.lab.study.needs import require_data
from flashpoint.lab.study.plan import Settings, Study
from flashpoint.lab.study.registry import STUDIES
from flashpoint.lab.study.sections import read_section
from flashpoint.lab.study.store import read_outcomes, settle_study


def run_study(
    study: Study,
    folder: Path,
    settings: Settings,
    *,
    jobs: int = 1,
    on_look: OnLook = lambda _: None,
) -> StudySection:
    """Run what is not finished of a study, here, and read what came out.

    The same call again goes on: finished trials are not repeated, failed ones are tried again.

    Args:
        study: with a name that the registry does not have.
        folder: of the study; it is made, or holds the same plan.
        settings: what the plan is made of, as ``settings_of("smoke")``.
        jobs: trials at a time.
        on_look: told how the trials stand, several times a second.

    Returns:
        Findings, runs and trials, as ``lab/report/study_report.py`` makes a page of them.
    """
    if study.name in STUDIES:
        raise InputError(f"study {study.name!r} is in the registry. Give yours another name.")
    trials = study.plan(settings)
    require_data(trials)
    with claim_study(folder):
        stored = settle_study(folder, study, settings, trials)
        standing = read_outcomes(stored, study)
        waiting = [path for path, one in standing.items() if one.status != "finished"]
        run_locally(waiting, jobs=jobs, keep_checkpoints=False, on_look=on_look)
    section = read_section(folder, {study.name: study})
    return replace(section, commands=())  # no command repeats it
