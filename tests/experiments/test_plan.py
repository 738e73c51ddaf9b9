from pathlib import Path

import pytest

from driftvq.experiments.comparison_folder import cell_record
from driftvq.experiments.design import Condition, Recipe, Request
from driftvq.experiments.plan import make_plan
from driftvq.experiments.recipes import RECIPES
from tests.experiments.smoke import smoke_plan
from tests.training.runs import make_images


def test_the_default_comparison_has_one_cell_per_method():
    plan = make_plan(Request())
    assert sorted(cell.method.name for cell in plan.cells) == sorted(plan.recipe.methods)
    assert plan.cells[0].method.name == "autoencoder"  # another cell waits for it
    assert len({cell.name for cell in plan.cells}) == len(plan.cells)
    assert plan.scale.metrics[:2] == ("kid", "lpips_alex")
    shared = {(c.config.steps, c.config.batch_size, c.config.size, c.config.network) for c in plan.cells}
    assert len(shared) == 1


def test_seeds_come_one_after_the_other():
    plan = smoke_plan(seeds=2, methods=("vq", "fsq"))
    assert [(cell.seed, cell.method.name) for cell in plan.cells] == [(0, "vq"), (0, "fsq"), (1, "vq"), (1, "fsq")]


def test_more_seeds_are_those_that_would_have_come_next():
    later, all_three = (smoke_plan(methods=("vq",), **asked) for asked in ({"seeds": 2, "first_seed": 1}, {"seeds": 3}))
    assert later.seeds == (1, 2)
    assert later.cells == all_three.cells[1:]
    assert "--seeds 2 --first-seed 1" in later.request.command()


def test_a_sweep_does_not_touch_a_plain_autoencoder():
    plan = make_plan(Request(methods=("autoencoder", "kmeans_afterwards", "vq"), codebook_size=(64, 128)))
    assert [(c.method.name, c.point) for c in plan.cells] == [
        ("autoencoder", None),
        ("vq", 64),
        ("kmeans_afterwards", 64),
        ("vq", 128),
        ("kmeans_afterwards", 128),
    ]
    names = {cell.name for cell in plan.cells}
    assert all(c.after in names for c in plan.cells if c.method.name == "kmeans_afterwards")


def test_k_means_afterwards_alone_trains_its_own_network():
    assert [cell.after for cell in smoke_plan(methods=("kmeans_afterwards",)).cells] == [None]


def test_one_codebook_size_is_no_sweep():
    plan = make_plan(Request(methods=("vq",), codebook_size=(256,)))
    assert plan.sweep is None
    assert plan.base.codebook_size == 256


def test_codebook_sizes_replace_those_of_a_table():
    plan = make_plan(Request("table-64d", methods=("vq",), codebook_size=(32,)))
    assert plan.sweep.values == (32,)
    with pytest.raises(ValueError, match="varies the batch size, so it takes one codebook size"):
        make_plan(Request("figure-batch-size", codebook_size=(32, 64)))


def test_the_kernel_narrows_after_each_epoch():
    plan = make_plan(Request(methods=("ns_vq_paper", "ns_vq")))
    paper, ours = (cell.config for cell in plan.cells)
    assert paper.quantizer_options["decay_every"] == round(plan.train / 16)
    assert "decay_every" not in ours.quantizer_options


def test_batch_sizes_see_as_many_images():
    plan = make_plan(Request("figure-batch-size", methods=("vq",)))
    seen = {cell.config.steps * cell.config.batch_size for cell in plan.cells}
    assert max(seen) - min(seen) <= 64
    assert [cell.config.batch_size for cell in plan.cells] == [4, 8, 16, 32, 64]


def test_the_papers_scale_is_the_published_setting(tmp_path):
    data = make_images(tmp_path / "train", 64).parent
    make_images(tmp_path / "val", 6)
    plan = make_plan(Request("table-64d", "paper", data=str(data)))
    config = plan.base
    assert (config.network, config.size, config.batch_size, config.learning_rate) == ("paper", 256, 16, 5e-4)
    assert config.precision == "32-true"  # as the paper trains, whatever the machine
    assert config.steps == 40 * 64 // 16
    assert plan.evaluation == 6
    imagenet = make_plan(Request("imagenet", "paper", data=str(data))).base
    assert (imagenet.loss, imagenet.betas, imagenet.code_dim) == ("mse+lpips", (0.5, 0.9), 3)
    assert imagenet.learning_rate == pytest.approx(5.4e-5)
    assert imagenet.steps == round(4 * 64 / 12)


