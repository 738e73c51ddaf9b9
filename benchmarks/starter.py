"""The tokenizer that comes with the package: trained, measured, and written with its card. `make starter`."""

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch

from driftvq.cli import main
from driftvq.data.embedded import find_photographs, region_columns
from driftvq.data.images import Pixels, read_image, to_float, to_uint8
from driftvq.files import write_text
from driftvq.metrics import psnr
from driftvq.models import VQVAE, save_pretrained
from driftvq.models.pretrained import CARD
from driftvq.names import STARTER

FOLDER = Path(__file__).parents[1] / "src" / "driftvq" / "models" / STARTER
FLAGS = (
    "--codebook-size 4096 --code-dim 32 --steps 3000 --weight-ema 0.998 --precision 32-true --seed 0 "
    "--val-every 500 --val-images 0 --probe-every 0"
)
UNSEEN = ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")
"""A photograph of which no pixel was trained on."""

LICENCE = """## Licence

The weights: MIT, as driftvq. They are made of ten photographs that scikit-image and scikit-learn install, under the
licences stated there; china.jpg and flower.jpg are CC BY 2.0.
"""
LIMITS = """## Limits

Made to try the commands, not to build on. Ten photographs are a small world: no perceptual or adversarial loss, one
size of tile, a few thousand steps. Fine texture and text are blurred, smooth areas of rare colours are blotched; 12
bits for 4×4 pixels are 0.75 bits per pixel. Train your own: `driftvq train --data photos/`.
"""


def held_out() -> dict[str, Pixels]:
    """The right fifth of each photograph, which training does not see, and a photograph that it has nothing of."""
    pictures = {}
    for path in find_photographs():
        image = read_image(path)
        first, last = region_columns(image.shape[1], "val")
        pictures[f"{path.name}, right fifth"] = image[:, first:last]
    spec = find_spec(UNSEEN[0])
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / UNSEEN[1]
        pictures[f"{path.name} of {UNSEEN[0]}"] = read_image(path)
    return pictures


@torch.no_grad()
def measure(model: VQVAE) -> dict[str, str]:
    """PSNR of every held-out picture, at its own size."""
    found = {}
    for name, image in held_out().items():
        original = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
        rebuilt = to_uint8(model.reconstruct(to_float(original)))
        found[name] = f"{psnr(original, rebuilt, data_range=255).item():.2f} dB"
    return found


def write_card(model: VQVAE, folder: Path) -> None:
    """Save the model with a card that says what it is."""
    about = {
        "data": "the left three quarters of ten photographs of scikit-image and scikit-learn, in tiles of 64 px",
        "command": f"driftvq train {FLAGS}",
        "steps": "3,000 of 16 tiles; the best of the validations every 500 steps",
        "seed": 0,
        "codebook": "begun by k-means before the first step; the same command now begins it in the first steps",
    }
    save_pretrained(model, folder, card=about | {"PSNR of held-out pictures": measure(model)})
    card = (folder / CARD).read_text(encoding="utf-8")
    card = card.partition("## Licence")[0].replace("PATH_OR_HUB_ID", STARTER).replace("## Results", "## Training")
    write_text(folder / CARD, card + LIMITS + "\n" + LICENCE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs") / STARTER, help="a finished run is measured as it is")
    run = parser.parse_args().run
    if not run.exists() and main(["train", *FLAGS.split(), "--out", str(run)]):
        raise SystemExit(1)
    write_card(VQVAE.from_pretrained(run), FOLDER)
    print((FOLDER / CARD).read_text(encoding="utf-8"))
