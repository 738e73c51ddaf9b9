import json

import pytest

from driftvq.experiments.methods import METHODS
from driftvq.experiments.recipes import RECIPES
from driftvq.experiments.running import finish
from driftvq.report import load_comparison
from tests.experiments.smoke import run_plan, smoke_plan


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_at_smoke_scale(name, tmp_path):
    plan = smoke_plan(recipe=name)
    run_plan(tmp_path, plan)
    report = finish(tmp_path)
    comparison = load_comparison(tmp_path)
    assert [cell.error for cell in comparison.cells if cell.status != "done"] == []
    assert len(comparison.cells) == len(plan.cells)
    for cell in comparison.cells:
        assert cell.values["psnr"] > 5
        assert cell.n == 8
        assert cell.steps >= 1
        assert cell.parameters["network"] > 0
        assert len(list((cell.folder / "reconstructions").glob("*.png"))) == 8
        assert (cell.folder / "model" / "model.safetensors").is_file()
        assert not (cell.folder / "training").exists()
        if cell.codebook_size is not None:
            codes = json.loads((cell.folder / "codes.json").read_text())
            assert len(codes["counts"]) == cell.codebook_size
            assert sum(codes["counts"]) == 8 * 8 * 8
            used = sum(count > 0 for count in codes["counts"]) / cell.codebook_size
            assert cell.values["usage"] == pytest.approx(used)
    assert report.stat().st_size < 10e6
    assert {row["method"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == set(
        plan.request.methods or plan.recipe.methods
    )


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_name_what_exists(recipe):
    assert set(recipe.methods) <= METHODS.keys()
    assert recipe.method_settings.keys() <= set(recipe.methods)
    if recipe.published is not None:
        points = recipe.sweep.values if recipe.sweep else (None,)
        for (method, point), values in recipe.published.values.items():
            assert method in recipe.methods
            assert point in points
            assert values
