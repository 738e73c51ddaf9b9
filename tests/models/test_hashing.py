import copy
from dataclasses import replace

import pytest
import torch

from driftvq.models import VQVAE, model_hash
from driftvq.models.hashing import training_state
from tests.models.cases import QUANTIZER_CASES, make_images, make_model


def disturb(model, name):
    """Change one tensor of a model as much as its type allows."""
    tensor = model.state_dict()[name]
    with torch.no_grad():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif tensor.is_floating_point():
            tensor.mul_(-3).sub_(1)
        else:
            tensor.add_(7)


@pytest.mark.parametrize("name", QUANTIZER_CASES)
def test_what_is_left_out_changes_neither_indices_nor_images(name):
    model, images = make_model(name), make_images(2, 16, 16)
    indices, decoded, digest = model.encode(images), model.reconstruct(images), model_hash(model)
    left_out = training_state(model)
    assert left_out
    for tensor in left_out:
        disturb(model, tensor)
    assert torch.equal(model.encode(images), indices)
    assert torch.equal(model.reconstruct(images), decoded)
    assert model_hash(model) == digest


@pytest.mark.parametrize("name", QUANTIZER_CASES)
def test_every_other_tensor_counts(name):
    model = make_model(name, steps=1)
    digest = model_hash(model)
    for tensor in model.state_dict().keys() - training_state(model):
        other = copy.deepcopy(model)
        disturb(other, tensor)
        assert model_hash(other) != digest, tensor


@pytest.mark.parametrize("name", QUANTIZER_CASES)
def test_every_name_that_is_left_out_exists(name):
    model = make_model(name, steps=0)
    assert training_state(model) <= model.state_dict().keys()


def test_mode_layout_and_a_look_do_not_count():
    model = make_model()
    digest = model_hash(model)
    assert len(digest) == 64
    model.eval()
    model.encode(make_images())
    assert model_hash(model) == digest
    assert model_hash(model.to(memory_format=torch.channels_last)) == digest


def test_a_forward_pass_in_training_counts_only_if_codes_move():
    frozen = make_model("vq", steps=1).train()
    digest = model_hash(frozen)
    frozen(make_images())
    assert frozen.quantizer.step == 2
    assert model_hash(frozen) == digest
    moving = make_model("ema_vq", steps=1).train()
    digest = model_hash(moving)
    moving(make_images())
    assert model_hash(moving) != digest


def test_config_and_precision_count():
    model = make_model("vq", steps=0)
    torch.manual_seed(0)
    other = VQVAE(replace(model.config, quantizer_options={"commitment_weight": 0.5}))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert model_hash(model) != model_hash(other)
    assert model_hash(copy.deepcopy(model).to(torch.bfloat16)) != model_hash(model)


def test_swapped_tensors_count():
    model = make_model("vq", steps=0)
    digest = model_hash(model)
    first, second = (layer.spatial.weight for layer in model.encoder if hasattr(layer, "spatial"))
    with torch.no_grad():
        first.copy_(second), second.copy_(first.clone())
    assert model_hash(model) != digest
