"""The playground: one self-contained page that simulates the toy demos in a browser.

Its mathematics is a JavaScript version of the clouds and the toy rules; its constants are theirs. The library's own
quantizers are not written a second time: the page plays what ``benchmarks/recordings.py`` lets them do on its clouds.
"""

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from driftvq.files import write_text
from driftvq.toys import clouds, rules

SIMULATION = ("random.js", "clouds.js", "rules.js", "simulation.js")
"""The mathematics, which needs no page, in the order in which it is loaded."""
PAGE = ("drawing.js", "sentence.js", "address.js", "player.js")  # what shows it
HIDDEN, STEPS, FIRST_SEED = 64, 450, 1
RECORDINGS = "recordings.json"
LINEAR_STEPS, LATER = 60, 40  # the timeline shows every batch while it drifts, then so many at equal ratios


def constants() -> dict[str, Any]:
    """What the page has to know of the demos and the rules."""
    return {
        "points": clouds.POINTS, "codes": clouds.CODES, "batchSize": clouds.BATCH_SIZE, "epochs": clouds.EPOCHS,
        "steps": STEPS, "moments": moments(), "seed": FIRST_SEED, "hidden": HIDDEN,
        "speed": clouds.SPEED, "shift": clouds.SHIFT, "expansion": clouds.EXPANSION, "shrinkage": clouds.SHRINKAGE,
        "maxCondition": clouds.MAX_CONDITION, "splitMean": clouds.SPLIT_MEAN,
        "alpha": rules.ALPHA, "tau": rules.FIRST_TAU, "lr": rules.FIRST_LR, "tauDecay": rules.TAU_DECAY,
        "lrDecay": rules.LR_DECAY, "adamLr": rules.ADAM_LR,
    }  # fmt: skip


def moments() -> list[int]:
    """The batches of the timeline, from the first to the last."""
    later = np.geomspace(LINEAR_STEPS, STEPS, LATER + 1)[1:]
    return [*range(LINEAR_STEPS + 1), *(round(step) for step in later)]


def script(names: tuple[str, ...]) -> str:
    """The named JavaScript files as one."""
    return "\n".join(_asset(name) for name in names)


def page() -> str:
    """The playground as HTML that loads nothing else."""
    html = _asset("page.html").replace("{{style}}", _asset("page.css"))
    html = html.replace("{{constants}}", json.dumps(constants())).replace("{{recordings}}", _asset(RECORDINGS))
    return html.replace("{{script}}", script(SIMULATION + PAGE))


def write_playground(path: str | os.PathLike[str]) -> Path:
    """Write the playground to a file in a folder that exists, whole or not at all."""
    return write_text(path, page())


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
