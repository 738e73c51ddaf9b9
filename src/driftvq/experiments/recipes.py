"""The experiments, as data: every table and figure of the paper, ``driftvq compare``, and where codebooks collapse.

A recipe is a base and what is varied; one more entry in ``RECIPES`` is a new experiment, and a test runs it.
"""

from collections.abc import Mapping
from typing import Any

from driftvq.experiments.design import Condition, Published, Recipe, every, vary
from driftvq.records.comparisons import Point

PAPER_K = 8192
"""The paper's tables print 8912; the configurations that its authors published say 8192."""

CODEBOOK_SIZES = (64, 1024, PAPER_K)
TABLE_METHODS = (
    *("vqgan_fc", "vqvae2", "vqgan_ema", "vqgan_ema_authors", "ema_tuned", "sim_vq"),
    *("ns_vq_paper", "ns_vq_published", "trans_vq_paper", "trans_vq_published", "trans_vq_mlp_paper"),
    *("ns_vq", "trans_vq", "trans_vq_mlp", "autoencoder"),
)
"""The six methods of the paper's tables in all their forms, our defaults, and the ceiling."""

CELEBA = "CelebA-HQ 256×256, 40 epochs, batches of 16, Adam 5e-4, the network of Tab. 1"
PRINTED_K = "The paper's tables print K = 8912; its authors' configurations say 8192, which is used here."
WHICH_LPIPS = "The paper does not say which network its LPIPS uses; AlexNet here."


def _over_sizes(rows: Mapping[str, tuple[float, ...]]) -> dict[tuple[str, Point], dict[str, float]]:
    """The paper's tables: each row has rFID and usage in turn, for each codebook size."""
    return {
        (method, size): {"rfid": numbers[2 * place], "usage": numbers[2 * place + 1]}
        for method, numbers in rows.items()
        for place, size in enumerate(CODEBOOK_SIZES)
    }


TABLE_3D = _over_sizes(
    {
        "vqgan_fc": (24.10, 1.00, 18.48, 1.00, 17.57, 0.34),
        "vqvae2": (53.25, 1.00, 31.17, 0.40, 24.24, 0.60),
        "vqgan_ema": (60.86, 1.00, 17.86, 1.00, 17.93, 1.00),
        "sim_vq": (23.39, 1.00, 23.35, 1.00, 21.69, 1.00),
        "ns_vq_paper": (24.55, 1.00, 17.86, 1.00, 16.89, 1.00),
        "trans_vq_paper": (24.42, 1.00, 17.82, 1.00, 17.35, 1.00),
    }
)
TABLE_64D = _over_sizes(
    {
        "vqgan_fc": (24.41, 0.66, 25.77, 0.03, 26.00, 0.00),
        "vqvae2": (85.86, 0.82, 36.91, 0.57, 25.87, 0.28),
        "vqgan_ema": (159.21, 1.00, 20.81, 1.00, 19.39, 1.00),
        "sim_vq": (23.40, 1.00, 17.77, 1.00, 14.37, 1.00),
        "ns_vq_paper": (23.39, 1.00, 17.44, 1.00, 14.01, 1.00),
        "trans_vq_paper": (23.24, 1.00, 17.60, 1.00, 13.70, 1.00),
    }
)
_LOW, _HIGH = {"codebook_size": PAPER_K, "code_dim": 3}, {"codebook_size": PAPER_K, "code_dim": 64}