def test_each_method_of_the_best_table_has_its_own_configuration():
    cells = {cell.method.name: cell.config for cell in make_plan(Request("table-best")).cells}
    assert (cells["vqgan_ema"].codebook_size, cells["vqgan_ema"].code_dim) == (1024, 3)
    assert (cells["trans_vq_paper"].codebook_size, cells["trans_vq_paper"].code_dim) == (8192, 64)


def test_conditions_of_several_settings_are_named_and_touch_an_autoencoder_once():
    plan = make_plan(Request("collapse-grid", methods=("ns_vq", "autoencoder"), seeds=1, evaluation=8))
    assert plan.sweep.field == "condition"
    found = [(cell.method.name, cell.point) for cell in plan.cells]
    first = [("ns_vq", "K 8192, D 64"), ("autoencoder", "D 64"), ("ns_vq", "K 8192, D 3"), ("autoencoder", "D 3")]
    assert found[:4] == first
    assert [name for name, _ in found[4:]] == ["ns_vq"] * 4
    assert set(plan.sweep.values) == {point for _, point in found}
    assert [(cell.config.codebook_size, cell.config.code_dim) for cell in plan.cells[::2][:2]] == [
        (8192, 64),
        (8192, 3),
    ]
    assert len({cell.name for cell in plan.cells}) == 8


def test_a_flag_wins_over_a_condition():
    asked = {"methods": ("ns_vq",), "seeds": 1, "code_dim": 8, "evaluation": 8}
    plan = make_plan(Request("collapse-grid", **asked))
    assert [cell.point for cell in plan.cells] == [8192, 1024, 64]
    assert {cell.config.code_dim for cell in plan.cells} == {8}
    plan = make_plan(Request("collapse-grid", **asked, codebook_size=(32,)))
    assert [(cell.point, cell.config.codebook_size) for cell in plan.cells] == [(None, 32)]
    assert plan.sweep is None


def test_some_conditions_can_be_chosen():
    asked = {"methods": ("ns_vq", "kmeans_afterwards", "autoencoder"), "seeds": 2, "evaluation": 8}
    every = {cell.name: cell for cell in make_plan(Request("collapse-grid", **asked)).cells}
    plan = make_plan(Request("collapse-grid", **asked, conditions=("K 64, D 3", "K 1024, D 64")))
    assert all(every[cell.name] == cell for cell in plan.cells)  # as they are among all
    chosen = [(cell.seed, cell.point) for cell in plan.cells if cell.method.name == "ns_vq"]
    assert chosen == [(seed, point) for seed in (0, 1) for point in ("K 1024, D 64", "K 64, D 3")]
    names = {cell.name for cell in plan.cells}
    awaited = [cell.after for cell in plan.cells if cell.method.name == "kmeans_afterwards"]
    assert len(awaited) == 4
    assert names.issuperset(awaited)
    assert set(plan.sweep.values) == {"D 64", "D 3", "K 1024, D 64", "K 64, D 3"}


def test_a_condition_alone_goes_by_its_value():
    plan = make_plan(Request("table-64d", methods=("vq",), conditions=("1024",)))
    assert [(cell.point, cell.config.codebook_size) for cell in plan.cells] == [(1024, 1024)]
    assert plan.sweep.field == "codebook_size"


def test_unknown_conditions_are_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown condition 'K 64, D 4'; known, nearest first: 'K 64, D 64', 'K 64,"):
        make_plan(Request("collapse-grid", methods=("vq",), seeds=1, evaluation=8, conditions=("K 64, D 4",)))
    with pytest.raises(ValueError, match=r"nothing is varied here, so there is no condition to choose, got \['K 64'\]"):
        make_plan(Request(conditions=("K 64",)))


def test_a_condition_may_be_for_some_methods():
    cells = make_plan(Request("collapse-options", evaluation=8)).cells
    by_point = {}
    for cell in cells:
        by_point.setdefault(cell.point, set()).add(cell.method.name)
    assert by_point["K 256"] == {"residual_ns_vq", "residual_trans_vq_mlp"}
    assert by_point["D 256"] == {"ns_vq", "trans_vq_mlp"}
    assert {cell.config.codebook_size for cell in cells if cell.point == "D 256"} == {1024}


