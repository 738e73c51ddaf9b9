"""What is in a model and in the records of its training, and whether its codebook is alive: ``driftvq inspect``."""
