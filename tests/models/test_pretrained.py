import copy
import json
import os
import pickle
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from driftvq.models import VQVAE, ModelConfig, model_hash, save_pretrained
from driftvq.models.pretrained import CARD, CONFIG, WEIGHTS, training_state
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
    before = first.detach().clone(), second.detach().clone()
    first.data, second.data = second.data, first.data
    assert torch.equal(first, before[1])
    assert torch.equal(second, before[0])
    assert model_hash(model) != digest


def assert_same(model, other):
    assert other.config == model.config
    assert model_hash(other) == model_hash(model)
    state = other.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor), name
        assert state[name].dtype == tensor.dtype, name


@pytest.mark.parametrize("name", [*QUANTIZER_CASES, "none"])
def test_everything_comes_back(name, tmp_path):
    model, images = make_model(name), make_images()
    assert model.save_pretrained(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted([CONFIG, WEIGHTS, CARD])
    loaded = VQVAE.from_pretrained(tmp_path / "a" / "b")
    assert not loaded.training
    assert_same(model, loaded)
    assert torch.equal(loaded.reconstruct(images), model.reconstruct(images))
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in loaded.named_parameters() if parameter.requires_grad} == trainable


@pytest.mark.parametrize("name", ["trans_vq", "residual_vq"])
def test_a_start_that_is_not_finished_goes_on(name, tmp_path):
    model = make_model(name, steps=0, codebook_size=512)
    model(make_images(1, 8, 8))
    pending = [name for name in model.state_dict() if name.endswith("pending")]
    assert pending
    assert all(len(model.state_dict()[name]) == 4 for name in pending)
    save_pretrained(model, tmp_path)
    loaded = VQVAE.from_pretrained(tmp_path).train()
    assert_same(model, loaded)
    for each in (model, loaded):
        each(make_images(1, 8, 8, seed=5))
    assert len(loaded.state_dict()[pending[0]]) == 8
    assert_same(model, loaded)


def test_a_run_folder_and_text_paths_load(tmp_path):
    model = make_model("vq")
    save_pretrained(model, tmp_path / "model")
    assert_same(model, VQVAE.from_pretrained(str(tmp_path)))


def test_precision_comes_back(tmp_path):
    model = make_model("ns_vq").to(torch.bfloat16)
    model.decoder.float()
    save_pretrained(model, tmp_path)
    assert_same(model, VQVAE.from_pretrained(tmp_path))


def test_a_grown_codebook_comes_back(tmp_path):
    model, images = make_model("ns_vq", steps=12), make_images()
    model.quantizer.grow_(80)
    save_pretrained(model, tmp_path)
    loaded = VQVAE.from_pretrained(tmp_path)
    assert loaded.config.codebook_size == 80
    assert torch.equal(loaded.encode(images), model.encode(images))
    assert model_hash(loaded) == model_hash(model)


