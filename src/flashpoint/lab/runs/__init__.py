"""The run folder: names, schema, reading and writing of every file; no torch."""
