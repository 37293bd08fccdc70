"""Made-up numbers for every study, and the verdicts that should follow."""

import math

from lab.study.studies.outcomes import noise, outcomes

from flashpoint.lab.study.moments import output_variance

YES, NO, OPEN = "supports", "contradicts", "undecided"


SUM, SHIFTED = "relu4/sum", "relu4+2/sum"
WAYS = ("all", "every_second")


def scaling(gap, growth=0.0, by_sum=0.0):
    """relu below softmax by a gap, and by more at larger sizes; 15 epochs say nothing."""
    sizes = {"128/8": 0, "128/4": 1, "192/4": 2, "256/4": 3}

    def numbers(size, attention, seed, epochs=15):
        lost = {"relu": gap + growth * sizes[size], SUM: by_sum}.get(attention, 0.0)
        top1 = 0.7 + 0.05 * sizes[size] - (lost if epochs == 60 else 0.5) + noise(seed)
        found = {"flops": 1e15, "seconds": 10.0 + sizes[size] + seed}
        return {"top1": top1, "transfer.mean": top1, "loss": 3.0 * (1.0 - top1), **found}

    return numbers


def length_power(best, identity=0.6, relu2=0.8):
    def numbers(tokens, activation, seed, alpha=1.0):
        level = {"identity": identity, "relu2": relu2}.get(activation, 0.8)
        top1 = level - 0.1 * abs(alpha - best) + noise(seed)
        return {"top1": top1, "loss": 3.0 * (1.0 - top1)}

    return numbers


def qk_norm(lost):
    def numbers(attention, norm, seed):
        top1 = 0.8 - lost * (norm == "without") + noise(seed)
        return {"top1": top1, "loss": 3.0 * (1.0 - top1)}

    return numbers


def gate(lost, cost):
    def numbers(seed, gate="", alpha=1.0, measured=""):
        if measured:
            return {"without_s": 1.0 + noise(seed), "with_s": 1.0 + cost}
        top1 = 0.8 - lost * abs(alpha - 1.0) + noise(seed)
        return {"top1": top1, "loss": 1.0 - top1}

    return numbers


def memory_slots(softmax, norm, norm_many):
    def numbers(memory, slots, seed):
        worse = {"relu": 0.0, "softmax": softmax, "softmax + norm": norm}[memory]
        if memory == "softmax + norm" and slots >= 3072:
            worse = norm_many
        return {"loss": 3.0 + worse + noise(seed)}

    return numbers


def memory_rates(softmax, norm, norm_many):
    """relu's best rate is the lowest, the others' the highest; there they are as far apart."""
    at_best = memory_slots(softmax, norm, norm_many)

    def numbers(memory, slots, rate, seed):
        is_best = rate == (7.5e-4 if memory == "relu" else 6e-3)
        test = at_best(memory, slots, seed)["loss"]
        # Elsewhere test documents would be better: what is held out has to decide.
        return {"loss": 3.5 - 0.1 * is_best + noise(seed), "test.loss": test - (not is_best)}

    return numbers


def relu_attention(bare, factor, whole, from_one=10.0):
    found = {
        **{"softmax": 20.0, "relu, no factor": bare, "relu, factor": factor},
        **{"relu, factor, gamma from 1": from_one, "relu, factor and penalty": whole},
    }
    return lambda attention, seed: {
        "translation.bleu": found[attention] + noise(seed),
        "loss": 5.0 - 0.1 * found[attention] + noise(seed),
    }


def sentences(bare, factor, whole, by_sum):
    """A norm of q and k, and softmax in cross-attention, change nothing."""
    steps = relu_attention(bare, factor, whole)

    def numbers(direction, attention, seed):
        attention = attention.removesuffix(", qk-norm").removesuffix(", softmax in cross")
        if attention in (SUM, SHIFTED):
            return {"translation.bleu": by_sum + noise(seed), "loss": 5.0 - 0.1 * by_sum}
        return steps(attention, seed)

    return numbers


def sharpness(losses, by_sum=0.0, mixed=0.0):
    """Documents' losses by attention; elsewhere softmax is ahead by a share of what there is."""

    def numbers(task, attention, seed):
        lost = by_sum * (attention in (SUM, SHIFTED))
        if task == "retrieval":
            return {"pairs128.exact": 0.9 - lost + noise(seed), "loss": 1.0}
        if task == "images":
            return {"top1": 0.9 - lost + noise(seed), "loss": 1.0 + lost + noise(seed)}
        loss = 3.0 + (mixed if "cross" in attention else losses.get(attention, 1.0))
        return {"loss": loss + noise(seed), "translation.bleu": 50.0 - 10.0 * loss}

    return numbers


def adapt(converted, calibrated, adapted, scratch=0.8):
    """Softmax at 80%, and what became of it."""
    stages = {"converted": converted, "calibrated": calibrated, "adapted": adapted}

    def numbers(attention, seed):
        top1 = (0.8 if attention == "softmax" else scratch) + noise(seed)
        found = {"top1": top1, "loss": 3.0 * (1.0 - top1)}
        if attention == "softmax":
            names = ("relu_5", "relu_20", "relu4_sum_5", "relu4_sum_20")
            found |= {f"{n}.{s}": x + noise(seed) for n in names for s, x in stages.items()}
        return found

    return numbers


