"""Colors, names and type of all figures of results."""

from typing import Any

from flashpoint.lab.bench.result import Result

INK, MUTED, RULE = "#1B1F24", "#6B7280", "#E5E7EB"
COLORS = {
    "flashpoint": "#E4502A",
    "sdpa": "#8A94A6",
    "sdpa_cudnn": "#8A94A6",
    "sdpa_flash": "#B9C1CD",
    "sdpa_efficient": "#D5DAE2",
    "sdpa_math": "#E6E9EE",
    "fa4": "#9FB3D1",
    "flex_softmax": "#A9BFB4",
    "flex_log": "#C9D8D0",
    "plain": "#CDBFB0",
    "plain_compiled": "#E2D9CF",
}
NAMES = {
    "flashpoint": "Flashpoint",
    "sdpa": "SDPA",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa_flash": "SDPA flash",
    "sdpa_efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
    "fa4": "FlashAttention-4",
    "flex_softmax": "FlexAttention softmax",
    "flex_log": "FlexAttention, log trick",
    "plain": "plain PyTorch",
    "plain_compiled": "plain PyTorch, compiled",
}
STYLE: dict[Any, Any] = {
    "font.size": 13,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "xtick.color": INK,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "svg.fonttype": "none",
}


def place_of(result: Result) -> str:
    """With what a result was measured and when, as the line below a figure."""
    place = result.environment
    return f"{place.versions}. Medians, {place.time_utc[:10]}."
