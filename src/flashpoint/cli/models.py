"""``flashpoint models``: names, sizes and costs of the models."""

from typing import TYPE_CHECKING, Annotated

import typer

from flashpoint.errors import InputError, hint

if TYPE_CHECKING:
    from rich.table import Table

    from flashpoint.models.vit import ViTConfig

LEGEND = (
    "GFLOPs: matrix products of one image, forward; a multiply-add is two. Attention: the share "
    "that q with k and weights with v have in them. Any other patch size has a name too, as "
    "vit_b14. In Python: flashpoint.create_model(NAME, attention=...)."
)


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="FILTER", help="Part of a name, a pattern such as '*16', or a name: vit_b14."
        ),
    ] = None,
    image_size: Annotated[
        int, typer.Option(min=1, metavar="PIXELS", help="Side of the images.")
    ] = 224,
    attention: Annotated[
        str, typer.Option(help="softmax, relu or another activation; costs are the same.")
    ] = "relu",
) -> None:
    """List the models: their names, parameters, tokens and GFLOPs.

    \b
    flashpoint models                     all of them, for images of 224 pixels
    flashpoint models s16 --image-size 384
    flashpoint models vit_b14             any patch size
    """
    from rich.console import Console

    from flashpoint.models.registry import model_config, sizes_of

    names = _choose(pattern)
    fitting = [name for name in names if image_size % sizes_of(name)["patch_size"] == 0]
    if not fitting:
        raise InputError(
            f"image size {image_size} is not a multiple of any patch of {', '.join(names)}."
        )
    configs = {
        name: model_config(name, image_size=image_size, attention=attention) for name in fitting
    }
    left_out = [name for name in names if name not in configs]
    Console().print(_draw(configs, left_out, image_size))


def _choose(pattern: str | None) -> list[str]:
    """The listed names that fit, or one that is a name without being listed."""
    from fnmatch import fnmatchcase

    from flashpoint.models.registry import is_model, list_models

    known = list_models()
    if pattern is None:
        return known
    names = [name for name in known if pattern in name or fnmatchcase(name, pattern)]
    if names or is_model(pattern):
        return names or [pattern]
    raise InputError(
        f"no model fits {pattern!r}. {hint(pattern, known)}"
        "Known: vit_ti, vit_s, vit_b and vit_l with a patch size, as vit_s16."
    )


def _draw(configs: "dict[str, ViTConfig]", left_out: list[str], image_size: int) -> "Table":
    from rich.table import Table

    attention = next(iter(configs.values())).attention.activation
    table = Table(title_justify="left", caption_justify="left")
    table.title = f"Models with {attention} attention, images of {image_size} pixels"
    table.add_column("name")
    for column in ("width", "depth", "heads", "parameters", "tokens", "GFLOPs", "attention"):
        table.add_column(column, justify="right")
    for name, config in configs.items():
        table.add_row(name, *_row(config))
    missing = f"\nNot for {image_size} pixels: {', '.join(left_out)}." if left_out else ""
    table.caption = LEGEND + missing
    return table


def _row(config: "ViTConfig") -> list[str]:
    """Sizes and costs; parameters are counted without allocating them."""
    import torch

    from flashpoint.models.cost import attention_flops, forward_flops, num_parameters, num_tokens
    from flashpoint.models.vit import ViT

    with torch.device("meta"):
        parameters = num_parameters(ViT(config))
    flops = forward_flops(config)
    return [
        str(config.width),
        str(config.depth),
        str(config.num_heads),
        f"{parameters / 1e6:.1f} M",
        str(num_tokens(config)),
        f"{flops / 1e9:.2f}",
        f"{attention_flops(config) / flops:.0%}",
    ]
