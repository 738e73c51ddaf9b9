"""``driftvq push``: a model on the Hugging Face hub."""

import argparse
import sys

from driftvq.cli.arguments import arg, say

EXAMPLES = """examples:
  driftvq push runs/x user/name --private

The model's README.md goes with it, as you edited it; results of `driftvq evaluate` are added if it has none.
Log in before: hf auth login.
"""
ARGUMENTS = (
    arg("model", metavar="MODEL", help="a run's folder or a saved model's"),
    arg("name", metavar="USER/NAME", help="of the model on the hub"),
    arg("--private", action="store_true", help="only you shall see it"),
)


def run(args: argparse.Namespace) -> None:
    """Upload a saved model, after it was loaded once to see that it works."""
    from driftvq.models.hub import check_hub_id, push_saved

    check_hub_id(args.name)
    say(f"uploading {args.model} to {args.name}")
    sys.stdout.write(push_saved(args.model, args.name, private=args.private) + "\n")
