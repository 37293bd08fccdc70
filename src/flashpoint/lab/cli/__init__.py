"""The command line, one file a verb; torch is imported when a verb runs, not before."""
