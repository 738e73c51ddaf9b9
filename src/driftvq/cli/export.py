"""``driftvq export``: a model for other runtimes."""

import argparse
from pathlib import Path

from driftvq.cli.arguments import WHOSE, arg, say

EXAMPLES = """examples:
  driftvq export runs/x -o exported/                 encoder.onnx (images to indices), decoder.onnx (indices to images)
  driftvq export user/name -o exported/ --format torch

Batch, height and width are free; images are float32 in [-1, 1], in multiples of the stride. The files are run and
compared with the model before they appear.
"""
ARGUMENTS = (
    WHOSE,
    arg("-o", "--out", type=Path, required=True, metavar="DIR", help="folder for the files"),
    arg("--format", default="onnx", metavar="NAME", help="onnx or torch (default: onnx)"),
    arg("--no-check", action="store_true", help="do not run the files and compare them with the model"),
)


def run(args: argparse.Namespace) -> None:
    """Write the encoder and the decoder of a model."""
    from driftvq.models.export import FORMATS, export_model
    from driftvq.models.vqvae import VQVAE
    from driftvq.names import check_name

    check_name("export format", args.format, FORMATS)
    about = export_model(VQVAE.from_pretrained(args.model), args.out, args.format, check=not args.no_check)
    say(f"wrote {args.out / about['encoder']}, {args.out / about['decoder']} and export.json")
    if "check" in about:
        found = about["check"]
        ties = f" ({found['ties']} ties)" if found["ties"] else ""
        pixels = found["largest_pixel_difference"]
        say(f"checked: {found['indices']} indices as in torch{ties}, pixels within {pixels:.1g}")
