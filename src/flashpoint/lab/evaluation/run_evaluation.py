"""A run and its model on data: what ``flashpoint evaluate`` does, for programs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashpoint.lab.data.batches import EvalBatches
from flashpoint.lab.data.config import DataConfig
from flashpoint.lab.data.sources import open_source
from flashpoint.lab.evaluation.class_matching import match_classes, require_same_classes
from flashpoint.lab.evaluation.classification import Classification, classify
from flashpoint.lab.runs.beginning import read_data
from flashpoint.lab.training.run_folder import Run
from flashpoint.models.vit import ViT


def evaluate_run(
    run: Run,
    model: ViT,
    *,
    data: str | None = None,
    classes: str | None = None,
    is_matching: bool = False,
    batch_size: int = 256,
    on_count: Callable[[int, int], None] = lambda done, total: None,
) -> Classification:
    """Accuracy and loss of a run's model, counted and computed as in training.

    Args:
        run: gives the data, the loss, the precision and the names of the classes.
        model: of ``run.load_model``, on any device.
        data: another place than the run's validation data.
        classes: a file with the data's classes, one a line in the order of their labels.
        is_matching: only classes that model and data share may answer, found by name.
        batch_size: images at a time.
        on_count: told how many images are done, and of how many.
    """
    config = data_at(run.config.data, data, classes)
    source = open_source(config.validation, "validation", config.labels)
    known = class_names(run, model)
    match = match_classes(known, source.class_names) if is_matching else None
    if match is None:
        require_same_classes(known, source.class_names)
    device = next(model.parameters()).device
    return classify(
        model,
        EvalBatches(source, config, batch_size=batch_size, device=device),
        loss=run.config.loss,
        match=match,
        is_bf16=run.config.precision == "bf16",
        on_count=on_count,
    )


def data_at(config: DataConfig, where: str | None, classes: str | None = None) -> DataConfig:
    """The run's validation data, or those at another place, read in the same way.

    A file with their classes takes the place of the run's, which holds for its own data only.
    """
    if where is None or where == config.validation:
        return replace(config, labels=classes or config.labels)
    return replace(config, validation=where, labels=classes)


def class_names(run: Run, model: ViT) -> Sequence[str]:
    """What the model's outputs mean: as the run noted it when it began.

    Outputs behind the last class of its data are numbered.
    """
    noted: list[str] = read_data(run.path).get("classes", [])
    num_classes = model.config.num_classes
    return [*noted, *map(str, range(len(noted), num_classes))][:num_classes]
