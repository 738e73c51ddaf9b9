"""Figure 4: quality of the standard VQ-VAE against the batch size."""

from driftvq.experiments.recipe import Recipe, Sweep

FIGURE_BATCH_SIZE = Recipe(
    name="figure-batch-size",
    title="Figure 4: quality against the batch size, K = D = 64",
    question="Does a larger batch make the codebook of a standard VQ-VAE better?",
    methods=("vq", "ns_vq"),
    settings={"codebook_size": 64, "code_dim": 64},
    sweep=Sweep("batch_size", (4, 8, 16, 32, 64), "batch size"),
    same_images=True,
    notes=(
        "All batch sizes see as many images, as in training for a number of epochs, so larger ones take fewer steps.",
        "The figure of the paper prints no numbers and its text lists no batch sizes; it shows the standard VQ-VAE "
        "and says that rFID falls with the batch size.",
    ),
)
