"""Table 4: each method at the configuration that the paper found best for it."""

from driftvq.experiments.recipe import CELEBA, PAPER_K, PRINTED_K, TABLE_METHODS, Published, Recipe

_LOW = {"codebook_size": PAPER_K, "code_dim": 3}
_HIGH = {"codebook_size": PAPER_K, "code_dim": 64}

TABLE_BEST = Recipe(
    name="table-best",
    title="Table 4: each method at its best configuration",
    question="Each at the configuration that suits it best, which method rebuilds images best?",
    methods=TABLE_METHODS,
    settings=_HIGH,
    method_settings={"vqgan_fc": _LOW, "vqvae2": _LOW, "vqgan_ema": {"codebook_size": 1024, "code_dim": 3}},
    published=Published(
        "Table 4",
        CELEBA,
        {
            ("vqgan_fc", None): {"ssim": 0.93, "lpips_alex": 0.022, "rfid": 17.57},
            ("vqvae2", None): {"ssim": 0.89, "lpips_alex": 0.042, "rfid": 24.24},
            ("vqgan_ema", None): {"ssim": 0.92, "lpips_alex": 0.024, "rfid": 17.86},
            ("sim_vq", None): {"ssim": 0.93, "lpips_alex": 0.017, "rfid": 14.37},
            ("ns_vq_paper", None): {"ssim": 0.96, "lpips_alex": 0.015, "rfid": 14.01},
            ("trans_vq_paper", None): {"ssim": 0.94, "lpips_alex": 0.015, "rfid": 13.70},
        },
    ),
    notes=(
        PRINTED_K,
        "Methods have 3 or 64 dimensions here, so their networks differ in the layers next to the codes.",
        "The paper does not say which network its LPIPS uses; AlexNet here.",
    ),
)
