"""Supplement 12: ImageNet."""

from driftvq.experiments.recipe import PAPER_K, Published, Recipe

LEARNING_RATE = 4.5e-6 * 12
"""The base learning rate times the batch size, the convention of the network's family."""

IMAGENET = Recipe(
    name="imagenet",
    title="Supplement 12: ImageNet",
    question="On natural images and with a perceptual loss, which method rebuilds images best?",
    methods=("vq", "vqgan_fc", "vqgan_ema", "sim_vq", "ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq"),
    settings={"codebook_size": PAPER_K, "code_dim": 3, "loss": "mse+lpips", "betas": (0.5, 0.9)},
    paper_settings={
        "network": "taming_f4",
        "epochs": 4.0,
        "batch_size": 12,
        "learning_rate": LEARNING_RATE,
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
        "The encoder and decoder of its Tab. 5 have different strides; the network taming_f4 keeps the decoder's, 4.",
        "The paper does not say which network its LPIPS uses; AlexNet here, and VGG in the loss.",
    ),
)
