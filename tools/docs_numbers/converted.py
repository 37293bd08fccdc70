"""Tables of softmax models whose attention was replaced: a ViT, and a GPT-2."""

from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import less, numbers, spread, table

ATTENTIONS = {"relu": "relu", "relu4/sum": "relu4_sum"}
"""As the page names them, and as evaluations do."""
STAGES = {
    "converted": "{name}_20.converted",
    "calibrated": "{name}_20.calibrated",
    "adapted in 5% of the updates": "{name}_5.adapted",
    "adapted in 20%": "{name}_20.adapted",
}
LAYERS = {"all": "all", "every_second": "every second"}
SHARES = (5, 20)


@numbers("adapt")
def _images(stored: Stored) -> str:
    softmax = stored.top1("adapt", "softmax")
    rows: list[list[str]] = [["softmax, untouched", *2 * [spread(softmax), ""]]]
    for stage, number in STAGES.items():
        rows.append([stage])
        for name in ATTENTIONS.values():
            found = PERCENT * stored.values("adapt", "softmax-", number.format(name=name))
            rows[-1] += [spread(found), less(found, softmax)]
    rows.append(["trained from scratch"])
    for trial in ("relu", "relu4-sum"):
        found = stored.top1("adapt", trial)
        rows[-1] += [spread(found), less(found, softmax)]
    return table(["top-1", "relu", "less softmax", "relu4/sum", "less softmax"], rows)


@numbers("adapt-language")
def _language(stored: Stored) -> str:
    own = stored.values("adapt-language", "softmax-", "test.perplexity")
    rows = [["softmax", "untouched", *4 * [""], spread(own, 1)]]
    for word, name in ATTENTIONS.items():
        for layers, shown in LAYERS.items():
            place = f"{name}_{layers}"
            kinds = [f"{place}.{stage}_perplexity" for stage in ("converted", "calibrated")]
            kinds += [f"{place}_{share}.perplexity" for share in SHARES]
            found = [stored.values("adapt-language", "softmax-", kind) for kind in kinds]
            rows.append([word, shown, *(spread(one, 1) for one in found), ""])
        trial = word.replace("/", "-")
        scratch = stored.values("adapt-language", f"{trial}-", "test.perplexity")
        rows.append([word, "from scratch", *4 * [""], spread(scratch, 1)])
    head = ["perplexity", "layers", "converted", "calibrated", "adapted in 5%", "in 20%"]
    return table([*head, "trained"], rows)


@numbers("adapt-language-more")
def _writing(stored: Stored) -> str:
    """What the models write, under the softmax model, and the keys that they find."""

    def cells(trial: str, kind: str) -> list[str]:
        likelihood, keys = (
            stored.values("adapt-language", trial, f"{kind}{number}")
            for number in ("likelihood", "keys")
        )
        return [spread(likelihood), f"{spread(PERCENT * keys, 1)}%"]

    rows = [["softmax", "untouched", *cells("softmax-", "test.")]]
    for word, name in ATTENTIONS.items():
        for layers, shown in LAYERS.items():
            place = f"{name}_{layers}"
            kinds = {stage: f"{place}.{stage}_" for stage in ("converted", "calibrated")}
            kinds |= {f"adapted in {share}%": f"{place}_{share}." for share in SHARES}
            rows += [
                [word, f"{shown}, {n}", *cells("softmax-", kind)] for n, kind in kinds.items()
            ]
        trial = word.replace("/", "-")
        keys = PERCENT * stored.values("adapt-language", f"{trial}-", "test.keys")
        rows.append([word, "from scratch", "", f"{spread(keys, 1)}%"])
    return table(["", "layers", "log-likelihood a token", "planted keys found"], rows)
