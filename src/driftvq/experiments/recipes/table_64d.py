"""Table 3: code dimension 64."""

from driftvq.experiments.recipe import CELEBA, CODEBOOK_SIZES, PRINTED_K, TABLE_METHODS, Published, Recipe, over_sizes

TABLE_64D = Recipe(
    name="table-64d",
    title="Table 3: codes of 64 dimensions",
    question="With codes of 64 dimensions, which method is best at each codebook size, and which use all codes?",
    methods=TABLE_METHODS,
    settings={"code_dim": 64},
    sweep=CODEBOOK_SIZES,
    published=Published(
        "Table 3, D = 64",
        CELEBA,
        over_sizes(
            {
                "vqgan_fc": (24.41, 0.66, 25.77, 0.03, 26.00, 0.00),
                "vqvae2": (85.86, 0.82, 36.91, 0.57, 25.87, 0.28),
                "vqgan_ema": (159.21, 1.00, 20.81, 1.00, 19.39, 1.00),
                "sim_vq": (23.40, 1.00, 17.77, 1.00, 14.37, 1.00),
                "ns_vq_paper": (23.39, 1.00, 17.44, 1.00, 14.01, 1.00),
                "trans_vq_paper": (23.24, 1.00, 17.60, 1.00, 13.70, 1.00),
            }
        ),
    ),
    notes=(PRINTED_K,),
)