PAPER_RECIPES = (
    Recipe(
        "compare",
        "The paper's methods, their peers, and our defaults",
        "Which quantizer rebuilds images best, and which of them keep their codebook alive?",
        (
            *("vq", "vqgan_ema", "sim_vq", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq_mlp"),
            *("autoencoder", "kmeans_afterwards"),
        ),
        {"codebook_size": 1024, "code_dim": 64},
    ),
    Recipe(
        "table-3d",
        "Table 2: codes of 3 dimensions",
        "With codes of 3 dimensions, which method is best at each codebook size, and which use all codes?",
        TABLE_METHODS,
        {"code_dim": 3},
        conditions=vary("codebook_size", *CODEBOOK_SIZES),
        published=Published("Table 2, D = 3", CELEBA, TABLE_3D),
        notes=(PRINTED_K,),
    ),
    Recipe(
        "table-64d",
        "Table 3: codes of 64 dimensions",
        "With codes of 64 dimensions, which method is best at each codebook size, and which use all codes?",
        TABLE_METHODS,
        {"code_dim": 64},
        conditions=vary("codebook_size", *CODEBOOK_SIZES),
        published=Published("Table 3, D = 64", CELEBA, TABLE_64D),
        notes=(PRINTED_K,),
    ),
    Recipe(
        "table-best",
        "Table 4: each method at its best configuration",
        "Each at the configuration that suits it best, which method rebuilds images best?",
        TABLE_METHODS,
        _HIGH,
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
            WHICH_LPIPS,
        ),
    ),
    Recipe(
        "imagenet",
        "Supplement 12: ImageNet",
        "On natural images and with a perceptual loss, which method rebuilds images best?",
        ("vq", "vqgan_fc", "vqgan_ema", "sim_vq", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq"),
        {"codebook_size": PAPER_K, "code_dim": 3, "loss": "mse+lpips", "betas": (0.5, 0.9)},
        at_scale={
            # The learning rate is the base rate times the batch size, the convention of the network's family.
            "paper": {"network": "taming_f4", "epochs": 4.0, "batch_size": 12, "learning_rate": 4.5e-6 * 12},
            "overnight": {"size": 64, "epochs": 4.0},
        },
        published=Published(
            "Table 6, ImageNet",
            "ImageNet-1K 256×256, 4 epochs, batches of 12, Adam (0.5, 0.9), MSE + LPIPS, the network of Tab. 5",
            {
                ("vq", None): {"rfid": 1.060, "lpips_alex": 0.113},
                ("vqgan_fc", None): {"rfid": 0.600, "lpips_alex": 0.087},
                ("vqgan_ema", None): {"rfid": 1.270, "lpips_alex": 0.124},
                ("sim_vq", None): {"rfid": 0.551, "lpips_alex": 0.088},
                ("ns_vq_paper", None): {"rfid": 0.561, "lpips_alex": 0.087},
                ("trans_vq_paper", None): {"rfid": 0.432, "lpips_alex": 0.067},
            },
        ),
        notes=(
            "The paper does not state the codebook size for ImageNet; 8192 here.",
            "The encoder and decoder of its Tab. 5 have different strides; taming_f4 keeps the decoder's, 4.",
            "The paper does not say which network its LPIPS uses; AlexNet here, and VGG in the loss.",
        ),
    ),
    Recipe(
        "figure-codebook-size",
        "Figure 3: quality and usage against the codebook size",
        "Does quality rise with the codebook, and do all of its codes stay in use?",
        ("vqgan_fc", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq"),
        {"code_dim": 64},
        conditions=vary("codebook_size", 64, 256, 1024, 4096, 8192),
        published=Published(
            "Table 3, D = 64 (the figure prints no numbers)",
            CELEBA,
            {key: TABLE_64D[key] for key in TABLE_64D if key[0] in ("vqgan_fc", "ns_vq_paper", "trans_vq_paper")},
        ),
        notes=("The paper does not list the sizes of this figure.",),
    ),
    Recipe(
        "figure-batch-size",
        "Figure 4: quality against the batch size, K = D = 64",
        "Does a larger batch make the codebook of a standard VQ-VAE better?",
        ("vq", "ns_vq"),
        {"codebook_size": 64, "code_dim": 64},
        conditions=vary("batch_size", 4, 8, 16, 32, 64),
        same_images=True,
        notes=(
            "All batch sizes see as many images, as in a number of epochs, so larger ones take fewer steps.",
            "The figure of the paper prints no numbers and its text lists no batch sizes; it shows the standard VQ-VAE "
            "and says that rFID falls with the batch size.",
        ),
    ),
    Recipe(
        "figure-batch-size-steps",
        "Figure 4 at equal steps: quality against the batch size, K = D = 64",
        "Does a larger batch make the codebook of a standard VQ-VAE better, if it takes as many steps?",
        ("vq", "ns_vq"),
        {"codebook_size": 64, "code_dim": 64},
        conditions=vary("batch_size", 4, 8, 16, 32, 64),
        notes=("All batch sizes take as many steps, so larger ones see more images.",),
    ),
    Recipe(
        "figure-strips",
        "Figure 5: the same images, rebuilt by each method",
        "What do the differences look like?",
        ("vq", "vqvae2", "ns_vq_paper", "sim_vq", "trans_vq_paper", "ns_vq", "trans_vq"),
        {"codebook_size": 1024, "code_dim": 64},
        notes=("The paper does not state the codebook size and code dimension of this figure; 1024 and 64 here.",),
    ),
    Recipe(
        "open-question",
        "Section 6: k-means after training against quantization during training",
        "Does a plain autoencoder, quantised by k-means afterwards, do as well as one trained with its codebook?",
        ("vq", "vqgan_ema", "ns_vq", "ns_vq_settled", "kmeans_afterwards", "autoencoder"),
        {"code_dim": 64},
        conditions=vary("codebook_size", *CODEBOOK_SIZES),
        notes=("The paper asks this question and reports no numbers.",),
    ),
)

OURS = ("ns_vq", "trans_vq_mlp")
ALL_OURS = (*OURS, "trans_vq")
"""The form with attention costs several times as much as the others, so it is in the main tables only."""
PEERS = ("vq", "vqvae2", "ema_replace", "ema_tuned", "vqgan_fc", "sim_vq", "fsq")
FIELD = (
    *("ifsq", "bsq", "wasserstein_vq", "bridge_vq", "ibq", "cvq", "opt_vq", "diveq", "sf_diveq"),
    "ns_vq_sequel",
)
"""Other cures for collapse."""
REGRET_CHANGES: tuple[Mapping[str, Any], ...] = (
    *({"codebook_size": size, "code_dim": dim} for size in (1024, 8192, 64) for dim in (64, 3)),
    *({"code_dim": dim} for dim in (8, 256)),
    *({"batch_size": batch} for batch in (2, 64)),
    {"codebook_size": 8192, "batch_size": 2},  # 64 codes for each latent of a batch
    *({"learning_rate": rate} for rate in (5e-5, 5e-3)),
    {"size": 64},
)
"""Conditions, written down before any of them was measured."""
CODES_AND_BATCHES = (
    *((256, 64), (256, 16), (256, 4), (256, 1)),
    *((1024, 64), (1024, 16), (1024, 4), (1024, 1)),
    *((8192, 16), (8192, 4), (8192, 2), (65_536, 16)),
)
"""1/16 to 64 codes for each latent of a batch, of which an image of 32 px has 64."""
ABLATIONS = (
    *("ns_vq_random", "ns_vq_no_drift", "ns_vq_no_relocation", "ns_vq_winners_alone", "ns_vq_no_winners"),
    *("trans_vq_mlp_random", "trans_vq_mlp_no_relocation"),
)
ESTIMATORS = tuple(f"{name}_{estimator}" for name in OURS for estimator in ("rotation", "modified", "gumbel"))
RESIDUAL = tuple(f"residual_{name}" for name in OURS)
BETAS = (
    *("ns_vq_committed", "trans_vq_mlp_committed"),
    *("ema_replace_our_beta", "ema_tuned_our_beta", "sim_vq_our_beta"),
)


def _collapse(
    name: str, title: str, question: str, methods: tuple[str, ...], settings: Mapping[str, Any] = {}, **more: Any
) -> Recipe:
    """Faces or photographs at 32 px, 2,500 steps: long enough to see which codebooks live, short enough for a CPU."""
    base = {"network": "small", "size": 32, "steps": 2500, "batch_size": 16, "learning_rate": 5e-4}
    base |= {"codebook_size": 1024, "code_dim": 64, "val_every": 500, "probe_every": 250, "checkpoint_every": 500}
    options: dict[str, Any] = {"evaluation": 200, "probes": (300,), **more}
    metrics = ("psnr", "lpips_alex", "rfid", "kid", "ssim", "usage", "perplexity")
    return Recipe(f"collapse-{name}", title, question, methods, {**base, **settings}, metrics=metrics, **options)


COLLAPSE_RECIPES = (
    _collapse(
        "grid",
        "Living codebooks: codebook sizes and code dimensions",
        "Which codebooks live, and what do they rebuild, with few and many codes of few and many dimensions?",
        (*ALL_OURS, *PEERS, "autoencoder"),
        conditions=every(codebook_size=(8192, 1024, 64), code_dim=(64, 3)),
        seeds=3,
    ),
    _collapse(
        "robust",
        "Living codebooks: other conditions, same defaults",
        "Do the defaults hold with small batches, other learning rates, latents in other units, and after a warm-up?",
        OURS,
        conditions=tuple(
            Condition({"code_dim": dim, **change})
            for change in (
                *({"batch_size": 2}, {"learning_rate": 5e-5}, {"learning_rate": 5e-3}),
                *({"latent_scale": 1e-3}, {"latent_scale": 1e3}, {"warm_up": 500}),
            )
            for dim in (64, 3)
        ),
    ),
    _collapse(
        "headline",
        "Living codebooks: 64 pixels",
        "Which codebooks live at 64 pixels, with 1,024 codes of 64 dimensions?",
        (*ALL_OURS, *PEERS, "autoencoder"),
        {"size": 64},
        seeds=3,
    ),
    _collapse(
        "options",
        "Living codebooks: estimators, residual levels, 256 dimensions",
        "Do the codes live with other gradient estimators, in eight residual levels, and with 256 dimensions?",
        (*ESTIMATORS, *RESIDUAL, *OURS),
        conditions=(
            Condition({"codebook_size": 1024}, ESTIMATORS),
            Condition({"codebook_size": 256}, RESIDUAL),
            Condition({"code_dim": 256}, OURS),
        ),
    ),
    _collapse(
        "ablation",
        "Living codebooks: one part left out",
        "What is each part worth?",
        (*OURS, "ns_vq_paper", "trans_vq_paper", *ABLATIONS),
        conditions=vary("codebook_size", 1024, 8192),
    ),
    _collapse(
        "photos",
        "Living codebooks: photographs",
        "Which codebooks live on photographs?",
        (*ALL_OURS, *PEERS, "autoencoder"),
        evaluation=120,
    ),
    _collapse(
        "large",
        "Living codebooks: 65,536 codes",
        "Do 65,536 codes live?",
        (*OURS, "ema_tuned", "ema_replace"),
        {"codebook_size": 65_536, "steps": 5000},
        conditions=vary("code_dim", 64, 3),
        probes=(),
    ),
    _collapse(
        "commitment",
        "Living codebooks: β at 3 dimensions",
        "What does the smaller β of our defaults do below 64 dimensions, to us and to others?",
        (*OURS, *PEERS, *BETAS),
        {"code_dim": 3},
        conditions=(
            Condition({"codebook_size": 1024}),
            Condition({"codebook_size": 8192}, ("ns_vq_committed", "trans_vq_mlp_committed")),
        ),
        seeds=3,
    ),
    _collapse(
        "few",
        "Living codebooks: 64 codes per latent",
        "Who keeps 8,192 codes alive with 128 latents a step?",
        (*OURS, "ns_vq_no_drift", "ema_tuned"),
        {"codebook_size": 8192, "batch_size": 2},
        seeds=3,
    ),
    _collapse(
        "drift",
        "Where drift decides: codes per latent of a batch",
        "From how many codes per latent of a batch on does it matter what moves the codes that were not selected?",
        (*OURS, "ns_vq_no_drift", "trans_vq_mlp_no_drift", "ema_tuned", "sim_vq", "wasserstein_vq"),
        conditions=tuple(Condition({"codebook_size": k, "batch_size": b}) for k, b in CODES_AND_BATCHES),
        seeds=1,
    ),
    _collapse(
        "regret",
        "Regret: every cure under many conditions",
        "Which method is never far from the best one, without tuning?",
        (*OURS, *PEERS, *FIELD),
        conditions=tuple(map(Condition, REGRET_CHANGES)),
        seeds=1,
    ),
    _collapse(
        "regret-photos",
        "Regret: every cure on photographs",
        "Which method is never far from the best one, on other images?",
        (*OURS, *PEERS, *FIELD),
        conditions=vary("codebook_size", 1024, 8192),
        evaluation=120,
        seeds=1,
    ),
    _collapse(
        "settle",
        "An encoder that rests for the last fifth of the steps",
        "Does it pay to settle the codebook on latents that do not move?",
        ("ns_vq", "trans_vq_mlp", "ema_tuned", "sim_vq", "wasserstein_vq"),
        conditions=every(settle=(0.0, 0.2), codebook_size=(1024, 8192)),
        seeds=3,
    ),
)

RECIPES = {recipe.name: recipe for recipe in (*PAPER_RECIPES, *COLLAPSE_RECIPES)}
"""Every recipe."""
