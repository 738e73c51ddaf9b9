import pytest

from driftvq.experiments.methods import LATENT_STRIDE, METHODS, find_methods, resolved
from driftvq.records.comparisons import GROUP_LABELS
from driftvq.training.settings import make_config
from tests.experiments.smoke import model_of


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_builds_a_model(method):
    model = model_of(method.name)
    assert (model.quantizer is None) == (method.settings["quantizer"] == "none")
    assert method.group in GROUP_LABELS


def test_methods_are_told_apart():
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    forms = [(str(method.settings), method.afterwards) for method in METHODS.values()]
    assert len(set(forms)) == len(METHODS)


def test_the_papers_forms_are_literal():
    paper = model_of("ns_vq_paper").quantizer
    assert (paper.book.kernel, float(paper.book.bandwidth), paper.book.bandwidth_decay) == ("gaussian", 1.0, 0.9)
    assert paper.book.codes.requires_grad
    ours = model_of("ns_vq").quantizer
    assert not list(ours.parameters())
    assert set(ours.book.parts) == {"drift", "winners", "relocation"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ns_vq_no_drift", {"winners", "relocation"}),
        ("ns_vq_no_relocation", {"drift", "winners"}),
        ("ns_vq_winners_alone", {"winners"}),
        ("ns_vq_no_winners", {"drift", "relocation"}),
        ("trans_vq_mlp_no_relocation", {"drift", "winners"}),
    ],
)
def test_an_ablation_leaves_a_part_out(name, parts):
    assert set(model_of(name).quantizer.book.parts) == parts


def test_options_that_depend_on_the_run_are_worked_out():
    run = {"batch_size": 8, "size": 32, "codebook_size": 128, "code_dim": 16, "accumulate": 2}

    def options(name):
        return resolved(make_config(METHODS[name].settings, run), 1000).quantizer_options

    assert model_of("ema_tuned").downscale == LATENT_STRIDE
    assert options("ema_tuned")["threshold_ema_dead_code"] == 0.5 * 8 * 64 / 128
    assert options("ns_vq_paper")["decay_every"] == round(1000 / 8)  # batches, not optimizer steps
    assert options("sim_vq_our_beta")["commitment_weight"] == 0.25 * 16 / 64
    assert options("ema_replace") == {"kmeans_init": True, "threshold_ema_dead_code": 2.0}


def test_an_unknown_method_is_answered_with_the_nearest_first():
    with pytest.raises(ValueError, match=r"unknown method 'simvq'; known, nearest first: sim_vq,"):
        find_methods(["simvq"])


def test_all_are_the_methods_without_their_variants():
    found = [method.name for method in find_methods(["all", "vq"])]
    assert {"wasserstein_vq", "bridge_vq", "ibq", "cvq", "opt_vq", "diveq", "sf_diveq", "bsq", "ifsq"} < set(found)
    assert {"ns_vq", "trans_vq", "ns_vq_sequel", "kmeans_afterwards"} < set(found)
    assert "ns_vq_no_drift" not in found
    assert len(found) == len(set(found))


def test_a_method_named_twice_is_taken_once():
    assert [method.name for method in find_methods(["vq", "fsq", "vq"])] == ["vq", "fsq"]
