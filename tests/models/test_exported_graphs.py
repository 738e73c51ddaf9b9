import pytest
import torch

from driftvq import QUANTIZERS
from driftvq.models.export import Runner, check_exported, evaluation_copy
from tests.models.cases import make_images, make_model


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_what_is_computed_once_is_what_the_model_computes(quantizer):
    model, images = make_model(quantizer), make_images(2, 16, 16)
    fixed = evaluation_copy(model)
    assert torch.equal(fixed.encode(images), model.encode(images))
    assert torch.equal(fixed.reconstruct(images), model.reconstruct(images))
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_half_precision_is_exported_in_single(tmp_path):
    fixed = evaluation_copy(make_model("vq").to(torch.bfloat16))
    assert {parameter.dtype for parameter in fixed.parameters()} == {torch.float32}


def with_codes(codes):
    """A model whose latents are all equal, and whose first codes lie so far from them."""
    model = make_model("vq").eval()
    with torch.no_grad():
        model.encoder[-1].weight.zero_()
        model.encoder[-1].bias.fill_(1)
        model.quantizer.book.codes.fill_(9)
        for number, offset in enumerate(codes):
            model.quantizer.book.codes[number] = 1
            model.quantizer.book.codes[number, 0] += offset
    return model


def swapped(model):
    def encode(images):
        indices = model.encode(images)
        assert set(indices.flatten().tolist()) <= {0, 1}
        return 1 - indices

    return Runner(encode, model.decode)


def test_wrong_indices_are_found():
    model = with_codes([0.1, -0.2])
    with pytest.raises(ValueError, match="exported indices differ from torch at 12 of 12 places that are no ties"):
        check_exported(model, swapped(model))


@pytest.mark.parametrize("codes", [[0.1, -0.1], [0.1, 0.1], [0.1, 0.1 + 1e-6]], ids=["between", "equal", "nearly"])
def test_ties_are_counted_and_no_error(codes):
    model = with_codes(codes)
    found = check_exported(model, swapped(model))
    assert found["ties"] == found["indices"] == 243


@pytest.mark.parametrize("change", [lambda i: i.int(), lambda i: i[:, :1]], ids=["type", "shape"])
def test_indices_of_another_kind_are_refused(change):
    model = make_model("vq")
    with pytest.raises(ValueError, match="not as in torch"):
        check_exported(model, Runner(lambda images: change(model.encode(images)), model.decode))
