"""Figure 5: the same images, rebuilt by each method."""

from driftvq.experiments.recipe import Recipe

FIGURE_STRIPS = Recipe(
    name="figure-strips",
    title="Figure 5: the same images, rebuilt by each method",
    question="What do the differences look like?",
    methods=("vq", "vqvae2", "ns_vq_paper", "sim_vq", "trans_vq_paper", "ns_vq", "trans_vq"),
    settings={"codebook_size": 1024, "code_dim": 64},
    notes=("The paper does not state the codebook size and code dimension of this figure; 1024 and 64 here.",),
)