def adapt_language(converted, calibrated, adapted, scratch=3.0, keys=0.9):
    """Softmax at 3 nats and 90% of the keys, and what became of it."""
    losses = {"converted": converted, "calibrated": calibrated}

    def numbers(attention, seed):
        loss = (3.0 if attention == "softmax" else scratch) + noise(seed)
        found = {"test.loss": loss, "test.keys": 0.9 + noise(seed), "test.likelihood": -3.0}
        if attention != "softmax":
            return found
        names = [f"{name}_{way}" for name in ("relu", "relu4_sum") for way in WAYS]
        for name in names:
            for stage, level in losses.items():
                found |= {f"{name}.{stage}_loss": level + noise(seed)}
                found |= {f"{name}.{stage}_keys": 0.1, f"{name}.{stage}_likelihood": -4.0}
            for share in (5, 20):
                found |= {f"{name}_{share}.loss": adapted + noise(seed)}
                found |= {f"{name}_{share}.keys": keys, f"{name}_{share}.likelihood": -3.1}
        return found

    return numbers


def starts(changed):
    """How much another start than plain changes the loss."""
    return lambda start, seed: {"loss": 3.0 + changed * (start != "plain") + noise(seed)}


def document_length(gains, by_sum=0.0):
    def numbers(attention, length, seed):
        gained = {
            "relu": gains[length],
            **dict.fromkeys((SUM, SHIFTED, f"{SUM}, qk-norm"), by_sum),
        }
        bleu = 20.0 + gained.get(attention, 0.0) + noise(seed)
        groups = {"translation.bleu_1-128": bleu, "translation.bleu_over 2048": bleu}
        shares = {"translation.repeated_share": 0.5}
        return {"translation.bleu": bleu, "loss": 5.0 - 0.1 * bleu, **shares, **groups}

    return numbers


def learned_length(learned, from_half, alpha):
    found = {"learned from 1": learned, "learned from 0.5": from_half, "fixed at 0.5": 0.7}

    def numbers(seed, **factors):
        rule = factors["alpha"]
        return {
            "top1": found.get(rule, 0.8) + noise(seed),
            "loss": 1.0 - found.get(rule, 0.8) + noise(seed),
            "learned.alpha": alpha + noise(seed),
            "learned.alpha_layer0": alpha,
            "learned.alpha_layer1": alpha,
        }

    return numbers


def longer(relu_seen, relu_fixed, softmax, by_sum=0.7):
    def numbers(attention, trained_tokens, seed):
        far = {"softmax": softmax, SUM: by_sum}.get(attention, relu_seen)
        found = {"top1": 0.8 + noise(seed), "seen64.top1": 0.8 + noise(seed)}
        has_rules = attention not in ("softmax", SUM)
        fixed = {"fixed576.top1": relu_fixed + noise(seed)} if has_rules else {}
        top1 = {**found, "seen576.top1": far + noise(seed), **fixed}
        losses = {name.replace("top1", "loss"): 1.0 - share for name, share in top1.items()}
        return {**top1, **losses}

    return numbers


def retrieval(half, one, softmax=0.99, beyond=None, by_sum=0.99):
    """Recall of training's pairs, and of 128: by attention, or as before."""

    def numbers(attention, trained_pairs, seed):
        levels = {"relu, alpha 0.5": half, "relu, alpha 1": one, SUM: by_sum}
        level = levels.get(attention, softmax)
        far = (beyond or {}).get(attention, level)
        at = {4: 1.0, 32: level + noise(seed), 128: far + noise(seed)}
        found = {f"pairs{pairs}.exact": share for pairs, share in at.items()}
        return {**found, "loss": 0.3 * (1.0 - level)}

    return numbers


def speed(slow):
    def numbers(measured, tokens=0, seed=0):
        if measured == "kernels":
            case = "NVIDIA H200|forward|relu|full|none|bf16|64|4096"
            return {f"{case}|ours_s": 1.0, f"{case}|softmax_s": 1.8}
        return {"relu_s": 1.0 + noise(seed), "softmax_s": slow if tokens == 16 else 1.5}

    return numbers


def variance(off=1.0, softmax=1.0, lemma=None):
    def numbers(seed, width):
        found = {}
        for keys in (16, 1024):
            for alpha in (0.0, 0.5, 1.0):
                for h in ("relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid"):
                    wrong = off if (h, alpha, keys) == ("gelu", 0.5, 1024) else 1.0 + noise(seed)
                    computed = output_variance(h, alpha, keys)
                    found[f"{h}.alpha{alpha:g}.keys{keys}"] = wrong * computed
                found[f"silu.alpha{alpha:g}.keys{keys}"] = output_variance("silu", alpha, keys)
                layer = output_variance("relu", alpha, keys, width) if lemma is None else lemma
                found[f"layer.relu.alpha{alpha:g}.keys{keys}"] = layer
            found[f"softmax.keys{keys}"] = softmax * math.e / keys
        return found

    return numbers


