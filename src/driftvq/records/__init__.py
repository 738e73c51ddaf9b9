"""What runs and comparisons leave on disk: dataclasses, file names, versions, the one table of metrics; no torch."""
