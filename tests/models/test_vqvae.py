import copy

import pytest
import torch
from torch import nn

from driftvq import QUANTIZERS
from driftvq.models import NETWORKS, VQVAE, ModelConfig, VQVAEOutput
from tests.models.cases import QUANTIZER_CASES, make_images, make_model

all_quantizers = pytest.mark.parametrize("name", QUANTIZER_CASES)


@all_quantizers
def test_round_trip_is_exact_in_any_mode_at_any_size(name):
    model, images = make_model(name), make_images(2, 18, 23)
    model.train()
    indices = model.encode(images)
    per_position = model.quantizer.indices_per_position
    assert indices.shape == (2, 5, 6, *([per_position] if per_position else []))
    assert indices.dtype == torch.int64
    decoded, reconstructed = model.decode(indices, (18, 23)), model.reconstruct(images)
    assert torch.equal(decoded, reconstructed)
    assert reconstructed.shape == images.shape
    assert reconstructed.abs().max() <= 1
    assert model.training
    assert model.quantizer.training
    model.eval()
    assert torch.equal(model.encode(images), indices)
    assert torch.equal(model.reconstruct(images), reconstructed)
    output = model(images)
    assert torch.equal(output.indices, indices)
    assert torch.equal(output.images, reconstructed)


@all_quantizers
def test_a_training_step_trains_encoder_and_decoder(name):
    model, images = make_model(name, steps=1).train(), make_images(4, 16, 16)
    output = model(images)
    assert isinstance(output, VQVAEOutput)
    assert output.latents.shape == (4, 12, 4, 4)
    assert output.loss.shape == ()
    ((output.images - images).square().mean() + output.loss).backward()
    for part in (model.encoder, model.decoder):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters())


@all_quantizers
def test_evaluating_changes_nothing(name):
    model, images = make_model(name).train(), make_images()
    before = copy.deepcopy(model.state_dict())
    indices = model.encode(images)
    decoded = model.decode(indices)
    model.reconstruct(images)
    model.latents(images)
    assert not decoded.requires_grad
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_mixed_modes_come_back_even_after_an_error():
    model = make_model("vq").train()
    model.decoder.eval()
    modes = [module.training for module in model.modules()]
    assert set(modes) == {True, False}
    model.reconstruct(make_images())
    assert [module.training for module in model.modules()] == modes
    with torch.no_grad():
        model.encoder[0].bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="latents must be finite"):
        model.encode(make_images())
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", QUANTIZERS)
def test_bfloat16_weights(name):
    model = make_model(name).to(torch.bfloat16)
    images = make_images()
    indices = model.encode(images)
    decoded = model.decode(indices, (18, 23))
    assert decoded.dtype == torch.bfloat16
    assert torch.equal(decoded, model.reconstruct(images))
    assert torch.equal(decoded, model.eval()(images).images)


@pytest.mark.parametrize("name", [*QUANTIZERS, "none"])
def test_autocast_reconstructs_nearly_the_same(name):
    model, images = make_model(name).eval(), make_images(4, 16, 16)
    exact = model.reconstruct(images)
    with torch.autocast("cpu", torch.bfloat16):
        output, again = model(images), model.reconstruct(images)
    assert output.latents.dtype == torch.bfloat16
    assert output.images.dtype == torch.float32
    assert torch.equal(output.images.detach(), again)
    # A latent between two codes may change side, so that single pixels differ by more than the rounding.
    assert (output.images - exact).abs().mean() < 0.01


def test_padding_repeats_the_edge_and_cropping_undoes_it():
    model, images = make_model("vq").eval(), make_images(2, 9, 14)
    padded = torch.cat([images, images[:, :, -1:].expand(-1, -1, 3, -1)], dim=2)
    padded = torch.cat([padded, padded[:, :, :, -1:].expand(-1, -1, -1, 2)], dim=3)
    assert padded.shape == (2, 3, 12, 16)
    assert torch.equal(model.encode(images), model.encode(padded))
    assert torch.equal(model.reconstruct(images), model.reconstruct(padded)[:, :, :9, :14])
    assert model.grid_size((9, 14)) == (3, 4)


