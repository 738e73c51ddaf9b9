"""``driftvq train``: train a tokenizer."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftvq.cli.arguments import arg, say
from driftvq.training.settings import add_flags, given_flags, make_config, read_settings

if TYPE_CHECKING:
    from driftvq.training.run import TrainResult

EXAMPLES = """examples:
  driftvq train                                            a first result on embedded photographs, in minutes
  driftvq train --data photos/ --quantizer trans_vq --codebook-size 1024
  driftvq train --config my.yaml --learning-rate 1e-4      flags win over the file
  driftvq train --data photos/ --network paper --size 256 --epochs 40
  driftvq train --resume runs/x                            go on after an interruption; --steps may be larger
  driftvq train --data 'shards/{000..099}.tar' --devices 8 --num-nodes 2 --strategy ddp --out runs/big

A config file holds the same settings: `codebook_size: 1024`. Every run saves its own as config.yaml.
"""
ARGUMENTS = (
    arg("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it"),
    arg(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="continue this run, or the one of --out, from its newest checkpoint",
    ),
    add_flags,
)


def run(args: argparse.Namespace) -> None:
    """Train, and say how it went and what to do next."""
    flags, file = given_flags(args), {} if args.config is None else read_settings(args.config)
    resume = args.resume is not None
    if resume:
        from driftvq.training.run import resumed_config

        config = resumed_config(_run_to_resume(args.resume, flags, file), flags, file)
    else:
        config = make_config(file, flags)
    from driftvq.training.run import train
    from driftvq.training.stopping import (
        FAILED,
        INTERRUPTED,
        InterruptedTrainingError,
        NonFiniteError,
        ending_at_once,
    )

    try:
        with ending_at_once():
            _report(train(config, resume=resume, say=say))
    except InterruptedTrainingError as stopped:
        _tell(
            f"stopped after step {stopped.step}, everything is saved; to continue: driftvq train --resume {stopped.run}"
        )
        raise SystemExit(INTERRUPTED) from None
    except NonFiniteError as error:
        _tell(f"driftvq train: error: {error}")
        raise SystemExit(FAILED) from None


def _tell(line: str) -> None:
    """Say it once, not in each of the processes that train together."""
    from driftvq.training.fabric import is_first_process

    if is_first_process():
        say(line)


def _run_to_resume(named: str, flags: dict[str, Any], file: dict[str, Any]) -> Path:
    out = flags.get("out") or file.get("out")
    if named and out and Path(named) != Path(out):
        raise ValueError(f"--resume {named} continues in its own folder; got another --out {out}")
    if not (named or out):
        raise ValueError("--resume needs the run to continue: --resume RUN, or --out RUN beside it")
    return Path(named or str(out))


def _report(result: "TrainResult") -> None:
    from driftvq.training.fabric import is_first_process

    if not is_first_process():
        return
    best, run = result.best, result.run
    lines = [f"finished {result.step:,} steps: {_values(result.latest)}"]
    if best and best["step"] != result.latest.get("step"):
        lines.append(f"best at step {int(best['step']):,}: {_values(best)}")
    if result.skipped:
        lines.append(f"skipped {result.skipped} unreadable images, listed in {run / 'skipped.txt'}")
    lines += [
        f"model: {run / 'model'}   log: {run / 'metrics.jsonl'}   pictures: {run / 'samples'}",
        "next:",
        f"  driftvq evaluate {run}",
        f"  driftvq reconstruct {run} PHOTO.jpg",
        f"  driftvq inspect {run}",
        f"  driftvq report {run}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _values(values: dict[str, float]) -> str:
    texts = {
        "psnr": "PSNR {:.2f} dB",
        "ssim": "SSIM {:.3f}",
        "usage": "{:.1%} of the codes selected by these images",
        "perplexity": "perplexity {:.0f}",
    }
    shown = [text.format(values[f"val/{name}"]) for name, text in texts.items() if f"val/{name}" in values]
    return "validation " + ", ".join(shown) if shown else "no validation"
