"""Does this machine compute right? Random calls of the public functions against float64."""