def test_loading_leaves_the_random_numbers_alone(tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    VQVAE.from_pretrained(tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_saving_again_replaces_and_keeps_other_files(tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    model = make_model("vq", steps=3)
    save_pretrained(model, tmp_path)
    assert_same(model, VQVAE.from_pretrained(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_full_disk_leaves_the_saved_model_as_it_was(tmp_path, monkeypatch):
    first = make_model("vq")
    save_pretrained(first, tmp_path)

    def full(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(make_model("vq", steps=3), tmp_path)
    monkeypatch.undo()
    assert_same(first, VQVAE.from_pretrained(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CONFIG, WEIGHTS, CARD])


def test_files_are_readable_by_others(tmp_path):
    previous = os.umask(0o022)
    try:
        save_pretrained(make_model("vq", steps=0), tmp_path)
    finally:
        os.umask(previous)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_an_interrupted_save_of_another_model_is_noticed(tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    config = (tmp_path / CONFIG).read_text()
    save_pretrained(make_model("vq", quantizer_options={"commitment_weight": 0.5}), tmp_path)
    (tmp_path / CONFIG).write_text(config)
    with pytest.raises(ValueError, match=f"{CONFIG} and {WEIGHTS} in .* are not of one model"):
        VQVAE.from_pretrained(tmp_path)


def rewrite(folder, change):
    """Change the tensors of a saved model, without the config that the weights carry."""
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    change(tensors)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("encoder.0.bias"), r"does not fit its config.json: it lacks encoder\.0\.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), "does not fit its config.json: it has unknown extra"),
        (
            lambda t: t.update({"encoder.0.bias": torch.zeros(31)}),
            r"encoder\.0\.bias is \(31,\), expected \(32,\)",
        ),
        (
            lambda t: t.update({"encoder.0.bias": torch.zeros(32, dtype=torch.int64)}),
            r"encoder\.0\.bias is torch\.int64, expected torch\.float32",
        ),
        (
            lambda t: t.update({"quantizer.start.pending": torch.zeros(5, 7)}),
            r"quantizer\.start\.pending is \(5, 7\), expected \(5, 12\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, message, tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        VQVAE.from_pretrained(tmp_path)


def test_a_config_of_absurd_size_costs_no_memory(tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    rewrite(tmp_path, lambda tensors: None)
    values = json.loads((tmp_path / CONFIG).read_text())
    values["model"]["codebook_size"] = 2**28
    (tmp_path / CONFIG).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"expected \(268435456"):
        VQVAE.from_pretrained(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "pickle"])
def test_damaged_weights_are_refused_and_nothing_is_executed(damage, tmp_path):
    save_pretrained(make_model("vq"), tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    bomb = pickle.dumps(Bomb(str(tmp_path / "executed")))
    (tmp_path / WEIGHTS).write_bytes({"truncated": whole[:-100], "empty": b"", "pickle": bomb}[damage])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or not a safetensors file"):
        VQVAE.from_pretrained(tmp_path)
    assert not (tmp_path / "executed").exists()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[" * 100_000, "config.json is not valid JSON"),
        ("{}", "is not the config of a driftvq model: it has no 'model'"),
        ('{"model_type": "vit"}', "is not the config of a driftvq model"),
        ('{"model": {}}', "has format_version None; this driftvq reads 1"),
        ('{"model": {}, "format_version": 2}', "has format_version 2; this driftvq reads 1"),
        (f'{{"model": {{}}, "format_version": "{"x" * 9999}"}}', r"has format_version 'x{78}…; this driftvq reads 1"),
        ('{"model": {"netwerk": "x"}, "format_version": 1}', "unknown field of the model config 'netwerk'"),
        ('{"model": {"network": "os.system"}, "format_version": 1}', r"unknown network 'os\.system'"),
        ('{"model": {"quantizer": "eval"}, "format_version": 1}', "unknown quantizer 'eval'"),
        (" " * 2**20 + "{}", r"config.json has \d+ bytes; allowed: at most \d+"),
    ],
)
def test_wrong_configs_are_refused(text, message, tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path)
    rewrite(tmp_path, lambda tensors: None)
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        VQVAE.from_pretrained(tmp_path)
    assert str(tmp_path / CONFIG) in str(refused.value)


def test_missing_weights_are_named(tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"has a config\.json but no model\.safetensors"):
        VQVAE.from_pretrained(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no saved model: there is neither a config\.json nor a model/"):
        VQVAE.from_pretrained(tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match="x is not a folder"):
        save_pretrained(VQVAE(ModelConfig()), tmp_path / "x")


def test_the_card_says_what_it_is_and_what_is_known(tmp_path):
    model = make_model("residual_vq", steps=0)
    save_pretrained(model, tmp_path, card={"data": "my | photos\n", "metrics": {"psnr": 27.123456, "n": 2000}})
    card = (tmp_path / CARD).read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: driftvq\n")
    for line in (
        "A VQ-VAE that turns each 4×4 pixels of an image into 4 indices, and back.",
        "| quantizer | residual_vq |",
        "| codebook_size | 64 |",
        r"| data | my \| photos |",
        "## Metrics",
        "| psnr | 27.12 |",
        "| n | 2000 |",
        "## Licence",
    ):
        assert line in card.splitlines(), line
    assert "license:" not in card.split("---")[1]


def test_the_code_in_the_card_runs(tmp_path):
    for quantizer in ("vq", "none"):
        model, images = make_model(quantizer), make_images(2, 16, 16)
        save_pretrained(model, tmp_path / quantizer)
        code = (tmp_path / quantizer / CARD).read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
        names = {"images": images}
        exec(code.replace("PATH_OR_HUB_ID", str(tmp_path / quantizer)), names)
        assert torch.equal(names["images"], model.reconstruct(images))
