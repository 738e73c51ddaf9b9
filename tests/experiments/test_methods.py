import pytest

from driftvq.experiments.methods import METHODS, find_methods
from driftvq.models import VQVAE, ModelConfig
from driftvq.records.comparisons import GROUPS


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_builds_a_model(method):
    model = VQVAE(ModelConfig(codebook_size=64, code_dim=8, **method.settings))
    assert (model.quantizer is None) == (method.settings["quantizer"] == "none")
    assert method.group in GROUPS


def test_methods_are_told_apart():
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    forms = [(m.settings["quantizer"], str(m.settings["quantizer_options"]), m.afterwards) for m in METHODS.values()]
    assert len(set(forms)) == len(METHODS)


def test_the_papers_forms_are_literal():
    paper = VQVAE(ModelConfig(codebook_size=64, code_dim=8, **METHODS["ns_vq_paper"].settings)).quantizer
    assert (paper.book.kernel, float(paper.book.bandwidth), paper.book.bandwidth_decay) == ("gaussian", 1.0, 0.9)
    assert paper.book.codes.requires_grad
    assert METHODS["ns_vq_paper"].decays_per_epoch
    ours = VQVAE(ModelConfig(codebook_size=64, code_dim=8, **METHODS["ns_vq"].settings)).quantizer
    assert not list(ours.parameters())
    assert set(ours.book.parts) == {"drift", "winners", "relocation"}


def test_an_unknown_method_is_answered_with_the_nearest_first():
    with pytest.raises(ValueError, match=r"unknown method 'simvq'; known, nearest first: sim_vq,"):
        find_methods(["simvq"])


def test_a_method_named_twice_is_taken_once():
    assert [method.name for method in find_methods(["vq", "fsq", "vq"])] == ["vq", "fsq"]
