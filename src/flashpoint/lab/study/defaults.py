"""What a study is run with where the user says nothing."""

from collections.abc import Mapping

from flashpoint.lab.study.plan import Scale, Settings

SEEDS: Mapping[Scale, int] = {"smoke": 1, "small": 3, "paper": 3}
IMAGES: Mapping[Scale, str] = {"smoke": "digits", "small": "cifar10:data/cifar10", "paper": ""}
DOCUMENTS: Mapping[Scale, str] = {
    "smoke": "recall:2-8,10000",
    "small": "data/en-de-docs",
    "paper": "",
}


def settings_of(
    scale: Scale,
    seeds: int | None = None,
    images: str | None = None,
    documents: str | None = None,
) -> Settings:
    """Settings with a scale's defaults where there is None; "" is a place that must be given.

    Example:
        >>> settings_of("small", seeds=5).images
        'cifar10:data/cifar10'
    """
    return Settings(
        scale=scale,
        seeds=SEEDS[scale] if seeds is None else seeds,
        images=IMAGES[scale] if images is None else images,
        documents=DOCUMENTS[scale] if documents is None else documents,
    )


def options_of(settings: Settings) -> tuple[str, ...]:
    """The options of ``flashpoint study run`` that give these settings.

    Example:
        >>> options_of(settings_of("small", seeds=5))
        ('--scale', 'small', '--seeds', '5')
    """
    usual = settings_of(settings.scale)
    options = ["--scale", settings.scale]
    if settings.seeds != usual.seeds:
        options += ["--seeds", str(settings.seeds)]
    if settings.images != usual.images:
        options += ["--images", settings.images]
    if settings.documents != usual.documents:
        options += ["--documents", settings.documents]
    return tuple(options)
