"""The paper's experiments, each a recipe that can be run again."""
