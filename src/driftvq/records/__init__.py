"""What runs and comparisons leave on disk: dataclasses, file names, versions, and the one table of metrics; no torch."""
