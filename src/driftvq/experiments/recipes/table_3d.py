"""Table 2: code dimension 3."""

from driftvq.experiments.recipe import CELEBA, CODEBOOK_SIZES, PRINTED_K, TABLE_METHODS, Published, Recipe, over_sizes

TABLE_3D = Recipe(
    name="table-3d",
    title="Table 2: codes of 3 dimensions",
    question="With codes of 3 dimensions, which method is best at each codebook size, and which use all codes?",
    methods=TABLE_METHODS,
    settings={"code_dim": 3},
    sweep=CODEBOOK_SIZES,
    published=Published(
        "Table 2, D = 3",
        CELEBA,
        over_sizes(
            {
                "vqgan_fc": (24.10, 1.00, 18.48, 1.00, 17.57, 0.34),
                "vqvae2": (53.25, 1.00, 31.17, 0.40, 24.24, 0.60),
                "vqgan_ema": (60.86, 1.00, 17.86, 1.00, 17.93, 1.00),
                "sim_vq": (23.39, 1.00, 23.35, 1.00, 21.69, 1.00),
                "ns_vq_paper": (24.55, 1.00, 17.86, 1.00, 16.89, 1.00),
                "trans_vq_paper": (24.42, 1.00, 17.82, 1.00, 17.35, 1.00),
            }
        ),
    ),
    notes=(PRINTED_K,),
)
