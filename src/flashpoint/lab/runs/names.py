"""Names of the files of runs and studies; no other module spells one.

::

    RUN/
      config.yaml     resolved and complete, so that the run can be built from it alone
      data.json       what the training data were
      weights.json    what training started from, where that was not fresh weights
      pieces.model    the vocabulary of a run on text
      metrics.jsonl   one line a log step
      checkpoints/    step_N/{model.safetensors, optimizer.safetensors, state.json}, or
                      step_N/{shard-R-model-F-of-2.safetensors, state.json} by processes R
      saved.json      the step of the last checkpoint, so that its loss is noticed
      record.json     final numbers; there once the run has ended
      attention/      {statistics.json, statistics.png, maps.png} of ``flashpoint inspect``
      events.*        TensorBoard's
      report.html     the page of ``flashpoint report``, unless it is sent elsewhere
      .lock           held by the process that trains

    STUDY/
      study.json      settings and the names of its trials
      TRIAL/          a run's folder with trial.json, evaluations.json, failure.json and log.txt
      trials.jsonl    what all folders of trials hold, once ``flashpoint study pack`` packed them
      .lock           held by the process that runs the study
"""

CONFIG = "config.yaml"
DATA = "data.json"
START = "weights.json"
PIECES = "pieces.model"
METRICS = "metrics.jsonl"
RECORD = "record.json"
PAGE = "report.html"
EVENTS = "events.out.tfevents.*"
LOCK = ".lock"

CHECKPOINTS = "checkpoints"
SAVED = "saved.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"

ATTENTION = "attention"
STATISTICS = "statistics.json"
STATISTICS_PICTURE = "statistics.png"
MAPS = "maps.png"
ALL_MAPS = "maps*.png"

STUDY = "study.json"
TRIAL = "trial.json"
EVALUATIONS = "evaluations.json"
FAILURE = "failure.json"
LOG = "log.txt"
TRIALS = "trials.jsonl"
