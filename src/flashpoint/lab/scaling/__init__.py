"""What a training step on many GPUs would take: estimates from stored measurements."""
