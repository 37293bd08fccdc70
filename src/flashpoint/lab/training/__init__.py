"""Training: one loop, whatever the task; config, optimizer, checkpoints and a run's folder."""
