"""The studies, one a file: a plan of trials and what is made of their outcomes."""
