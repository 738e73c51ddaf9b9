"""Residual quantizers inside transformers' codecs, with small random networks and audio that sounds like speech."""

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.package import PackageExporter, PackageImporter
from torch.testing import assert_close
from transformers import DacConfig, DacModel, EncodecConfig, EncodecModel, MimiConfig, MimiModel

from driftvq import VQ, GroupedVQ, MultiScaleVQ, ResidualVQ, as_dac, as_encodec, as_mimi
from driftvq.quantizers.codec_adapters import CodecAdapter

RATE, LEVELS, SIZE, WIDTH = 1600, 4, 32, 16


def speech(batch: int = 4, seconds: float = 0.5, seed: int = 0) -> Tensor:
    """Voices of gliding pitch under syllables, with some breath: ``b 1 n``."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(int(seconds * RATE)) / RATE
    pitch = 90 + 60 * torch.rand(batch, 1, generator=generator) + 20 * torch.sin(4 * time)
    phase = 2 * math.pi * pitch.cumsum(dim=1) / RATE
    voice = sum(torch.sin(k * phase) / k for k in range(1, 5))
    syllables = torch.sin(2 * math.pi * (3 + torch.rand(batch, 1, generator=generator)) * time).clamp(min=0)
    return (0.2 * voice * syllables + 0.01 * torch.randn(voice.shape, generator=generator))[:, None]


def residual(dim: int, quantizer: str = "ns_vq", levels: int = LEVELS, **options: object) -> ResidualVQ:
    return ResidualVQ(dim, SIZE, num_quantizers=levels, quantizer=quantizer, channel_first=True, **options)


def encodec(**changes: object) -> EncodecModel:
    torch.manual_seed(0)
    options = {
        "sampling_rate": RATE,
        "num_filters": 4,
        "hidden_size": WIDTH,
        "upsampling_ratios": (4, 4),
        "num_lstm_layers": 1,
        "codebook_size": SIZE,
        "target_bandwidths": (0.5, 1.0, 2.0),
    }
    return EncodecModel(EncodecConfig(**{**options, **changes}))


def mimi() -> MimiModel:
    torch.manual_seed(0)
    config = MimiConfig(
        sampling_rate=RATE,
        num_filters=4,
        hidden_size=WIDTH,
        upsampling_ratios=[4, 4],
        codebook_size=SIZE,
        codebook_dim=WIDTH,
        vector_quantization_hidden_dimension=WIDTH,
        num_quantizers=LEVELS,
        num_hidden_layers=1,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        upsample_groups=WIDTH,
    )
    return MimiModel(config)


def dac() -> DacModel:
    torch.manual_seed(0)
    config = DacConfig(
        sampling_rate=RATE,
        encoder_hidden_size=4,
        downsampling_ratios=(4, 4),
        decoder_hidden_size=16,
        n_codebooks=LEVELS,
        codebook_size=SIZE,
    )
    model = DacModel(config)
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d):  # theirs starts so close to 0 that it takes hundreds of steps to wake up
            layer.reset_parameters()
    return model


def with_encodec(quantizer: str = "ns_vq", **options: object) -> nn.Module:
    model = encodec()
    model.quantizer = as_encodec(residual(WIDTH, quantizer, **options), model.config.frame_rate)
    return model


def with_mimi(quantizer: str = "ns_vq", **options: object) -> nn.Module:
    model = mimi()
    model.quantizer = as_mimi(
        residual(WIDTH, quantizer, 1, **options), residual(WIDTH, quantizer, LEVELS - 1, **options)
    )
    return model


def with_dac(quantizer: str = "ns_vq", **options: object) -> nn.Module:
    model = dac()
    model.quantizer = as_dac(residual(model.config.hidden_size, quantizer, codebook_dim=(4,) * LEVELS, **options))
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {"encodec": with_encodec, "mimi": with_mimi, "dac": with_dac}
every_model = pytest.mark.parametrize("name", MODELS)


def call(model: nn.Module, audio: Tensor, levels: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Codes ``b q t``, audio and the quantizer's share of the loss."""
    if isinstance(model, EncodecModel):
        out = model(audio, bandwidth=2.0 if levels is None else 0.5 * levels)
        codes = out.audio_codes[0]
    elif isinstance(model, MimiModel):
        out = model(audio, num_quantizers=levels)
        codes = out.audio_codes
    else:
        out = model(audio, n_quantizers=levels)
        codes = out.audio_codes
    values = out.audio_values if out.audio_values.ndim == 3 else out.audio_values[:, None]
    loss = model.quantizer.loss if isinstance(model.quantizer, CodecAdapter) and model.training else None
    return codes, values[..., : audio.shape[-1]], getattr(out, "loss", loss)


