"""One file per table and figure of the paper, and the comparison that ``driftvq compare`` runs."""

from driftvq.experiments.recipe import Recipe
from driftvq.experiments.recipes.compare import COMPARE
from driftvq.experiments.recipes.figure_batch_size import FIGURE_BATCH_SIZE
from driftvq.experiments.recipes.figure_codebook_size import FIGURE_CODEBOOK_SIZE
from driftvq.experiments.recipes.figure_strips import FIGURE_STRIPS
from driftvq.experiments.recipes.imagenet import IMAGENET
from driftvq.experiments.recipes.open_question import OPEN_QUESTION
from driftvq.experiments.recipes.table_3d import TABLE_3D
from driftvq.experiments.recipes.table_64d import TABLE_64D
from driftvq.experiments.recipes.table_best import TABLE_BEST

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        COMPARE,
        TABLE_3D,
        TABLE_64D,
        TABLE_BEST,
        IMAGENET,
        FIGURE_CODEBOOK_SIZE,
        FIGURE_BATCH_SIZE,
        FIGURE_STRIPS,
        OPEN_QUESTION,
    )
}
"""Every recipe; a new one is one file and one more entry, and a test runs it."""
