"""``flashpoint models``: names, sizes and costs of the models."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashpoint.errors import InputError, hint

if TYPE_CHECKING:
    from rich.table import Table

    from flashpoint.models.reluformer import ReLUFormerConfig
    from flashpoint.models.vit import ViTConfig

LEGEND = (
    "GFLOPs: matrix products of one image, forward; a multiply-add is two. Attention: the share "
    "that q with k and weights with v have in them. Any other patch size has a name too, as "
    "vit_b14. In Python: flashpoint.create_model(NAME, attention=...)."
)
TEXT_LEGEND = (
    "Depth: blocks of encoder + decoder. Slots: of each memory, the units of a feed-forward "
    "layer. GFLOPs: one document with its translation, forward. Parameters are with vocabularies "
    "of {pieces} pieces; data bring their own."
)


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="FILTER", help="Part of a name, a pattern such as '*16', or a name: vit_b14."
        ),
    ] = None,
    image_size: Annotated[
        int, typer.Option(min=1, max=65_536, metavar="PIXELS", help="Side of the images.")
    ] = 224,
    tokens: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000_000,
            metavar="COUNT",
            help="Of a document, and of its translation.",
        ),
    ] = 512,
    attention: Annotated[
        str, typer.Option(help="softmax, relu or another activation; costs are the same.")
    ] = "relu",
) -> None:
    """List the models of images and of text: their names, parameters and GFLOPs.

    \b
    flashpoint models                     all of them, for images of 224 pixels
    flashpoint models s16 --image-size 384
    flashpoint models vit_b14             any patch size
    flashpoint models reluformer --tokens 2048
    """
    from rich.console import Console

    from flashpoint.models.registry import is_text_model, text_model_config

    names = _choose(pattern)
    of_text = {
        name: text_model_config(name, attention=attention) for name in names if is_text_model(name)
    }
    of_images = [name for name in names if name not in of_text]
    console = Console()
    if of_images:
        console.print(_list_image_models(of_images, image_size, attention))
    if of_text:
        console.print(_draw_text_models(of_text, tokens))


def _choose(pattern: str | None) -> list[str]:
    """The listed names that fit, or one that is a name without being listed."""
    from fnmatch import fnmatchcase

    from flashpoint.models.registry import is_model, known_models, list_models

    known = list_models()
    if pattern is None:
        return known
    names = [name for name in known if pattern in name or fnmatchcase(name, pattern)]
    if names or is_model(pattern):
        return names or [pattern]
    raise InputError(f"no model fits {pattern!r}. {hint(pattern, known)}{known_models()}")


def _list_image_models(names: list[str], image_size: int, attention: str) -> "Table":
    """The table of those whose patches fit the images."""
    from flashpoint.models.registry import image_model_config, sizes_of

    fitting = [name for name in names if image_size % sizes_of(name)["patch_size"] == 0]
    if not fitting:
        raise InputError(
            f"image size {image_size} is not a multiple of any patch of {', '.join(names)}."
        )
    configs = {
        name: image_model_config(name, image_size=image_size, attention=attention)
        for name in fitting
    }
    left_out = [name for name in names if name not in configs]
    missing = f"\nNot for {image_size} pixels: {', '.join(left_out)}." if left_out else ""
    columns = ("width", "depth", "heads", "parameters", "tokens", "GFLOPs", "attention")
    table = _start(f"Models with {attention} attention, images of {image_size} pixels", columns)
    for name, config in configs.items():
        table.add_row(name, *_image_row(config))
    table.caption = LEGEND + missing
    return table


def _draw_text_models(configs: "dict[str, ReLUFormerConfig]", tokens: int) -> "Table":
    attention = next(iter(configs.values())).attention.word
    columns = ("width", "depth", "heads", "slots", "parameters", "GFLOPs")
    table = _start(f"Models with {attention} attention, documents of {tokens} tokens", columns)
    for name, config in configs.items():
        table.add_row(name, *_text_row(config, tokens))
    pieces = ", ".join(str(config.vocabulary_size) for config in configs.values())
    table.caption = TEXT_LEGEND.format(pieces=pieces)
    return table


def _start(title: str, columns: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("name")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _image_row(config: "ViTConfig") -> list[str]:
    from flashpoint.models.cost import attention_flops, forward_flops, num_tokens
    from flashpoint.models.vit import ViT

    flops = forward_flops(config)
    return [
        str(config.width),
        str(config.depth),
        str(config.num_heads),
        _parameters(ViT, config),
        str(num_tokens(config)),
        f"{flops / 1e9:.2f}",
        f"{attention_flops(config) / flops:.0%}",
    ]


def _text_row(config: "ReLUFormerConfig", tokens: int) -> list[str]:
    from flashpoint.models.cost import translation_flops
    from flashpoint.models.reluformer import ReLUFormer

    return [
        str(config.width),
        f"{config.encoder_depth}+{config.decoder_depth}",
        str(config.num_heads),
        str(config.mlp_dim),
        _parameters(ReLUFormer, config),
        f"{translation_flops(config, tokens, tokens) / 1e9:.2f}",
    ]


def _parameters(model: type, config: Any) -> str:
    """How many a model has; they are counted without allocating them."""
    import torch

    from flashpoint.models.cost import num_parameters

    with torch.device("meta"):
        return f"{num_parameters(model(config)) / 1e6:.1f} M"