def train(model: nn.Module, steps: int = 30, lr: float = 3e-3) -> list[float]:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    errors = []
    for step in range(steps):
        audio = speech(seed=step % 4)
        _, values, loss = call(model, audio)
        error = (values - audio).square().mean()
        optimizer.zero_grad()
        (error + 0.1 * loss).backward()
        optimizer.step()
        errors.append(error.item())
    return errors


@every_model
@pytest.mark.parametrize("quantizer", ["ns_vq", "vq"])
def test_a_codec_trains(name: str, quantizer: str) -> None:
    model = MODELS[name](quantizer)
    errors = train(model)
    assert sum(errors[-4:]) < 0.9 * sum(errors[:4])
    encoder = [p.grad for key, p in model.named_parameters() if key.startswith("encoder") and p.grad is not None]
    assert any(gradient.abs().max() > 0 for gradient in encoder)
    assert all(gradient.isfinite().all() for gradient in encoder)


@every_model
def test_more_levels_give_better_audio_and_decoding_repeats_it(name: str) -> None:
    model = MODELS[name]()
    train(model, steps=40)
    model.eval()
    audio, latents_errors = speech(seed=9), []
    with torch.no_grad():
        whole, values, _ = call(model, audio)
        assert whole.shape[:2] == (4, LEVELS)
        for levels in range(1, LEVELS + 1):
            if name == "encodec" and levels == 3:
                continue  # not one of the model's bandwidths
            codes, values, _ = call(model, audio, levels)
            assert torch.equal(codes, whole[:, :levels])
            arguments = (codes[None], [None]) if name == "encodec" else ()
            named = {"audio_codes": codes} if name == "dac" else {}
            arguments = (codes,) if name == "mimi" else arguments
            again = model.decode(*arguments, **named).audio_values
            assert_close(again.reshape(values.shape[0], 1, -1)[..., : values.shape[-1]], values)
            latents_errors.append((values - call(model, audio)[1]).square().mean())
    for fewer, more in itertools.pairwise(latents_errors):  # a decoder that has hardly learned: nearly so
        assert more < 1.1 * fewer
    assert latents_errors[0] > latents_errors[-1] == 0


@every_model
def test_training_with_fewer_levels_moves_only_those(name: str) -> None:
    model = MODELS[name]("ema_vq", kmeans_init=False)
    quantizers = [m for m in model.quantizer.modules() if isinstance(m, ResidualVQ)]
    codebooks = [q.part(level).book for q in quantizers for level in range(q.indices_per_position)]
    before = [book.codes.clone() for book in codebooks]
    model.train()
    codes, _, _ = call(model, speech(), levels=2)
    assert codes.shape[1] == 2
    moved = [not torch.equal(book.codes, old) for book, old in zip(codebooks, before, strict=True)]
    assert moved == [True, True, False, False]


def set_codes(quantizer: ResidualVQ, layers: nn.ModuleList) -> None:
    for level, layer in enumerate(layers):
        torch.nn.init.normal_(layer.codebook.embed)
        quantizer.part(level).set_codebook_(layer.codebook.embed)


def test_encodec_gives_what_its_own_quantizer_gives() -> None:
    model = encodec().eval()
    vq = residual(WIDTH, "ema_vq")
    set_codes(vq, model.quantizer.layers)
    with torch.no_grad():
        theirs = [model(speech(), bandwidth=bandwidth) for bandwidth in (0.5, 2.0)]
        model.quantizer = as_encodec(vq, model.config.frame_rate).eval()
        for bandwidth, expected in zip((0.5, 2.0), theirs, strict=True):
            ours = model(speech(), bandwidth=bandwidth)
            assert torch.equal(ours.audio_codes, expected.audio_codes)
            assert_close(ours.audio_values, expected.audio_values)


