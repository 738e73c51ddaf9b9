import json

import pytest

from driftvq.experiments.engine import finish
from driftvq.experiments.methods import METHODS
from driftvq.experiments.recipes import RECIPES
from driftvq.records.comparisons import load_comparison, read_codes
from tests.experiments.smoke import run_plan, smoke_plan

FIELD = ("ifsq", "bsq", "wasserstein_vq", "bridge_vq", "ibq", "cvq", "opt_vq", "diveq", "sf_diveq", "ns_vq_sequel")
FEWER = {
    **dict.fromkeys(["collapse-headline", "collapse-photos"], ("ns_vq", "vq", "autoencoder")),
    "collapse-regret": ("ns_vq", "ns_vq_sequel"),
    "collapse-regret-photos": FIELD,
    "collapse-commitment": ("ns_vq", "ns_vq_committed", "ema_tuned_our_beta", "sim_vq_our_beta"),
}
"""Recipes whose other methods another one runs under the same conditions."""


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_at_smoke_scale(name, tmp_path):
    plan = smoke_plan(recipe=name, methods=FEWER.get(name))
    run_plan(tmp_path, plan)
    report = finish(tmp_path)
    comparison = load_comparison(tmp_path)
    assert [cell.error for cell in comparison.cells if cell.status != "done"] == []
    assert len(comparison.cells) == len(plan.cells)
    for cell in comparison.cells:
        assert cell.values["psnr"] > 5
        assert cell.n == 8
        assert cell.steps == cell.config["steps"]
        assert len(list((cell.folder / "reconstructions").glob("*.png"))) == 8
        assert (cell.folder / "model" / "model.safetensors").is_file()
        assert not (cell.folder / "training").exists()
        if cell.codebook_size is not None:
            codes = read_codes(cell)
            levels = cell.config["quantizer_options"].get("num_quantizers", 1)
            assert len(codes.counts) == cell.codebook_size
            assert sum(codes.counts) == cell.usage_latents * levels
            assert cell.usage_latents >= 50 * cell.codebook_size
            used = sum(count > 0 for count in codes.counts) / cell.codebook_size
            if levels == 1:
                assert cell.values["usage"] == pytest.approx(used)
            assert 0 < cell.values["selected"] <= 1
    assert report.stat().st_size < 10e6
    assert {row["method"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == set(
        plan.request.methods or plan.recipe.methods
    )


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_name_what_exists(recipe):
    assert set(recipe.methods) <= METHODS.keys()
    assert recipe.method_settings.keys() <= set(recipe.methods)
    if recipe.published is not None:
        points = [next(iter(c.settings.values())) for c in recipe.conditions] or [None]
        for (method, point), values in recipe.published.values.items():
            assert method in recipe.methods
            assert point in points
            assert values
