"""How fast images come from shards, beside what a training step takes."""