@pytest.mark.parametrize(("bandwidth", "levels"), [(None, 4), (0, 4), (0.3, 1), (0.999, 1), (1, 2), (1.999, 3)])
def test_encodec_uses_the_levels_that_a_bandwidth_pays_for(bandwidth: float | None, levels: int) -> None:
    """32 codes are 5 bits, and 100 times a second that is half a kbit/s a level."""
    vq = ResidualVQ(WIDTH, 32, num_quantizers=4, channel_first=True)
    assert as_encodec(vq, frame_rate=100).get_num_quantizers_for_bandwidth(bandwidth) == levels


def test_levels_of_different_sizes_cost_different_bandwidths() -> None:
    q = as_encodec(ResidualVQ(WIDTH, (1024, 16, 16), channel_first=True), frame_rate=50)  # 10, 4 and 4 bits a frame
    levels = [q.get_num_quantizers_for_bandwidth(bandwidth) for bandwidth in (0.3, 0.5, 0.69, 0.7, 0.9, 1.09)]
    assert levels == [1, 1, 1, 2, 3, 3]
    with pytest.raises(ValueError, match=r"1\.1 kbit/s needs 4 levels, the quantizer has 3"):
        q.encode(torch.randn(2, WIDTH, 10), 1.1)


def test_mimi_gives_what_its_own_quantizer_gives() -> None:
    model = mimi().eval()
    semantic, acoustic = residual(WIDTH, "ema_vq", 1), residual(WIDTH, "ema_vq", LEVELS - 1)
    for name, vq in (("semantic", semantic), ("acoustic", acoustic)):
        layers = getattr(model.quantizer, f"{name}_residual_vector_quantizer").layers
        for layer in layers:
            layer.codebook.embed_sum.normal_()
            layer.codebook.cluster_usage.fill_(1)
        for level, layer in enumerate(layers):
            vq.part(level).set_codebook_(layer.codebook.embed)
    with torch.no_grad():
        theirs = [model(speech(), num_quantizers=levels) for levels in (1, 2, LEVELS)]
        model.quantizer = as_mimi(semantic, acoustic).eval()
        for levels, expected in zip((1, 2, LEVELS), theirs, strict=True):
            ours = model(speech(), num_quantizers=levels)
            assert torch.equal(ours.audio_codes, expected.audio_codes)
            assert_close(ours.audio_values, expected.audio_values)


@pytest.mark.parametrize("levels", [None, 2])
def test_dac_weights_each_loss_once(levels: int | None) -> None:
    losses = []
    for weight in (0.25, 10.0):
        model = with_dac("vq", commitment_weight=weight).train()
        model.config.commitment_loss_weight, model.config.codebook_loss_weight = 0.5, 3.0
        hidden = model.encoder(speech())
        details = copy.deepcopy(model.quantizer.vq).details(hidden, levels=levels)
        expected = sum((0.5 + 3.0) * (part.latents - part.codes).square().mean() for part in details.parts)
        assert len(details.parts) == (levels or LEVELS)
        losses.append(model(speech(), n_quantizers=levels).loss)
        assert_close(losses[-1], expected)
    assert_close(losses[0], losses[1])