def test_batch_sizes_are_compared_at_equal_epochs_or_at_equal_steps(tmp_path):
    """At every batch size forty epochs, or the steps of forty epochs at the base."""
    pictures = make_images(tmp_path / "images", 40)
    wanted = {"data": str(pictures), "scale": "overnight", "methods": ("vq",)}
    equal_images, equal_steps = (make_plan(Request(name, **wanted)) for name in FIGURES_OF_BATCH_SIZE)
    batches = [(cell.config.batch_size, cell.config.steps) for cell in equal_images.cells]
    reference = dict(batches)[16]
    assert reference == round(40 * equal_images.train / 16)
    assert batches == [(size, round(reference * 16 / size)) for size in (4, 8, 16, 32, 64)]
    assert {cell.config.steps for cell in equal_steps.cells} == {reference}


FIGURES_OF_BATCH_SIZE = ("figure-batch-size", "figure-batch-size-steps")


def test_any_setting_of_a_training_can_be_set_and_varied(monkeypatch):
    recipe = Recipe(
        "x",
        "t",
        "q",
        ("vq",),
        {"val_every": 3},
        conditions=(Condition({"loss": "mse", "clip": 0.5}), Condition({"loss": "mse", "clip": 2.0})),
    )
    monkeypatch.setitem(RECIPES, "x", recipe)
    cells = make_plan(Request("x", evaluation=8)).cells
    assert [(cell.point, cell.config.clip) for cell in cells] == [
        ("loss mse, clip 0.5", 0.5),
        ("loss mse, clip 2", 2.0),
    ]
    assert {cell.config.val_every for cell in cells} == {3}
    assert [cell.name for cell in cells] == [f"vq--k1024-d64-b16-lossmse-clip{clip}--seed0" for clip in ("0.5", "2")]


def test_a_recipe_says_what_is_measured():
    assert make_plan(Request("collapse-few", evaluation=8)).metrics[:3] == ("psnr", "lpips_alex", "rfid")
    assert smoke_plan(recipe="collapse-few").metrics == ("psnr", "ssim", "usage", "perplexity")
    assert make_plan(Request()).metrics[0] == "kid"


def test_a_warm_up_comes_on_top_of_the_steps():
    plan = make_plan(Request("collapse-robust", methods=("ns_vq",), evaluation=8))
    cells = {cell.point: cell for cell in plan.cells}
    warm, plain = cells["D 64, warm-up 500"], cells["D 64, latents × 1000"]
    assert (warm.config.steps, warm.config.warm_up) == (3000, 500)
    assert (plain.config.steps, plain.config.latent_scale) == (2500, 1000)
    assert cell_record(Path(), warm, plan).task.probes == (800,)
    assert cell_record(Path(), plain, plan).task.probes == (300,)


def test_too_few_images_are_said_before_training(tmp_path):
    data = make_images(tmp_path / "photos", 40)
    with pytest.raises(ValueError, match=r"compare at scale 'laptop' wants 120: .*--evaluation-images"):
        make_plan(Request(data=str(data)))
    with pytest.raises(ValueError, match=r"evaluate on, and --evaluation-images wants 50: name more with --val-data"):
        make_plan(Request(data=str(data), evaluation=50))
    with pytest.raises(ValueError, match="val_data must be other images than data"):
        make_plan(Request(data=str(data), val_data=f"{data}/"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"recipe": "table-64"}, "unknown recipe 'table-64'; known, nearest first: table-64d,"),
        ({"scale": "papper"}, "unknown scale 'papper'; known, nearest first: paper,"),
        ({"methods": ("nsvq",)}, "unknown method 'nsvq'; known, nearest first: ns_vq,"),
        ({"data": "no/such/folder"}, "no such file or folder"),
    ],
)
def test_mistakes_are_named(asked, message):
    with pytest.raises(ValueError, match=message):
        make_plan(Request(**asked))


def test_the_condition_that_flags_leave_nothing_of_is_one_of_the_places():
    plan = smoke_plan(recipe="collapse-regret", methods=("ns_vq", "vq"), codebook_size=(16,), code_dim=8)
    assert plan.sweep is not None
    assert plan.sweep.values[0] == "base"
    assert {cell.point for cell in plan.cells} == set(plan.sweep.values)
    for settings in ({"codebook_size": (64,)}, {"code_dim": 8}):
        assert smoke_plan(recipe="collapse-options", methods=None, **settings).cells
