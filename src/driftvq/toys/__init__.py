"""The toy demos of Suppl. 11: sixteen codes, a drifting cloud in the plane."""
