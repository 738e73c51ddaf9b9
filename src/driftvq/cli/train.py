"""``driftvq train``: train a tokenizer."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from driftvq.cli.arguments import arg, folder_to_resume, say
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
    arg("--resume", nargs="?", const="", metavar="RUN",
        help="continue this run, or the one of --out, from its newest checkpoint"),
    add_flags,
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Train, and say how it went and what to do next."""
    flags, file = given_flags(args), {} if args.config is None else read_settings(args.config)
    resume = args.resume is not None
    if resume:
        from driftvq.training.run import resumed_config

        folder = folder_to_resume(args.resume, flags.get("out") or file.get("out"), "run", "RUN")
        config = resumed_config(folder, flags, file)
    else:
        config = make_config(file, flags)
    from driftvq.training import stopping
    from driftvq.training.fabric import is_first_process
    from driftvq.training.run import train

    tell = say if is_first_process() else lambda line: None  # not in each of the processes that train together
    try:
        with stopping.ending_at_once():
            result = train(config, resume=resume, say=say)
            if is_first_process():
                _report(result)
    except stopping.InterruptedTrainingError as stopped:
        how = f"to continue: driftvq train --resume {stopped.run}"
        tell(f"stopped after step {stopped.step}, everything is saved; {how}")
        raise SystemExit(stopping.INTERRUPTED) from None
    except stopping.NonFiniteError as error:
        tell(f"driftvq train: error: {error}")
        raise SystemExit(stopping.FAILED) from None


def _report(result: "TrainResult") -> None:
    best, run = result.best, result.run
    lines = [f"finished {result.step:,} steps: {_values(result.latest)}"]
    if best and best["step"] != result.latest.get("step"):
        lines.append(f"best at step {int(best['step']):,}: {_values(best)}")
    if result.skipped:
        lines.append(f"skipped {result.skipped} unreadable images, listed in {run / 'skipped.txt'}")
    lines += [f"model: {run / 'model'}   log: {run / 'metrics.jsonl'}   pictures: {run / 'samples'}", "next:"]
    nexts = ("evaluate {}", "reconstruct {} PHOTO.jpg", "inspect {}", "report {}")
    lines += [f"  driftvq {command.format(run)}" for command in nexts]
    sys.stdout.write("\n".join(lines) + "\n")


def _values(values: dict[str, float]) -> str:
    texts = {"psnr": "PSNR {:.2f} dB", "ssim": "SSIM {:.3f}", "usage": "{:.1%} of the codes selected by these images"}
    texts["perplexity"] = "perplexity {:.0f}"
    shown = [text.format(values[f"val/{name}"]) for name, text in texts.items() if f"val/{name}" in values]
    return "validation " + ", ".join(shown) if shown else "no validation"
