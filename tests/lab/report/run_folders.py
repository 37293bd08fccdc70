"""Run folders as training writes them, made up."""

import base64
import json
import math

import yaml

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def make_run(path, *, attention="relu", top1=0.9, steps=300, seed=0, **record):
    """A finished run with curves, a record and an environment."""
    path.mkdir(parents=True)
    config = {"model": {"name": "vit", "attention": {"activation": attention}}, "seed": seed}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    lines = []
    for step in range(1, steps + 1):
        loss = 2.3 * math.exp(-step / 100) + 0.01 * (step % 3)
        lines.append({"kind": "train", "step": step, "loss": loss, "seconds": step / 20})
        if step % 100 == 0:
            numbers = {"top1": top1 * step / steps, "top5": 0.99, "loss": loss + seed}
            lines.append({"kind": "validation", "step": step, **numbers})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {"device": "a CPU", "threads": 1, "torch": "2.13.0", "commit": None}
    content = {
        **{"steps": steps, "seconds": steps / 20, "samples_per_s": 1234.5, "flops": 3.4e11},
        **{"num_parameters": 203_000, "environment": environment, "notes": {}},
        "validation": {"top1": top1, "top5": 0.99, "loss": 0.1 + seed},
        "best": {"top1": top1, "step": steps},
        **record,
    }
    (path / "record.json").write_text(json.dumps(content))
    return path


def add_attention(path, num_keys=196):
    """What ``flashpoint inspect`` leaves: statistics of 2 layers and 3 heads, one dead; a map."""
    folder = path / "attention"
    folder.mkdir()
    numbers = {"sparsity": 0.5, "zero_tiles_64": 0.25, "zero_tiles_128": 0.125, "empty_rows": 0.0}
    heads = [
        {"layer": n // 3, "head": n % 3, **numbers, "mass": 0.3, "entropy": 1.5, "is_dead": False}
        for n in range(6)
    ]
    heads[4] |= {"sparsity": 1.0, "mass": 0.0, "entropy": None, "is_dead": True}
    shown = {"step": 900, "data": "digits", "num_images": 256, "num_keys": num_keys}
    (folder / "statistics.json").write_text(json.dumps({**shown, "heads": heads}))
    (folder / "maps.png").write_bytes(PIXEL)
    return path
