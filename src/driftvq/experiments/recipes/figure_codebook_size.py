"""Figure 3: rFID and usage against the codebook size."""

from driftvq.experiments.recipe import CELEBA, Published, Recipe, Sweep
from driftvq.experiments.recipes.table_64d import TABLE_64D

assert TABLE_64D.published is not None

FIGURE_CODEBOOK_SIZE = Recipe(
    name="figure-codebook-size",
    title="Figure 3: quality and usage against the codebook size",
    question="Does quality rise with the codebook, and do all of its codes stay in use?",
    methods=("vqgan_fc", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq"),
    settings={"code_dim": 64},
    sweep=Sweep("codebook_size", (64, 256, 1024, 4096, 8192), "codebook size K"),
    published=Published(
        "Table 3, D = 64 (the figure prints no numbers)",
        CELEBA,
        {
            key: values
            for key, values in TABLE_64D.published.values.items()
            if key[0] in ("vqgan_fc", "ns_vq_paper", "trans_vq_paper")
        },
    ),
    notes=("The paper does not list the sizes of this figure.",),
)
