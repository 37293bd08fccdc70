"""Building blocks of models, one family of modules a file."""