def test_descript_s_call() -> None:
    """``z, codes, latents, commitment, codebook = quantizer(z, n_quantizers)``, ``from_codes`` and ``from_latents``."""
    q = as_dac(residual(WIDTH, "factorized_vq", codebook_dim=(8, 8, 6, 6))).eval()
    assert (q.n_codebooks, q.codebook_size, q.codebook_dim) == (LEVELS, SIZE, [8, 8, 6, 6])
    z = torch.randn(2, WIDTH, 10)
    for levels in (None, 1, 3):
        quantized, codes, latents, commitment, codebook = q(z, levels)
        used = LEVELS if levels is None else levels
        assert codes.shape == (2, used, 10)
        assert latents.shape == (2, sum(q.codebook_dim[:used]), 10)
        assert commitment.shape == codebook.shape == ()
        assert commitment > 0
        again, each, same = q.from_codes(codes)
        assert_close(again, quantized)
        assert same is codes
        assert each.shape == latents.shape
        from_latents, _, found = q.from_latents(latents)
        assert torch.equal(found, codes)
        assert_close(from_latents, quantized)


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_model_is_packaged_as_descript_s_are(tmp_path: Path) -> None:
    q = as_dac(residual(WIDTH, codebook_dim=(8,) * LEVELS))
    for seed in range(20):
        q(torch.randn(2, WIDTH, 50, generator=torch.Generator().manual_seed(seed)))
    with PackageExporter(tmp_path / "weights.pth") as package:
        package.extern("driftvq.**")
        package.save_pickle("DAC", "DAC.pth", q)
    loaded = PackageImporter(tmp_path / "weights.pth").load_pickle("DAC", "DAC.pth")
    z = torch.randn(2, WIDTH, 50)
    for mode in (False, True):
        for mine, other in zip(q.train(mode)(z), loaded.train(mode)(z), strict=True):
            assert torch.equal(mine, other)
    assert torch.equal(q.vq.part(0).codebook, loaded.vq.part(0).codebook)


@every_model
def test_state_and_copies(name: str) -> None:
    model, twin = MODELS[name](), MODELS[name]()
    train(model, steps=4)
    twin.load_state_dict(model.state_dict())
    copied = copy.deepcopy(model)
    assert copied.quantizer.state_dict().keys() == pickle.loads(pickle.dumps(model.quantizer)).state_dict().keys()
    model.eval()
    with torch.no_grad():
        expected = call(model, speech())[:2]
        for other in (twin, copied):
            codes, values, _ = call(other.eval(), speech())
            assert torch.equal(codes, expected[0])
            assert torch.equal(values, expected[1])


def test_encodec_in_chunks_passes_every_chunk_on() -> None:
    model = encodec(chunk_length_s=0.25, overlap=0.0, normalize=True)
    model.quantizer = as_encodec(residual(WIDTH, "vq"), model.config.frame_rate).train()
    audio = speech().requires_grad_()
    out = model(audio, bandwidth=2.0)
    assert len(out.audio_codes) == 2
    for part in out.audio_values.chunk(2, dim=-1):
        (gradient,) = torch.autograd.grad(part.square().mean(), audio, retain_graph=True)
        assert gradient.abs().max() > 0
    assert model.quantizer.loss.requires_grad


def test_codes_from_elsewhere_are_looked_up_in_training() -> None:
    model = with_encodec("vq").train()
    call(model, speech())
    codes = torch.randint(SIZE, (LEVELS, 4, 50))
    assert_close(model.quantizer.decode(codes), model.quantizer.vq.indices_to_codes(codes.permute(1, 2, 0)))


def test_no_loss_before_training() -> None:
    model = with_mimi().eval()
    with torch.no_grad():
        call(model, speech())
    with pytest.raises(ValueError, match="nothing was encoded in training"):
        _ = model.quantizer.loss


