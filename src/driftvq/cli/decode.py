"""``driftvq decode``: tokens to images."""

import argparse
from pathlib import Path

from driftvq.cli.arguments import DEVICE, WHOSE, arg, say

EXAMPLES = """examples:
  driftvq decode runs/x tokens -o images

Images are PNG files and keep the folders of their names. Tokens of another model are refused.
"""
ARGUMENTS = (
    WHOSE,
    arg("tokens", type=Path, metavar="TOKENS", help="a folder that `driftvq encode` made"),
    arg("-o", "--out", type=Path, required=True, metavar="OUT", help="folder to make for the images"),
    *DEVICE,
)


def run(args: argparse.Namespace) -> None:
    """Decode tokens."""
    from driftvq.tokens.reader import open_tokens

    tokens = open_tokens(args.tokens)

    from driftvq.models.running import find_room, load_model
    from driftvq.progress import Progress
    from driftvq.tokens.decoding import RENAMED, SKIPPED, decode_tokens

    model, _, _ = load_model(args.model, args.device)
    room = find_room(model, max_pixels=args.max_pixels)
    with Progress("decoding", len(tokens)) as progress:
        renamed = decode_tokens(model, tokens, args.out, room=room, progress=progress.add)
    listed = args.out / SKIPPED
    skipped = listed.read_text(encoding="utf-8").count("\n") if listed.is_file() else 0
    written = len(tokens) - skipped
    say(f"wrote {written:,} image{'s' * (written != 1)} to {args.out}")
    if skipped:
        say(f"left out {skipped:,} of {len(tokens):,} images, listed in {listed}")
    if renamed:
        which = "one image could not have its" if renamed == 1 else f"{renamed:,} images could not have their"
        say(f"{which} own name, listed in {args.out / RENAMED}")
