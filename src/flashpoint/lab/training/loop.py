"""The training loop: one for every task, for one process or many.

A step is one update of the weights; "at step n" means after n updates. All that a step needs
follows from the config and its number, so a run that goes on from a checkpoint makes the same
curve as one that was never interrupted.
"""

import json
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from rich.console import Console

from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.beginning import read_start, write_start
from flashpoint.lab.runs.failure import Preempted, RunError
from flashpoint.lab.runs.names import CHECKPOINTS, METRICS, RECORD
from flashpoint.lab.runs.record import Record, numbers_of
from flashpoint.lab.runs.stored import exists, parse_json
from flashpoint.lab.runs.writing import claim
from flashpoint.lab.training.checkpoint_tensors import Checkpoint
from flashpoint.lab.training.config import TrainConfig
from flashpoint.lab.training.device_rate import matrix_rate
from flashpoint.lab.training.environment import describe_environment
from flashpoint.lab.training.given_weights import describe_start
from flashpoint.lab.training.memory_check import check_memory
from flashpoint.lab.training.metrics import Metrics
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.progress import Progress, describe_numbers
from flashpoint.lab.training.ranks import Ranks, join
from flashpoint.lab.training.run_folder import best_of, settle
from flashpoint.lab.training.saving import Saver
from flashpoint.lab.training.schedule import Warmup, learning_rate, warmup_steps
from flashpoint.lab.training.sharing import Shared, check_sharing, check_split
from flashpoint.lab.training.step import CapturedStep, Counts, Step, Update
from flashpoint.lab.training.stopping import Stopped, Wish, stop_wishes
from flashpoint.lab.training.stopwatch import Stopwatch
from flashpoint.lab.training.task import Batch, Task
from flashpoint.lab.training.task_registry import task_class
from flashpoint.lab.training.waiting import Waiting

COMPILING = "compiling the model, which may take minutes; the next run finds most of it done"


class _State(TypedDict):
    """What a checkpoint notes besides weights and moments; ``lines`` are those of the curve."""

    counts: Counts
    seconds: float
    data: NotRequired[dict[str, int]]
    lines: NotRequired[int]


def train(
    config: TrainConfig, out: Path, *, console: Console | None = None, fresh: bool = False
) -> Record:
    """Train to the end, from the newest checkpoint in ``out`` if there is one.

    Args:
        config: the run.
        out: its folder; made if it is not there.
        console: where progress is shown; None is standard error.
        fresh: begin anew, without what an earlier run left in ``out``.

    Raises:
        LostError: there was a checkpoint once, and there is none now.
        Preempted: SIGTERM or Ctrl-C came; a checkpoint was saved.
        RunError: the run cannot go on; older checkpoints are whole.
    """
    with join(config.device, config.parallel) as ranks, ExitStack() as stack:
        check_sharing(config, ranks)
        task: Task = task_class(config)(config, ranks)
        total = config.total_steps(task.steps_per_epoch)
        warmup = warmup_steps(config.schedule, total)
        with torch.device("meta"):  # refused before a folder is made
            check_split(task.build_model(), ranks, config.parallel.strategy)
        progress = Progress(
            console, name=out.name, unit=task.unit, total=total, is_shown=ranks.is_first
        )
        has_begun = not fresh and (
            exists(out / RECORD) or bool(checkpoints.saved_steps(out / CHECKPOINTS))
        )
        goes_on = ranks.any(has_begun)
        if not goes_on:
            check_memory(task, ranks, progress.say)
        start = {} if goes_on else task.begin(progress.say)
        ranks.on_first(lambda: stack.enter_context(claim(out)))
        ranks.on_first(lambda: settle(out, task.config, task.identity, fresh=fresh))
        ranks.on_first(lambda: write_start(out, start))
        record = _share(ranks, Record.read(out) if ranks.is_first else None)
        if record:
            result = describe_numbers(record.validation)
            progress.say(f"{out} is finished ({record.steps} steps: {result}); nothing to do.")
            return record
        if start:
            progress.say(describe_start(start))
        if task.remark and not goes_on:
            progress.say(task.remark)
        wish = stack.enter_context(stop_wishes())
        return _Run(task, ranks, out, progress, total, warmup).go(wish)


