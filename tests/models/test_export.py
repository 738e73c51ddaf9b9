import json
import sys

import onnx
import onnxruntime
import pytest
import torch

from driftvq import QUANTIZERS
from driftvq.models import VQVAE, ModelConfig, model_hash
from driftvq.models.export import FORMATS, OPSET, Runner, export_model
from tests.models.cases import make_images, make_model


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def test_onnx_files_agree_with_the_model(tmp_path):
    model = make_model("ns_vq").train()
    about = export_model(model, tmp_path, "onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.onnx", "encoder.onnx", "export.json"]
    assert model.training
    for batch, height, width in ((1, 8, 8), (5, 32, 20)):
        images = make_images(batch, height, width, seed=7)
        indices = run_onnx(tmp_path / "encoder.onnx", images)
        assert torch.equal(indices, model.encode(images))
        assert (run_onnx(tmp_path / "decoder.onnx", indices) - model.decode(indices)).abs().max() < 1e-4
    for name in ("encoder", "decoder"):
        loaded = onnx.load(tmp_path / f"{name}.onnx")
        assert {entry.domain: entry.version for entry in loaded.opset_import} == {"": OPSET}
        assert {entry.key: entry.value for entry in loaded.metadata_props}["model_hash"] == model_hash(model)
    assert json.loads((tmp_path / "export.json").read_text()) == about
    assert about["check"]["indices"] > 200
    assert about["check"]["largest_pixel_difference"] < 1e-4
    assert (about["stride"], about["codebook_size"], about["opset"]) == (4, 64, OPSET)


def test_many_codes_are_searched_in_blocks(tmp_path):
    model = make_model("vq", codebook_size=2500)
    check = export_model(model, tmp_path, "onnx")["check"]
    assert (check["indices"], check["ties"]) == (243, 0)
    nodes = [node.op_type for node in onnx.load(tmp_path / "encoder.onnx").graph.node]
    assert nodes.count("Scan") == 1
    assert not {"Gemm", "ArgMax"} & set(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", FORMATS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_quantizer_exports(quantizer, runtime, tmp_path):
    check = export_model(make_model(quantizer), tmp_path, runtime)["check"]
    assert check["largest_pixel_difference"] < 1e-4
    assert check["ties"] < 3


@pytest.mark.slow
@pytest.mark.parametrize("network", ["paper", "taming", "taming_f4"])
def test_every_network_exports(network, tmp_path):
    torch.manual_seed(0)
    model = VQVAE(ModelConfig(network, "vq", codebook_size=16, code_dim=3))
    assert export_model(model, tmp_path, "onnx")["check"]["largest_pixel_difference"] < 1e-4


def test_a_plain_autoencoder_has_nothing_to_export(tmp_path):
    with pytest.raises(ValueError, match="no indices to export"):
        export_model(make_model("none", steps=0), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown export format 'onx'; known, nearest first: onnx, torch"):
        export_model(make_model("vq", steps=0), tmp_path / "x", "onx")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("absent", ["onnxruntime", "onnxscript"])
def test_absent_packages_are_named(absent, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ValueError, match=rf"{absent}.*pip install .onnx>="):
        export_model(make_model("vq", steps=0), tmp_path)


def test_files_that_disagree_do_not_appear(tmp_path, monkeypatch):
    def write(traced, folder, metadata):
        for name in ("encoder", "decoder"):
            (folder / f"{name}.x").write_text("")

    def runner(encoder, decoder):
        assert encoder.is_file()
        return Runner(model.encode, lambda indices: model.decode(indices) + 2e-4)

    model = make_model("vq")
    monkeypatch.setattr("driftvq.models.export.trace", lambda model: None)
    monkeypatch.setitem(FORMATS, "x", (write, "x", runner))
    with pytest.raises(ValueError, match=r"exported images differ from torch by 0\.0002, at most 0\.0001 allowed"):
        export_model(model, tmp_path, "x")
    assert not list(tmp_path.iterdir())
    export_model(model, tmp_path, "x", check=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.x", "encoder.x", "export.json"]