@pytest.mark.parametrize(
    ("vq", "message"),
    [
        (VQ(4, 8, channel_first=True), "needs a ResidualVQ, got VQ"),
        (GroupedVQ(4, 8, channel_first=True), "needs a ResidualVQ, got GroupedVQ"),
        (ResidualVQ(4, 8), "ResidualVQ needs channel_first=True, got False"),
        (ResidualVQ(4, 8, quantizer="grouped_vq", channel_first=True), "one code per level, GroupedVQ gives several"),
    ],
)
@pytest.mark.parametrize("adapt", [lambda vq: as_encodec(vq, 75), as_dac, lambda vq: as_mimi(vq, vq)])
def test_quantizers_that_cannot_serve_a_codec_are_refused(adapt, vq, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapt(vq)


def test_numbers_that_cannot_serve_a_codec_are_refused() -> None:
    for rate in (0, -75.0, math.inf, math.nan, "75"):
        with pytest.raises(ValueError, match=f"frame_rate must be a number above 0, got {rate!r}"):
            as_encodec(residual(WIDTH), rate)
    with pytest.raises(ValueError, match="Mimi's quantizers have one dim, got 8 and 6"):
        as_mimi(residual(8), residual(6))
    with pytest.raises(ValueError, match="levels have latents at all positions, those of MultiScaleVQ do not"):
        as_dac(MultiScaleVQ(4, 8, scales=(1, 5), channel_first=True))


def test_level_counts_that_cannot_be_had_are_refused_before_anything_changes() -> None:
    latents = torch.randn(2, WIDTH, 10)
    q = as_encodec(residual(WIDTH), 100)
    with pytest.raises(ValueError, match=r"24.0 kbit/s needs 48 levels, the quantizer has 4"):
        q.encode(latents, 24.0)
    m = as_mimi(residual(WIDTH, levels=2), residual(WIDTH, levels=2))
    for levels in (1, 5):
        with pytest.raises(ValueError, match=f"num_quantizers must lie between 2 and 4, got {levels}"):
            m.encode(latents, levels)
    with pytest.raises(ValueError, match=r"num_quantizers must be a whole number of at least 1, got 2\.5"):
        m.encode(latents, 2.5)
    d = as_dac(residual(WIDTH))
    for levels in (0, 5):
        with pytest.raises(ValueError, match=f"{levels}"):
            d(latents, levels)
    assert q.vq.step == m.semantic.step == m.acoustic.step == d.vq.step == 0
    with pytest.raises(ValueError, match=r"channels of whole levels, \[16, 16, 16, 16\], got 17"):
        d.from_latents(torch.randn(2, 17, 10))
    with pytest.raises(ValueError, match="one codebook_size, got 32 and 16"):
        as_mimi(residual(WIDTH), ResidualVQ(WIDTH, 16, channel_first=True))


def test_a_bandwidth_pays_for_fewer_levels_once_they_have_more_codes() -> None:
    quantizer = as_encodec(ResidualVQ(8, 16, num_quantizers=4, quantizer="vq", channel_first=True), 75.0)
    assert quantizer.get_num_quantizers_for_bandwidth(1.2) == 4
    quantizer.vq.grow_(256)
    assert quantizer.get_num_quantizers_for_bandwidth(1.2) == 2


def test_each_levels_own_weight_of_the_commitment_is_taken_out_for_dac() -> None:
    """NSVQ's depends on the dimension, and nothing beside the commitment trains its codes by a gradient."""
    quantizer = as_dac(ResidualVQ(32, 16, (32, 8), num_quantizers=2, channel_first=True))
    for _ in range(3):
        *_, commitment, others = quantizer(torch.randn(2, 32, 40))
    assert float(commitment.detach()) > 0
    assert_close(others, torch.zeros_like(others), atol=1e-6, rtol=0)


def test_who_trains_by_the_loss_alone_holds_no_more_than_one_step() -> None:
    quantizer = as_encodec(residual(8), 75.0)
    for _ in range(3):
        quantizer.encode(torch.randn(2, 8, 40, requires_grad=True))
        quantizer.loss.backward()
    assert len(quantizer._passed) == 1


def test_encoding_without_gradients_takes_none_from_training() -> None:
    quantizer, gradients = as_encodec(residual(8, "vq"), 75.0), []
    for looks_first in (False, True):
        z = torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(0)).requires_grad_()
        if looks_first:
            with torch.no_grad():
                quantizer.encode(z)
        decoded = quantizer.decode(quantizer.encode(z))
        gradients.append(torch.autograd.grad(decoded.square().sum() + quantizer.loss, z)[0])
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_codes_changed_after_encoding_decode_as_what_they_are_now() -> None:
    quantizer = as_encodec(residual(8, "vq"), 75.0)
    codes = quantizer.encode(torch.randn(2, 8, 40))
    codes[2:] = 0
    assert_close(quantizer.decode(codes), quantizer.vq.indices_to_codes(codes.permute(1, 2, 0)))


def test_the_commitment_is_in_one_of_dacs_losses_where_the_weight_stands_on_the_codes() -> None:
    """As IBQ has it: ``commitment + β · codebook + w · entropy``."""
    vq = ResidualVQ(8, 16, num_quantizers=2, quantizer="ibq", commitment_weight=0.3, channel_first=True).eval()
    z = torch.randn(2, 8, 10)
    *_, commitment, others = as_dac(vq)(z)
    terms = vq.details(z).terms
    assert_close(commitment, terms.commitment)
    assert_close(others, 0.3 * terms.codebook)