class _Run:
    """One run in one of its processes."""

    def __init__(
        self, task: Task, ranks: Ranks, out: Path, progress: Progress, total: int, warmup: Warmup
    ) -> None:
        self.task, self.ranks, self.out, self.progress = task, ranks, out, progress
        self.total, self.warmup = total, warmup
        self.config = config = task.config
        torch.manual_seed(config.seed)
        self.model = Shared.of(task, ranks)
        self.optimizer = make_optimizer(
            self.model.module, config.optimizer, ranks.device, captured=config.is_captured
        )
        self.step = Step(task, self.model, self.optimizer)
        self.saver = Saver(out / CHECKPOINTS, self.model, self.optimizer)
        self.graph_pool = torch.cuda.graph_pool_handle() if config.is_captured else None
        self.rate = _rate_of_all(ranks, config.precision)
        self.metrics: Metrics | None = None  # of the first process
        self.last_good: int | None = None  # checkpoint that no bad update followed
        self.spared: set[int] = set()  # checkpoints whose validation is lost: one may be the best

    def go(self, wish: Wish) -> Record:
        """Train from where the run stands to its end."""
        try:
            start = self._restore()
            self.progress.start(start)
            self._train(start, wish)
            return self._finish()
        finally:
            self.progress.stop()
            if self.metrics is not None:
                self.metrics.close()

    def _train(self, start: int, wish: Wish) -> None:
        is_new = self.metrics is not None and start not in self.metrics.validations()
        if self._validates_at(start) and self.ranks.any(is_new):
            self._validate(start, wish)  # the run was ended in the middle of it
        if start < self.total:
            name = f"step {start + 1}" if start else "first step"
            batch, device = self.task.describe_batch(), self.ranks.device.type
            self.progress.say(f"{name} of {self.total}: {batch} on {device}")
        with closing(self.task.batches(start)) as batches:
            updates: dict[tuple[torch.Size, ...], Update] = {}
            for step in range(start + 1, self.total + 1):
                with self.waiting.measured():
                    batch = next(batches)
                self.step.set_rate(
                    learning_rate(step - 1, self.config.optimizer.lr, self.warmup, self.total)
                )
                shapes = tuple(tensor.shape for tensor in batch)
                if shapes not in updates:
                    updates[shapes] = self._prepare(batch, is_first=not updates)
                updates[shapes](batch)
                self.progress.step(step)
                self._after(step, wish)

    def _prepare(self, batch: Batch, *, is_first: bool) -> Update:
        """Compile what is to be compiled for batches of this shape, off the clock.

        The weights stay as they are.
        """
        if self.config.compile == "none":
            return self.step
        reason = COMPILING if is_first and self.config.is_compiled else ""
        with self.watch.paused(), self.progress.paused(reason):
            if self.config.is_captured:
                return CapturedStep(self.step, batch, self.graph_pool)
            self.step.rehearse(batch)
            return self.step

    def _after(self, step: int, wish: Wish) -> None:
        """Log, save, validate and stop, whatever is due after a step."""
        if step % self.config.log_every == 0 or step == self.total:
            self._log(step)
        stops = self.ranks.any(bool(wish))
        validates = self._validates_at(step)
        if stops or validates or step % self.config.checkpoint_every == 0:
            self._save(step)
        self.saver.finish_if_done()
        if stops:
            self.saver.finish()
            raise self._preempted(step, wish)
        if validates:
            self._validate(step, wish)

    def _preempted(self, step: int, wish: Wish) -> Preempted:
        return Preempted(
            f"stopped by {wish.name or 'a signal'} at step {step} of {self.total}, all saved in "
            f"{self.out}. Give the same command again to go on."
        )

    def _validates_at(self, step: int) -> bool:
        return step > 0 and (step % self.config.evaluate_every == 0 or step == self.total)

    def _log(self, step: int) -> None:
        counts, seconds = self.step.tally.read(), self.watch.read()
        steps, elapsed = step - self.logged_at[0], seconds - self.logged_at[1]
        samples_until = self.task.samples_until
        samples_per_s = (samples_until(step) - samples_until(self.logged_at[0])) / elapsed
        flops_per_s = samples_per_s * self.task.flops_per_sample
        line = {
            "kind": "train",
            "step": step,
            "epoch": step / self.task.steps_per_epoch,
            "loss": counts.loss / counts.good if counts.good else None,
            "lr": learning_rate(step - 1, self.config.optimizer.lr, self.warmup, self.total),
            "grad_norm": counts.grad_norm / counts.good if counts.good else None,
            f"{self.task.unit}_per_s": samples_per_s,
            "seconds": seconds,
            "skipped": int(counts.bad),
            "utilisation": self.rate and flops_per_s / self.rate,
            "data_wait": min(self.waiting.read() / elapsed, 1.0),
            **self.task.check_data(self.progress.say),
        }
        self._write(line)
        self.progress.log(line, (self.total - step) * elapsed / steps)
        self._check_counts(counts, step)
        self.step.tally.reset(replace(counts, loss=0.0, grad_norm=0.0, good=0.0))
        self.logged_at = step, seconds

    def _check_counts(self, counts: Counts, step: int) -> None:
        if counts.worst_row > self.config.max_bad_steps:
            good = self.last_good
            kept = f"the last checkpoint before them is step_{good}" if good else "none was saved"
            raise RunError(
                f"loss or gradient was not finite in {int(counts.worst_row)} updates in a row by "
                f"step {step}, more than max_bad_steps={self.config.max_bad_steps}; {kept}. Lower "
                "optimizer.lr or optimizer.clip, or look at the data."
            )

    def _validate(self, step: int, wish: Wish) -> None:
        """Validate a step that has a checkpoint; stopped on the way, a later start does it."""
        with self.watch.paused():
            self.model.module.eval()
            try:
                numbers = self.task.validate(self.model.module, wish)
            except Stopped as stop:
                self.saver.finish()
                raise self._preempted(step, wish) from stop
            self.saver.finish()  # only what is saved is validated
            self.model.module.train()
            line = {"kind": "validation", "step": step, **numbers}
            self._write(line)
            self.progress.validated(line)
            if self.ranks.is_first:
                self._prune()

    def _write(self, line: dict[str, Any]) -> None:
        self.ranks.on_first(lambda: self.metrics and self.metrics.add(line))

    def _save(self, step: int) -> None:
        counts = self.step.tally.read()
        data = dict(self.task.check_data(self.progress.say))
        lines = self.metrics.count_at(step) if self.metrics is not None else 0
        noted = {"counts": asdict(counts), "seconds": self.watch.read(), "lines": lines}
        state = {**noted, "data": data}
        if not counts.bad_row:
            self.last_good = step

        def note() -> None:
            checkpoints.note_saved(self.out, step)
            self._prune()

        with self.watch.paused():
            self.ranks.on_first(lambda: self.metrics and self.metrics.sync())
            self.saver.save(step, state, note)

    def _prune(self) -> None:
        """Keep the last checkpoints, the best one, and the last one before bad updates."""
        assert self.metrics is not None
        folder = self.out / CHECKPOINTS
        keep = set(checkpoints.saved_steps(folder)[-self.config.keep_checkpoints :])
        best = best_of(self.metrics.validations(), self.config)
        keep |= {step for step in (best, self.last_good) if step is not None} | self.spared
        checkpoints.prune(folder, keep)

    def _restore(self) -> int:
        """Take the newest whole checkpoint, if there is one; gives its step."""
        found: list[Checkpoint | None] = [None]

        def read() -> None:
            found[0] = self.saver.latest(self.progress.say)
            step = found[0].step if found[0] else 0
            self.metrics = Metrics(self.out, step, self.progress.say)

        self.ranks.on_first(read)
        saved = found[0] or Checkpoint(step=0, model={}, optimizer={}, state={})
        step = self.ranks.max(saved.step)
        text = self.ranks.share_text(json.dumps(dict(saved.state)))
        seconds = 0.0
        if step:
            state = parse_json(text, _State, f"the state of step_{step} in {self.out}")
            seconds = state["seconds"]
            self.saver.restore(saved, step)
            self.step.tally.reset(state["counts"])
            self.task.resume_data(step, state.get("data", {}))
            self.last_good = step
            self.progress.say(f"going on from step {step} of {self.total} in {self.out}.")
            self._look_for_lines(step, state.get("lines", 0))
            self._look_for_checkpoints(step)
        elif self.metrics is not None and self.metrics.num_dropped:
            self.progress.say(
                f"{self.out} has no checkpoint yet: beginning anew, and {METRICS} with it."
            )
        self.watch, self.waiting = (
            Stopwatch(self.ranks.device, seconds),
            Waiting(self.ranks.device),
        )
        self.logged_at = step, self.watch.read()
        return step

    def _look_for_lines(self, step: int, num_lines: int) -> None:
        """Say what the curve has lost since the checkpoint was saved; its checkpoints stay."""
        if self.metrics is None:
            return
        missing = num_lines - self.metrics.count_at(step)
        if missing > 0:
            self.spared = set(checkpoints.saved_steps(self.out / CHECKPOINTS))
            self.progress.say(
                f"{missing} of the {num_lines} lines of {METRICS} up to step {step} are missing: "
                "the curve has a gap. To close it, stop, restore the file, and give the same "
                "command again."
            )

    def _look_for_checkpoints(self, step: int) -> None:
        """Say that a newer checkpoint was there, and what becomes of the curve behind this one."""
        if self.metrics is None or (noted := checkpoints.noted_step(self.out)) <= step:
            return
        self.progress.say(
            f"step {noted} was saved, but is no longer among the checkpoints: training makes "
            f"{self.metrics.num_dropped} lines of {METRICS} behind step {step} again."
        )

    def _finish(self) -> Record:
        """Write the record; gives it in every process."""
        record = self._record() if self.ranks.is_first else None
        self.ranks.on_first(lambda: record and record.write(self.out))
        shared = _share(self.ranks, record)
        assert shared is not None
        return shared

    def _record(self) -> Record:
        assert self.metrics is not None
        config, task, seconds = self.config, self.task, self.watch.read()
        samples = task.samples_until(self.total)
        flops = samples * task.flops_per_sample
        logged = [line for line in self.metrics.lines if line["kind"] == "train"]
        validations = self.metrics.validations()
        best = best_of(validations, config) or self.total
        is_gpu = self.ranks.device.type == "cuda"
        return Record(
            steps=self.total,
            epochs=self.total / task.steps_per_epoch,
            samples=samples,
            unit=task.unit,
            seconds=seconds,
            samples_per_s=samples / seconds,
            num_parameters=self.model.num_parameters,
            flops=flops,
            utilisation=self.rate and flops / seconds / self.rate,
            peak_memory_bytes=torch.cuda.max_memory_allocated() if is_gpu else None,
            train_loss=logged[-1].get("loss") if logged else None,
            validation=numbers_of(validations[self.total]),
            best={"step": best, **numbers_of(validations[best])},
            skipped=int(self.step.tally.read().bad),
            notes={
                **task.notes(),
                **({"data": task.remark} if task.remark else {}),
                **_start_note(self.out),
            },
            environment=describe_environment(self.ranks.device, self.ranks.size),
        )


def _rate_of_all(ranks: Ranks, precision: str) -> float | None:
    """What the processes' GPUs reach together in large products; None on the CPU."""
    if ranks.device.type != "cuda":
        return None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return matrix_rate(ranks.device, dtype) * ranks.size


def _share(ranks: Ranks, record: Record | None) -> Record | None:
    """The first process' record as it comes back from its file, everywhere."""
    text = ranks.share_text(record.to_json() if record else "")
    return Record.parse(text) if text else None


def _start_note(out: Path) -> dict[str, Any]:
    """What the run started from, where that was not fresh weights."""
    start = read_start(out)
    return {"weights": start} if start else {}
