"""The calls of LlamaGen, SimVQ and Open-MAGVIT2, in models that use a quantizer as theirs do."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from driftvq import (
    EMAVQ,
    FSQ,
    IBQ,
    LFQ,
    NSVQ,
    VQ,
    FactorizedVQ,
    GroupedVQ,
    GumbelVQ,
    SimVQ,
    TransVQ,
    as_llamagen,
    as_open_magvit2,
    as_simvq,
    as_taming,
)

ADAPTERS = [as_taming, as_llamagen, as_simvq, as_open_magvit2]
CLASSES = [VQ, EMAVQ, FactorizedVQ, SimVQ, TransVQ, NSVQ, GumbelVQ, LFQ, FSQ]
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Model(nn.Module):
    """The autoencoder around the quantizer, with the call sites of LlamaGen's, SimVQ's and Open-MAGVIT2's models."""

    def __init__(self, quantize: nn.Module) -> None:
        super().__init__()
        self.encoder, self.quantize = nn.Conv2d(3, 6, 2, stride=2), quantize
        self.decoder = nn.ConvTranspose2d(6, 3, 2, stride=2)

    def llamagen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quant, emb_loss, _ = self.quantize(self.encoder(x))
        return self.decoder(quant), emb_loss[0] + emb_loss[1] + emb_loss[2]

    def simvq(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (quant, emb_loss, _), loss_break = self.quantize(self.encoder(x))
        return self.decoder(quant), emb_loss + loss_break.commitment

    def open_magvit2(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (quant, emb_loss, _), loss_break = self.quantize(self.encoder(x), return_loss_breakdown=True)
        return self.decoder(quant), 0.1 * emb_loss + 0.25 * loss_break.commitment


@every_class
@pytest.mark.parametrize("package", ["llamagen", "simvq", "open_magvit2"])
def test_models_train(package: str, cls: type) -> None:
    adapt = {"llamagen": as_llamagen, "simvq": as_simvq, "open_magvit2": as_open_magvit2}[package]
    model = Model(adapt(cls(6, 64, channel_first=True)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, errors = torch.rand(4, 3, 16, 16), []
    for _ in range(15):
        decoded, loss = getattr(model, package)(x)
        error = (decoded - x).square().mean()
        optimizer.zero_grad()
        (error + loss).backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.8 * errors[0]
    assert model.encoder.weight.grad.abs().max() > 0


@every_class
def test_the_parts_of_llamagen_s_loss_add_up(cls: type) -> None:
    vq = cls(6, 64, channel_first=True)
    z = torch.randn(2, 6, 4, 4)
    for mode in (False, True):
        vq.train(mode)
        torch.manual_seed(1)
        expected = type(vq).forward(vq.eval(), z).loss if not mode else None
        _, (codebook, commitment, others, usage), (perplexity, one_hot, indices) = as_llamagen(vq)(z)
        if expected is not None:
            assert_close(codebook + commitment + others, expected)
        assert perplexity is one_hot is None
        assert indices.shape == (32,)
        assert 0 <= usage <= 1
    assert_close(usage.item(), vq.recent_usage())


def test_llamagen_s_terms_are_theirs() -> None:
    """``mse(c, sg z)``, ``β mse(sg c, z)`` with unit vectors, no entropy; usage of the codes."""
    vq = FactorizedVQ(6, 16, 6, commitment_weight=0.3, channel_first=True)
    z = torch.randn(2, 6, 4, 4)
    unit = F.normalize(z, dim=1)
    z_q, (codebook, commitment, others, usage), (_, _, indices) = as_llamagen(vq)(z)
    error = (unit - z_q).square().mean()
    assert_close(codebook, error)
    assert_close(commitment, 0.3 * error)
    assert_close(others, torch.zeros(()), atol=1e-7, rtol=0)
    assert_close(usage.item(), len(indices.unique()) / 16)


def test_llamagen_s_terms_of_a_quantizer_whose_weight_stands_on_the_codes() -> None:
    vq, z = IBQ(4, 16, commitment_weight=0.3, channel_first=True).eval(), torch.randn(2, 4, 3, 3)
    codebook, commitment, others, _ = as_llamagen(vq)(z)[1]
    error = (vq(z).quantized - z).square().mean()
    assert_close(torch.stack([codebook, commitment, others]), torch.stack([0.3 * error, 2 * error, 0 * error]))


def test_llamagen_s_entries() -> None:
    q = as_llamagen(VQ(6, 16, channel_first=True)).eval()
    z_q, _, (_, _, indices) = q(torch.randn(2, 6, 3, 5))
    assert torch.equal(q.get_codebook_entry(indices, (2, 6, 3, 5)), z_q)
    assert torch.equal(q.get_codebook_entry(indices, (2, 6, 3, 5), True), z_q)
    last = q.get_codebook_entry(indices, (2, 3, 5, 6), channel_first=False)
    assert torch.equal(last, z_q.movedim(1, -1))
    assert torch.equal(q.get_codebook_entry(indices), last.reshape(-1, 6))
    with pytest.raises(ValueError, match=r"shape must be \(b, c, h, w\) with c = 6, got \(2, 3, 5, 6\)"):
        q.get_codebook_entry(indices, (2, 3, 5, 6))


def test_simvq_s_breakdown_weights_once() -> None:
    vq = SimVQ(6, 16, commitment_weight=0.3, channel_first=True)
    z = torch.randn(2, 6, 3, 5)
    (z_q, emb_loss, indices), breakdown = as_simvq(vq)(z, temp=1.0)
    error = (z - z_q).square().mean()
    assert_close(breakdown.commitment, 1.3 * error)
    assert emb_loss == breakdown.per_sample_entropy == breakdown.codebook_entropy == 0
    (_, emb_loss, flat), breakdown = as_open_magvit2(vq)(z, return_loss_breakdown=True)
    assert_close(breakdown.commitment, error)
    assert_close(emb_loss, error)
    assert torch.equal(indices, flat)
    three = as_open_magvit2(vq)(z, return_loss_breakdown=False)
    assert torch.equal(three[0], z_q)


def test_open_magvit2_s_entropies_have_no_weight() -> None:
    z = torch.randn(2, 6, 3, 5)
    losses = [as_open_magvit2(LFQ(6, 64, entropy_weight=weight, channel_first=True))(z)[0][1] for weight in (0.1, 0.7)]
    assert_close(losses[0], losses[1])
    assert losses[0] != 0


@pytest.mark.parametrize("adapt", ADAPTERS)
def test_codes_of_images_of_indices(adapt) -> None:
    q = adapt(VQ(6, 16, channel_first=True)).eval()
    indices = torch.randint(16, (2, 3, 5))
    codes = q.embed_code(indices)
    assert codes.shape == (2, 6, 3, 5)
    assert torch.equal(codes.movedim(1, -1), q.vq.codebook[indices])
    assert torch.equal(q.get_codebook_entry(indices.flatten()), q.vq.codebook[indices.flatten()])


def test_taming_s_temperature_is_ignored() -> None:
    q = as_taming(VQ(6, 16, channel_first=True)).eval()
    z = torch.randn(2, 6, 3, 5)
    assert torch.equal(q(z, temp=1.0)[0], q(z)[0])


@pytest.mark.parametrize("adapt", ADAPTERS)
@pytest.mark.parametrize(
    ("vq", "message"),
    [
        (VQ(4, 16), "VQ needs channel_first=True, got False"),
        (GroupedVQ(4, 16, channel_first=True, quantizer="vq"), "one index per position, GroupedVQ gives 2"),
        (nn.Embedding(16, 4), "a quantizer of driftvq, got Embedding"),
    ],
)
def test_quantizers_that_cannot_serve_a_model_are_refused(adapt, vq, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapt(vq)


def test_the_number_of_codes_grows_with_the_codebook() -> None:
    quantizer = as_taming(VQ(4, 8, channel_first=True))
    quantizer(torch.randn(2, 4, 4, 4))
    quantizer.vq.grow_(32)
    quantizer.vq.set_codebook_(torch.randn(32, 4))
    quantizer(torch.randn(2, 4, 4, 4))
    assert quantizer.n_e == 32


def test_open_magvit2_gets_every_term_but_the_commitment() -> None:
    vq = VQ(8, 16, orthogonal_weight=10.0, channel_first=True)
    z = torch.randn(2, 8, 4, 4)
    terms = vq.details(z, freeze=True).terms
    (_, emb_loss, _), _ = as_open_magvit2(vq)(z)
    assert_close(emb_loss, terms.codebook + terms.orthogonality)
    assert float(terms.orthogonality.detach()) > 0