def test_an_empty_batch():
    model = make_model("vq")
    assert model.encode(torch.zeros(0, 3, 8, 12)).shape == (0, 2, 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_any_integers_decode(dtype):
    model = make_model("vq")
    indices = model.encode(make_images())
    assert torch.equal(model.decode(indices.to(dtype)), model.decode(indices))


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_joins(network):
    torch.manual_seed(0)
    model = VQVAE(ModelConfig(network, "vq", codebook_size=8, code_dim=3)).eval()
    images = make_images(1, 17, 9)
    indices = model.encode(images)
    assert indices.shape == (1, -(-17 // model.downscale), -(-9 // model.downscale))
    assert torch.equal(model.decode(indices, (17, 9)), model(images).images)


def test_a_plain_autoencoder():
    model, images = make_model("none"), make_images()
    output = model(images)
    assert output.indices is None
    assert output.loss == 0
    assert model.quantizer is None
    with torch.no_grad():
        padded = nn.functional.pad(images, (0, 1, 0, 2), mode="replicate")
        assert torch.equal(model.reconstruct(images), model.decoder(model.encoder(padded))[:, :, :18, :23])
    with pytest.raises(ValueError, match=r"no indices; driftvq\.models\.quantize_afterwards gives it a codebook"):
        model.encode(images)
    with pytest.raises(ValueError, match="cannot decode indices: it has no codebook"):
        model.decode(torch.zeros(1, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"got torch.uint8; convert bytes by x / 127.5 - 1"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), r"floating-point tensor in \[-1, 1\], got torch.int64$"),
        ([[1.0]], r"floating-point tensor in \[-1, 1\], got list"),
        (torch.zeros(3, 8, 8), r"images must be b 3 h w, got shape \(3, 8, 8\)"),
        (torch.zeros(1, 1, 8, 8), r"images must be b 3 h w, got shape \(1, 1, 8, 8\)"),
        (torch.zeros(1, 8, 8, 3), r"images must be b 3 h w, got shape \(1, 8, 8, 3\)"),
        (torch.zeros(1, 3, 3, 8), r"images must be at least 4×4 pixels, got 3×8"),
        (torch.full((1, 3, 8, 8), 255.0), r"images must lie in \[-1, 1\], got values from 255 to 255"),
        (torch.full((1, 3, 8, 8), -1.1), r"images must lie in \[-1, 1\], got values from -1.1 to -1.1"),
        (torch.full((1, 3, 8, 8), float("nan")), r"images must lie in \[-1, 1\], got values from nan to nan"),
    ],
)
def test_wrong_images_are_refused(images, message):
    model = make_model("vq", steps=0)
    for method in (model, model.encode, model.reconstruct, model.latents):
        with pytest.raises(ValueError, match=message):
            method(images)


@pytest.mark.parametrize(
    ("indices", "size", "message"),
    [
        (torch.zeros(1, 2, 2), None, "indices must be a tensor of integers, got torch.float32"),
        (torch.zeros(1, 2, 2, dtype=torch.bool), None, "indices must be a tensor of integers, got torch.bool"),
        ([1], None, "indices must be a tensor of integers, got list"),
        (torch.zeros(2, 2, dtype=torch.int64), None, r"indices must be b h w, got shape \(2, 2\)"),
        (torch.full((1, 2, 2), 64), None, "indices must lie between -1 .* and 63, got 64"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), (9, 8), r"at most \(8, 8\), got \(9, 8\)"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), (0, 8), r"at most \(8, 8\), got \(0, 8\)"),
    ],
)
def test_wrong_indices_are_refused(indices, size, message):
    with pytest.raises(ValueError, match=message):
        make_model("vq", steps=0).decode(indices, size)


def test_indices_of_another_depth_are_refused():
    with pytest.raises(ValueError, match=r"indices must be b h w 4, got shape \(1, 2, 2\)"):
        make_model("residual_vq", steps=0).decode(torch.zeros(1, 2, 2, dtype=torch.int64))


def assert_compiles(quantizer):
    model, images = make_model(quantizer, steps=4), make_images(4, 18, 23)
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for module in (compiled, twin):
        torch.manual_seed(3)
        output = module(images)
        ((output.images - images).square().mean() + output.loss).backward()
    assert output.images.shape == images.shape
    for (name, a), b in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if b[1].grad is not None:
            assert torch.allclose(a.grad, b[1].grad, atol=1e-5), name
    return model, compiled, images


def test_training_compiles_into_one_graph():
    assert_compiles("ns_vq")


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", [name for name in QUANTIZERS if name != "gumbel_vq"])
def test_any_quantizer_compiles_into_one_graph_in_training_and_evaluation(quantizer):
    model, compiled, images = assert_compiles(quantizer)
    model.eval()
    assert torch.allclose(compiled(images).images, model(images).images, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_latents_in_other_units_are_the_same_model(scale):
    torch.manual_seed(0)
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64) * 2 - 1
    options = {"quantizer": "vq", "codebook_size": 8, "code_dim": 4}
    plain = VQVAE(ModelConfig(**options)).double()
    scaled = VQVAE(ModelConfig(**options, latent_scale=scale)).double()
    renamed = {"encoder.": "encoder.0.", "decoder.": "decoder.1."}
    state = {}
    for name, value in plain.state_dict().items():
        part = next((part for part in renamed if name.startswith(part)), "")
        state[renamed.get(part, "") + name.removeprefix(part)] = value * (scale if name.endswith("codes") else 1)
    scaled.load_state_dict(state)
    first, second = plain.eval()(images), scaled.eval()(images)
    assert torch.equal(first.indices, second.indices)
    assert torch.allclose(first.images, second.images)
    assert torch.allclose(first.loss, second.loss)
    assert torch.allclose(first.latents * scale, second.latents)
    assert torch.allclose(scaled.reconstruct(images), first.images)


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), "1", True])
def test_a_scale_of_the_latents_is_larger_than_zero(scale):
    with pytest.raises(ValueError, match="latent_scale must be a number larger than 0"):
        ModelConfig(latent_scale=scale)


def test_tensors_without_values_are_refused():
    model = VQVAE(ModelConfig(codebook_size=16, code_dim=8))
    images = torch.zeros(1, 3, 16, 16, device="meta")
    for call in (model, model.encode, model.latents, model.reconstruct):
        with pytest.raises(ValueError, match="images must have values, got a tensor on the device 'meta'"):
            call(images)
    with pytest.raises(ValueError, match="indices must be a tensor of integers that has values, got one on 'meta'"):
        model.decode(torch.zeros(1, 4, 4, dtype=torch.int64, device="meta"))
