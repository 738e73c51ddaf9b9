"""Section 6: is a codebook made by k-means after training as good as one trained with the network?"""

from driftvq.experiments.recipe import CODEBOOK_SIZES, Recipe

OPEN_QUESTION = Recipe(
    name="open-question",
    title="Section 6: k-means after training against quantization during training",
    question="Does a plain autoencoder, quantised by k-means afterwards, do as well as one trained with its codebook?",
    methods=("vq", "vqgan_ema", "ns_vq", "kmeans_afterwards", "autoencoder"),
    settings={"code_dim": 64},
    sweep=CODEBOOK_SIZES,
    notes=("The paper asks this question and reports no numbers.",),
)
