"""The comparison of ``driftvq compare``."""

from driftvq.experiments.recipe import Recipe

COMPARE = Recipe(
    name="compare",
    title="The paper's methods, their peers, and our defaults",
    question="Which quantizer rebuilds images best, and which of them keep their codebook alive?",
    methods=(
        *("vq", "vqgan_ema", "sim_vq", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq_mlp"),
        *("autoencoder", "kmeans_afterwards"),
    ),
    settings={"codebook_size": 1024, "code_dim": 64},
)
