import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from driftvq.cli import main
from driftvq.cli.inspect import sparkline, to_text
from driftvq.inspection import (
    DONE,
    describe_codebook,
    drift_series,
    give_verdict,
    inspect_model,
    neighbour_distances,
    summarise,
)
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.vqvae import code_tensors, count_parameters
from driftvq.records.metric_table import expected_usage
from driftvq.records.runs import append_record
from tests.training.runs import arguments, make_images


def make_model(quantizer="vq", **options):
    torch.manual_seed(0)
    config = ModelConfig(quantizer=quantizer, codebook_size=64, code_dim=8, quantizer_options=options)
    return VQVAE(config)


def inspect(capsys, *words):
    assert main(["inspect", *map(str, words)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the real command, with its images."""
    folder = tmp_path_factory.mktemp("trained")
    images = make_images(folder / "images")
    assert main(arguments(images, folder / "run", val_share=0.2)) == 0
    return folder / "run", images


def test_a_run_from_model_to_verdict(trained, capsys):
    run, images = trained
    text, _ = inspect(capsys, run, "--data", images)
    for heading in ("Model", "Codebook", "On 24 images", "Training, 12 steps", "Drift between readings", "Verdict: "):
        assert f"\n{heading}" in f"\n{text}"
    assert max(map(len, text.splitlines())) <= 80
    drift = json.loads(inspect(capsys, run, "--json")[0])["drift"]
    assert [step for step, _ in drift["latent_spread"]] == [0, 3, 6, 9, 12]
    assert [step for step, _ in drift["latents_moved"]] == [6, 9, 12]  # between two that have a codebook


def test_json_holds_what_the_files_say(trained, capsys):
    run, images = trained
    out, err = inspect(capsys, run, "--data", images, "--json")
    report = json.loads(out)
    assert err == ""
    model = VQVAE.from_pretrained(run)
    pixels = np.stack(
        [np.asarray(Image.open(path).resize((16, 16), Image.LANCZOS)) for path in sorted(images.iterdir())]
    )
    indices = model.encode(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1)
    assert report["use"]["usage"] == len(indices.unique()) / 32
    assert report["use"]["images"] == 24
    assert report["use"]["indices"] == 24 * 16
    assert report["model"]["tokens"] == {"size": 16, "indices": 16, "bits_per_image": 80.0, "bits_per_pixel": 80 / 256}
    assert report["model"]["config"] == model.config.to_dict()
    assert report["training_config"]["probe_every"] == 3
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    psnr = [(line["val/psnr"], line["step"]) for line in lines if "val/psnr" in line]
    assert report["training"]["best"]["val/psnr"] == dict(zip(("value", "step"), max(psnr), strict=True))
    assert report["training"]["last"]["val/psnr"]["value"] == psnr[-1][0]
    assert report["training"]["steps"] == 12


def test_a_saved_model_without_a_run(tmp_path, capsys):
    make_model().save_pretrained(tmp_path / "saved")
    text, _ = inspect(capsys, tmp_path / "saved")
    assert "has seen no training step" in text
    assert "Training" not in text
    assert "Verdict: unknown. Nothing recorded says how the codes are used; measure it with" in text


def test_a_model_with_nan_is_broken(tmp_path, capsys):
    model = make_model()
    model.quantizer.book.codes.data[3, 0] = torch.nan
    model.save_pretrained(tmp_path / "saved")
    report = json.loads(inspect(capsys, tmp_path / "saved", "--json")[0])
    assert report["codebook"]["norm"] == {"min": None, "median": None, "max": None}
    assert "Verdict: broken. NaN or infinite numbers in quantizer.book.codes." in inspect(capsys, tmp_path / "saved")[0]


def test_a_plain_autoencoder(tmp_path, capsys):
    make_model("none").save_pretrained(tmp_path / "saved")
    text, err = inspect(capsys, tmp_path / "saved", "--data", "embedded")
    assert "Verdict: no codebook. This is a plain autoencoder" in text
    assert "Codebook" not in text
    assert err == f"driftvq inspect: --data has no effect: {tmp_path / 'saved'} has no codebook\n"


def test_embedded_photographs_and_size(tmp_path, capsys):
    make_model("fsq").save_pretrained(tmp_path / "saved")
    text, _ = inspect(capsys, tmp_path / "saved", "--data", "embedded", "--size", 32, "--limit", 5)
    assert "On 5 images" in text
    assert "64 for 32×32 pixels" in text
    assert "a fixed grid; nothing to learn" in text


def test_a_run_that_has_not_saved_a_model_yet(tmp_path, capsys):
    append_record(tmp_path / "metrics.jsonl", 20, {"val/psnr": 20.0, "val/usage": 0.9})
    text, err = inspect(capsys, tmp_path)
    assert "not saved yet" in text
    assert "Verdict: alive. 90% of the codes were selected by validation images." in text
    assert "has not saved a model yet" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere/at/all"], "no such folder: nowhere/at/all; a model on the hub is named user/name"),
        (["{}"], "is no saved model"),
        (["{}/saved", "--data", "{}/none"], "no such file or folder"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, words, message):
    make_model().save_pretrained(tmp_path / "saved")
    assert main(["inspect", *(word.format(tmp_path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from driftvq.cli import main\n"
        "try: main(['inspect', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(int(any(name in sys.modules for name in ('torch', 'numpy', 'lightning', 'rich'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "examples:" in result.stdout


def test_inspecting_does_not_import_lightning(tmp_path):
    make_model().save_pretrained(tmp_path)
    code = (
        f"import sys; from driftvq.cli import main; main(['inspect', {str(tmp_path)!r}]); "
        "sys.exit(int('lightning' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("seed", range(3))
def test_neighbour_distances_equal_numpy(seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(50, 4, generator=generator) + 100
    codes[7] = codes[33]
    rows = torch.randperm(50, generator=generator)[:20]
    dense = np.linalg.norm(codes.double().numpy()[:, None] - codes.double().numpy()[None], axis=2)
    np.fill_diagonal(dense, np.inf)
    found = neighbour_distances(codes, rows)
    assert np.allclose(found, dense.min(axis=1)[rows], rtol=1e-6)
    assert neighbour_distances(codes, torch.tensor([7, 33])).tolist() == [0, 0]


def test_repeated_codes_are_counted():
    model = make_model()
    codes = model.quantizer.book.codes.data
    codes.copy_(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)))
    assert describe_codebook(model)["repeated_codes"] == 0
    codes[:4] = codes[0]
    codes[10] = codes[11] + 1e-4
    facts = describe_codebook(model)
    assert facts["repeated_codes"] == 4
    assert facts["near_repeats"] == 6
    norms = codes.norm(dim=1).double().numpy()
    assert facts["norm"] == pytest.approx({"min": norms.min(), "median": np.median(norms), "max": norms.max()})


def test_age_and_dead_codes():
    quantizer = (model := make_model()).quantizer
    quantizer.step.fill_(500)
    quantizer.code_age.copy_(torch.cat([torch.zeros(48), torch.full((6,), 99), torch.full((10,), 100)]))
    facts = describe_codebook(model)
    assert facts["dead_codes"] == 10
    assert facts["recent_usage"] == quantizer.recent_usage() == 54 / 64
    assert facts["age"] == {"median": 0, "p90": 100, "max": 100}
    assert "10 not selected in the last 100 of 500 training steps" in to_text(inspect_model(model, None))


def test_an_unfinished_kmeans_start_is_said():
    model = make_model("vq", kmeans_init=True)
    model(torch.zeros(1, 3, 16, 16))
    report = inspect_model(model, None)
    assert report["codebook"]["kmeans_start"] == "gathering, 16 of 256 latents"
    assert report["verdict"]["state"] == "starting"
    model(torch.rand(15, 3, 16, 16))
    assert describe_codebook(model)["kmeans_start"] == DONE


@pytest.mark.parametrize(
    ("quantizer", "options", "codes"),
    [
        ("vq", {}, 512),
        ("ema_vq", {}, 512),
        ("trans_vq", {}, 512),
        ("fsq", {}, 0),
        ("residual_vq", {}, 2048),
        ("none", {}, 0),
    ],
)
def test_parameters_per_part(quantizer, options, codes):
    model = make_model(quantizer, **options)
    counts = count_parameters(model)
    state = model.state_dict()
    assert counts["codes"] == codes
    assert counts["encoder"] == sum(v.numel() for name, v in state.items() if name.startswith("encoder."))
    learned = {id(p) for p in model.parameters()}
    learned |= {id(c) for c in (code_tensors(model.quantizer) if model.quantizer else [])}
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    assert counts["total"] == sum(tensors[i].numel() for i in learned)


def test_training_is_summarised_by_the_right_direction():
    records = [
        {"step": 1, "val/psnr": 20.0, "val/loss": 0.5, "train/loss": 1.0, "drift/affine_share": 0.5},
        {"step": 2, "val/psnr": 25.0, "val/loss": 0.2, "drift/affine_share": None, "train/usage": 0.9},
        {"step": 3, "val/psnr": 24.0, "val/loss": 0.3, "train/loss": 0.9, "drift/affine_share": 0.75, "drift/other": 1},
    ]
    summary = summarise(records)
    assert summary["best"] == {"val/psnr": {"value": 25.0, "step": 2}, "val/loss": {"value": 0.2, "step": 2}}
    assert summary["last"]["train/loss"] == {"value": 0.9, "step": 3}
    assert drift_series(records) == {"affine_share": [(1, 0.5), (3, 0.75)], "recent_usage": [(2, 0.9)]}
    assert summarise([]) is drift_series([]) is None


@pytest.mark.parametrize(
    ("values", "top", "line"),
    [
        ([], None, ""),
        ([0, 0], None, "▁▁"),
        ([0, 1, 2], None, "▁▅█"),
        ([-1, 0.5, 3], 1.0, "▁▅█"),
        ([0, 0, 7, 7], None, "▁▁██"),
    ],
)
def test_sparkline(values, top, line):
    assert sparkline(values, top) == line


def test_a_sparkline_averages_what_does_not_fit():
    assert sparkline([0, 0, 4, 10, 7, 7], width=3) == "▁██"


@pytest.mark.parametrize(("codes", "draws"), [(1, 5), (10, 5), (64, 1000), (100, 0)])
def test_expected_usage_by_simulation(codes, draws):
    rng = np.random.default_rng(0)
    shares = [len(np.unique(rng.integers(codes, size=draws))) / codes for _ in range(2000)]
    assert expected_usage(codes, draws) == pytest.approx(np.mean(shares), abs=0.01)


def report(**changes):
    codebook = {"recent_usage": 0.95, "training_steps": 900, "kmeans_start": DONE, "indices_per_position": 1}
    base = {"model": {}, "codebook": codebook, "use": None, "training": None, "drift": None}
    return {**copy.deepcopy(base), **changes}


def with_usage(share, **changes):
    return report(**changes) | {"codebook": report()["codebook"] | {"recent_usage": share}}


FALLING = [(100, 0.9), (200, 0.8), (300, 0.5)]
BEHIND = {"follow_unselected": [(300, 0.01)], "latents_moved": [(300, 0.4)]}


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (with_usage(0.95), "alive", "95% of the codes were selected in the model's last 100 training steps"),
        (with_usage(0.05), "collapsed", "5.0% of the codes"),
        (with_usage(0.5), "partly used", "50%"),
        (with_usage(0.5, drift={"recent_usage": FALLING}), "collapsing", "it was 90% at step 100"),
        (with_usage(0.1, drift=BEHIND), "collapsed", "left behind by the moving encoder (follow 0.01)"),
        (
            with_usage(0.9, drift={**BEHIND, "follow_unselected": [(300, 0.8)]}),
            "alive",
            "not selected follow the moving",
        ),
        (with_usage(0.5, drift={**BEHIND, "latents_moved": [(300, 0.01)]}), "partly used", "hardly moves any more"),
    ],
)
def test_verdicts(facts, state, words):
    verdict = give_verdict(facts)
    assert verdict["state"] == state
    assert words in verdict["why"]


def test_measured_use_is_judged_by_what_is_possible():
    use = {"images": 2, "codebook_size": 1024, "usage": 0.38, "expected_usage": 0.3935, "perplexity": 300.0}
    verdict = give_verdict(with_usage(0.01, use=use))
    assert verdict["state"] == "alive"
    assert "these 2 images select 38% of the codes, where 39% could be expected" in verdict["why"]
    uneven = give_verdict(report(use={**use, "expected_usage": 1.0, "usage": 1.0, "perplexity": 20.0}))
    assert "a few do most of the work (perplexity 20)" in uneven["why"]


def test_images_of_another_kind_do_not_accuse_a_live_codebook():
    use = {"images": 500, "codebook_size": 1024, "usage": 0.12, "expected_usage": 1.0, "perplexity": 90.0}
    drift = {"follow_unselected": [(300, 0.04)], "latents_moved": [(300, 0.4)]}
    verdict = give_verdict(with_usage(0.98, use=use, drift=drift))
    assert verdict["state"] == "alive"
    assert "these 500 images select 12% of the codes" in verdict["why"]
    assert "left behind" not in verdict["why"]
    unknown = give_verdict(report(use=use) | {"codebook": {"kmeans_start": DONE}})
    assert unknown["state"] == "few codes on these images"
    assert "only images like those of its training can say" in unknown["why"]
    dead = give_verdict(with_usage(0.1, use=use, drift=drift))
    assert dead["state"] == "collapsed"
    assert "left behind" in dead["why"]
