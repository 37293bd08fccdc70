"""Studies: plans of runs over configs, who runs them, and what their records say."""