CASES = [
    ("scaling", scaling(0.004), [YES] * 5),
    ("scaling", scaling(0.05, by_sum=0.05), [NO, YES, NO, NO, NO]),
    ("scaling", scaling(-0.03, growth=0.01), [YES, NO, YES, YES, YES]),
    ("scaling", scaling(0.01), [OPEN, YES, OPEN, YES, YES]),
    ("length-power", length_power(1.0), [YES] * 4),
    ("length-power", length_power(0.0, identity=0.85, relu2=0.85), [NO] * 4),
    ("length-power", length_power(2.0), [NO, YES, YES, YES]),
    ("qk-norm", qk_norm(0.004), [YES] * 6),
    ("qk-norm", qk_norm(0.03), [NO] * 6),
    ("qk-norm", qk_norm(-0.03), [NO] * 6),
    ("gate", gate(0.1, 0.09), [YES, YES, YES]),
    ("gate", gate(-0.1, 0.3), [NO, NO, NO]),
    ("gate", gate(0.1, 0.01), [YES, NO, YES]),
    ("memory-slots", memory_slots(0.1, 0.01, 0.1), [YES, YES]),
    ("memory-slots", memory_slots(-0.1, 0.2, -0.1), [NO, NO]),
    ("memory-rates", memory_rates(0.1, 0.01, 0.1), [YES, YES, YES]),
    ("memory-rates", memory_rates(-0.1, 0.2, -0.1), [NO, NO, NO]),
    ("relu-attention", relu_attention(1.0, 19.0, 21.0), [YES] * 7),
    ("relu-attention", relu_attention(20.0, 21.0, 18.0, 22.0), [NO] * 7),
    ("relu-attention", relu_attention(0.0, -noise(0), 18.0), [OPEN, YES, YES, NO, NO, YES, NO]),
    ("sentences", sentences(1.0, 19.0, 21.0, 19.9), [YES] * 18),
    ("sentences", sentences(20.0, 21.0, 18.0, 19.0), [NO] * 18),
    (
        "document-length",
        document_length({256: -0.1, 512: 0.5, 1024: 1.2}, by_sum=1.3),
        [YES] * 12,
    ),
    (
        "document-length",
        document_length({256: 0.9, 512: 0.5, 1024: -1.2}, by_sum=-1.5),
        [NO] * 12,
    ),
    ("variance", variance(), [YES, YES, NO]),
    ("variance", variance(off=1.3, softmax=1.3, lemma=0.5), [NO, NO, YES]),
    ("learned-length", learned_length(0.81, 0.8099, 0.8), [YES] * 5),
    ("learned-length", learned_length(0.75, 0.65, 0.5), [NO] * 5),
    ("longer-than-trained", longer(0.7, 0.3, 0.7), [YES] * 6),
    ("longer-than-trained", longer(0.3, 0.5, 0.7, by_sum=0.6), [NO] * 6),
    ("retrieval", retrieval(0.98, 0.5, by_sum=0.95), [YES, NO, YES, NO, NO, YES, YES, NO, NO]),
    (
        "retrieval",
        retrieval(0.5, 0.999, beyond={SUM: 0.9}),
        [NO, YES, NO, YES, YES, NO, NO, YES, YES],
    ),
    (
        "retrieval",
        retrieval(0.98, 0.98, beyond={"relu, alpha 1": 0.3}),
        [YES, YES, YES, NO, YES, YES, YES, YES, YES],
    ),
    (
        "sharpness",
        sharpness({"softmax": 0.0, SHIFTED: 0.0, SUM: 0.03, "relu/sum": 0.4, "relu4/length": 0.5}),
        [YES] * 17,
    ),
    (
        "sharpness",
        sharpness(
            {SHIFTED: 2.5, SUM: 2.0, "relu/sum": 1.9, "relu4/length": 1.5, "softmax": 0.5},
            by_sum=0.2,
            mixed=0.9,
        ),
        [NO] * 17,
    ),
    ("starts", starts(-0.5), [YES] * 4),
    ("starts", starts(9.0), [NO] * 4),
    ("adapt", adapt(0.3, 0.5, 0.795), [YES] * 8),
    ("adapt", adapt(0.5, 0.3, 0.7), [NO] * 6 + [YES] * 2),
    ("adapt", adapt(0.3, 0.5, 0.7, scratch=0.6), 2 * [YES, NO, YES] + [NO] * 2),
    ("adapt-language", adapt_language(5.0, 4.0, 3.02), [YES] * 10),
    ("adapt-language", adapt_language(4.0, 5.0, 3.5, keys=0.5), [NO] * 10),
    ("adapt-language", adapt_language(5.0, 4.0, 3.5, 4.0), 2 * [YES, NO, NO, YES, YES]),
    ("speed", speed(1.1), [YES, YES]),
    ("speed", speed(0.9), [NO, YES]),
    ("speed", speed(2.5), [YES, NO]),
]


def samples(name):
    """Good numbers of a study's whole plan at small."""
    numbers = next(numbers for case, numbers, _ in CASES if case == name)
    return outcomes(name, numbers)
