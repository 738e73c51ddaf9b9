import subprocess
import sys

import pytest
import torch
import vector_quantize_pytorch as vqp
from diffusers import VQModel
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import driftvq
from driftvq import (
    EMAVQ,
    FSQ,
    LFQ,
    NSVQ,
    VQ,
    FactorizedVQ,
    GroupedVQ,
    GumbelVQ,
    ResidualVQ,
    SimVQ,
    TransVQ,
    as_taming,
    from_taming,
    from_vector_quantize_pytorch,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class TamingOracle(nn.Module):
    """taming's quantizer: nearest code by distance, straight-through, β on the encoder's term (``legacy=False``)."""

    def __init__(self, n_e, e_dim, beta):
        super().__init__()
        self.beta = beta
        self.embedding = nn.Embedding(n_e, e_dim)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1)
        flat = z.reshape(-1, z.shape[-1])
        indices = (flat[:, None] - self.embedding.weight).square().sum(dim=2).argmin(dim=1)
        z_q = self.embedding(indices).reshape(z.shape)
        loss = self.beta * (z_q.detach() - z).square().mean() + (z_q - z.detach()).square().mean()
        share = torch.bincount(indices, minlength=len(self.embedding.weight)) / len(indices)
        perplexity = torch.exp(-(share * torch.log(share + 1e-10)).sum())
        return (z + (z_q - z).detach()).permute(0, 3, 1, 2), loss, (perplexity, None, indices)

    def get_codebook_entry(self, indices, shape):
        z_q = self.embedding(indices)
        return z_q if shape is None else z_q.view(shape).permute(0, 3, 1, 2)


@pytest.fixture
def oracle():
    return TamingOracle(16, 4, beta=0.3)


@pytest.fixture
def adapter(oracle):
    return as_taming(from_taming(oracle.state_dict(), commitment_weight=0.3))


def test_as_taming_matches_taming(oracle, adapter):
    optimizer = torch.optim.SGD([*oracle.parameters(), *adapter.parameters()], lr=1.0)
    for _ in range(3):
        z = torch.randn(2, 4, 5, 6)
        z_ours, z_theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
        z_q, loss, (perplexity, one_hot, indices) = adapter(z_ours)
        z_q_theirs, loss_theirs, (perplexity_theirs, _, indices_theirs) = oracle(z_theirs)
        assert torch.equal(indices, indices_theirs)
        assert indices.dtype == torch.int64
        assert indices.shape == (60,)
        assert one_hot is None
        assert 1 < perplexity <= 16
        assert_close(perplexity, perplexity_theirs)
        assert_close(z_q, z_q_theirs)
        assert_close(loss, loss_theirs)
        optimizer.zero_grad()
        (z_q.square().mean() + loss).backward()
        (z_q_theirs.square().mean() + loss_theirs).backward()
        optimizer.step()
        assert_close(z_ours.grad, z_theirs.grad)
        assert_close(adapter.vq.book.codes, oracle.embedding.weight)


def test_get_codebook_entry_matches_taming(oracle, adapter):
    z = torch.randn(2, 4, 5, 6)
    z_q, _, (_, _, indices) = adapter(z)
    entry = adapter.get_codebook_entry(indices, (2, 5, 6, 4))
    assert_close(entry, z_q)
    assert_close(entry, oracle.get_codebook_entry(indices, (2, 5, 6, 4)))
    assert entry.is_contiguous()
    assert_close(adapter.get_codebook_entry(indices, None), oracle.get_codebook_entry(indices, None))
    image = indices.reshape(2, 5, 6)
    assert_close(adapter.get_codebook_entry(image, None), oracle.get_codebook_entry(image, None))
    assert_close(adapter.get_codebook_entry(image, (2, 5, 6, 4)), z_q)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (60, 4)])
def test_get_codebook_entry_refuses_other_layouts(adapter, shape):
    with pytest.raises(ValueError, match=r"shape must be \(b, h, w, c\) with c = 4"):
        adapter.get_codebook_entry(torch.zeros(60, dtype=torch.int64), shape)


def test_as_taming_attributes():
    vq = VQ(6, 16, 3, commitment_weight=0.4, channel_first=True)
    q = as_taming(vq)
    assert (q.n_e, q.e_dim, q.vq_embed_dim, q.beta) == (16, 6, 6, 0.4)
    vq.commitment_weight = 0.5
    assert q.beta == 0.5
    assert as_taming(FSQ(3, levels=(5, 5, 5), channel_first=True)).beta == 0


@pytest.mark.parametrize("cls", [VQ, EMAVQ, FactorizedVQ, SimVQ, TransVQ, NSVQ, GumbelVQ, LFQ, FSQ])
def test_as_taming_takes_every_quantizer_with_one_index(cls):
    q = as_taming(cls(6, 64, channel_first=True)).eval()
    z = torch.randn(2, 6, 3, 5)
    z_q, loss, (_, _, indices) = q(z)
    assert z_q.shape == z.shape
    assert loss.ndim == 0
    assert_close(q.get_codebook_entry(indices, (2, 3, 5, 6)), z_q)


@pytest.mark.parametrize(
    ("vq", "message"),
    [
        (VQ(4, 16), "VQ needs channel_first=True, got False"),
        (ResidualVQ(4, 16, channel_first=True, quantizer="vq"), "one index per position, ResidualVQ gives 4"),
        (GroupedVQ(4, 16, groups=2, channel_first=True, quantizer="vq"), "one index per position, GroupedVQ gives 2"),
    ],
)
def test_as_taming_refuses(vq, message):
    with pytest.raises(ValueError, match=message):
        as_taming(vq)


def test_as_taming_refuses_other_latents(adapter):
    with pytest.raises(ValueError, match=r"b c h w, got shape \(2, 4, 5\)"):
        adapter(torch.randn(2, 4, 5))


def tiny_model(**config):
    return VQModel(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=2,
        latent_channels=4,
        num_vq_embeddings=16,
        mid_block_add_attention=False,
        **config,
    )


def test_diffusers_model_gives_the_same_with_our_quantizer():
    model = tiny_model().eval()
    x = torch.randn(2, 3, 16, 16)
    latents = model.encode(x).latents
    theirs, quantized_theirs = model(x), model.quantize(latents)
    model.quantize = as_taming(from_taming(model.state_dict())).eval()
    ours, quantized = model(x), model.quantize(latents)
    assert torch.equal(quantized[2][2], quantized_theirs[2][2])
    assert len(quantized[2][2].unique()) > 1
    assert_close(ours.sample, theirs.sample)
    assert_close(model(x, return_dict=False)[0], theirs.sample)
    assert_close(ours.commit_loss, theirs.commit_loss)
    assert_close(model.decode(latents, force_not_quantize=False).sample, theirs.sample)
    assert_close(model.decode(quantized[0], force_not_quantize=True).sample, theirs.sample)


def test_diffusers_model_decodes_indices():
    model = tiny_model(lookup_from_codebook=True).eval()
    model.quantize = as_taming(EMAVQ(4, 16, channel_first=True)).eval()
    x = torch.randn(2, 3, 16, 16)
    latents = model.encode(x).latents
    indices = model.quantize(latents)[2][2]
    shape = (2, *latents.shape[2:], 4)
    decoded = model.decode(indices, force_not_quantize=True, shape=shape).sample
    assert_close(decoded, model(x).sample)


@pytest.mark.parametrize("estimator", ["straight_through", "rotation"])
def test_diffusers_model_trains(estimator):
    model = tiny_model(vq_embed_dim=6).train()
    model.quantize = as_taming(VQ(6, 16, 3, channel_first=True, estimator=estimator))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(2, 3, 16, 16)
    losses = []
    for _ in range(8):
        output = model(x)
        loss = (output.sample - x).square().mean() + output.commit_loss
        optimizer.zero_grad()
        loss.backward()
        without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert without == []
        assert model.encoder.conv_in.weight.grad.abs().max() > 0
        assert model.quantize.vq.book.codes.grad.abs().max() > 0
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_diffusers_state_dict_round_trip():
    first, second = tiny_model().eval(), tiny_model().eval()
    for model in (first, second):
        model.quantize = as_taming(EMAVQ(4, 16, channel_first=True)).eval()
    x = torch.randn(1, 3, 16, 16)
    assert (first(x).sample - second(x).sample).abs().max() > 1e-3
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x).sample, second(x).sample)


@pytest.mark.parametrize("prefix", ["", "quantize.", "first_stage_model.quantize."])
def test_from_taming(oracle, prefix):
    state = {f"{prefix}{key}": value for key, value in oracle.state_dict().items()}
    if prefix:
        state |= {"encoder.conv_in.weight": torch.randn(3), "position_embedding.weight": torch.randn(5, 5)}
    vq = from_taming(state, commitment_weight=0.1)
    assert isinstance(vq, VQ)
    assert (vq.dim, vq.codebook_size, vq.channel_first, vq.commitment_weight) == (4, 16, True, 0.1)
    assert torch.equal(vq.book.codes, oracle.embedding.weight)
    assert vq.book.codes.requires_grad
    assert vq.book.codes.data_ptr() != oracle.embedding.weight.data_ptr()


def test_from_taming_with_prefix(oracle):
    other = TamingOracle(8, 3, beta=0.3)
    state = {f"first.quantize.{key}": value for key, value in oracle.state_dict().items()}
    state |= {f"second.quantize.{key}": value for key, value in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"first\.quantize\.embedding\.weight.*second\.quantize\.embedding\.weight"):
        from_taming(state)
    assert torch.equal(from_taming(state, prefix="second.quantize.").book.codes, other.embedding.weight)


def test_loaded_codebook_survives_kmeans_init(oracle):
    vq = from_taming(oracle.state_dict(), kmeans_init=True)
    vq(torch.randn(4, 4, 5, 5))
    assert torch.equal(vq.book.codes, oracle.embedding.weight)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"one key that ends in 'embedding.weight', got \[\]"),
        ({"embed.weight": torch.zeros(4, 4)}, r"one key that ends in 'embedding.weight', got \[\]"),
        ({"q.embedding.weight": torch.zeros(4, 4), "q.used": torch.arange(2)}, r"unknown keys \['used'\]"),
    ],
)
def test_from_taming_refuses(state, message):
    with pytest.raises(ValueError, match=message):
        from_taming(state)


def assert_same_in_eval(theirs, ours, dim):
    theirs.eval()
    ours.eval()
    x = torch.randn(4, 50, dim)
    quantized, indices, _ = ours(x)
    quantized_theirs, indices_theirs, _ = theirs(x)
    assert torch.equal(indices, indices_theirs)
    assert len(indices.unique()) > 3
    assert_close(quantized, quantized_theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("codebook_dim", [None, 3])
@pytest.mark.parametrize(
    ("options", "cls"),
    [
        ({}, EMAVQ),
        ({"kmeans_init": True}, EMAVQ),
        ({"learnable_codebook": True, "ema_update": False}, VQ),
        ({"use_cosine_sim": True}, FactorizedVQ),
    ],
)
def test_from_vector_quantize_pytorch(options, cls, codebook_dim):
    theirs = vqp.VectorQuantize(6, 32, codebook_dim=codebook_dim, **options)
    for _ in range(3):
        theirs(torch.randn(4, 50, 6))
    told = {key: options[key] for key in ("learnable_codebook", "use_cosine_sim") if key in options}
    ours = from_vector_quantize_pytorch(theirs.state_dict(), commitment_weight=0.7, **told)
    assert type(ours) is cls
    assert (ours.dim, ours.codebook_size, ours.codebook_dim) == (6, 32, codebook_dim or 6)
    assert ours.commitment_weight == 0.7
    assert_same_in_eval(theirs, ours, 6)


def test_from_vector_quantize_pytorch_copies():
    theirs = vqp.VectorQuantize(6, 32)
    ours = from_vector_quantize_pytorch(theirs.state_dict(), decay=0.5)
    before = theirs.codebook.clone()
    ours(torch.randn(4, 50, 6))
    assert not torch.equal(ours.book.codes, before)
    assert torch.equal(theirs.codebook, before)


def test_from_vector_quantize_pytorch_images():
    theirs = vqp.VectorQuantize(6, 32, accept_image_fmap=True).eval()
    ours = from_vector_quantize_pytorch(theirs.state_dict(), channel_first=True).eval()
    x = torch.randn(2, 6, 5, 7)
    assert torch.equal(ours(x).indices, theirs(x)[1])
    assert_close(ours(x).quantized, theirs(x)[0])


@pytest.mark.parametrize("kmeans_init", [False, True])
def test_kmeans_start_goes_on_where_it_was(kmeans_init):
    theirs = vqp.VectorQuantize(4, 8, kmeans_init=True)
    x = torch.randn(4, 50, 4)
    waiting = from_vector_quantize_pytorch(theirs.state_dict(), kmeans_init=kmeans_init)
    waiting(x)
    assert waiting.book.codes.abs().max() > 0.5
    theirs(x)
    started = from_vector_quantize_pytorch(theirs.state_dict(), kmeans_init=kmeans_init, decay=1.0)
    assert started.start.done
    started(x)
    assert torch.equal(started.book.cluster_sum, theirs._codebook.embed_avg[0])


def test_from_sim_vq():
    theirs = vqp.SimVQ(6, 32)
    ours = from_vector_quantize_pytorch(theirs.state_dict(), commitment_weight=0.7)
    assert type(ours) is SimVQ
    assert ours.commitment_weight == 0.7
    assert_same_in_eval(theirs, ours, 6)


class Bridge(nn.Linear):
    def __init__(self):
        super().__init__(6, 6)


REFUSED = {
    "separate codebooks": (
        lambda: vqp.VectorQuantize(6, 32, heads=2, separate_codebook_per_head=True, codebook_dim=3),
        r"several codebooks cannot be loaded, got _codebook\.embed of shape \(2, 32, 3\)",
    ),
    "heads": (
        lambda: vqp.VectorQuantize(6, 32, heads=2, codebook_dim=4),
        r"several heads .*project_in\.weight.*\(8, 6\).*_codebook\.embed",
    ),
    "affine": (
        lambda: vqp.VectorQuantize(6, 32, affine_param=True),
        r"unknown keys .*_codebook\.codebook_mean.*_codebook\.codebook_variance",
    ),
    "layer norm": (
        lambda: vqp.VectorQuantize(6, 32, codebook_dim=3, layernorm_after_project_in=True),
        r"unknown keys .*project_in\.0\.weight.* missing keys .*project_in\.weight",
    ),
    "bridge": (
        lambda: vqp.VectorQuantize(6, 32, vq_bridge=Bridge()),
        r"unknown keys \['_codebook\.vq_bridge\.bias', '_codebook\.vq_bridge\.weight'\]",
    ),
    "residual": (lambda: vqp.ResidualVQ(dim=6, num_quantizers=2, codebook_size=8), r"unknown keys .*layers\.1\._code"),
    "SimVQ with an MLP": (
        lambda: vqp.SimVQ(6, 32, codebook_transform=nn.Sequential(nn.Linear(6, 6))),
        r"unknown keys .*code_transform\.0\.weight.* missing keys \['code_transform\.weight'\]",
    ),
    "SimVQ of another dimension": (
        lambda: vqp.SimVQ(6, 32, frozen_codebook_dim=4),
        r"code_transform\.weight must be square and fit frozen_codebook \(32, 4\), got \(6, 4\)",
    ),
    "nothing": (nn.Identity, r"missing keys .*_codebook\.embed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_from_vector_quantize_pytorch_refuses(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        from_vector_quantize_pytorch(make().state_dict())


def test_from_vector_quantize_pytorch_refuses_a_learnable_cosine_codebook():
    with pytest.raises(ValueError, match="learnable_codebook=True with use_cosine_sim=True"):
        from_vector_quantize_pytorch(
            vqp.VectorQuantize(6, 32).state_dict(), learnable_codebook=True, use_cosine_sim=True
        )


@pytest.mark.parametrize("cls", [VQ, EMAVQ, FactorizedVQ, SimVQ, TransVQ, NSVQ, GumbelVQ, LFQ, FSQ, ResidualVQ])
def test_safetensors_round_trip(cls, tmp_path):
    first, second = cls(6, 64), cls(6, 64)
    for _ in range(3):
        first(torch.randn(2, 100, 6))
    save_file(first.state_dict(), tmp_path / "vq.safetensors")
    second.load_state_dict(load_file(tmp_path / "vq.safetensors"))
    x = torch.randn(2, 30, 6)
    ours, loaded = first.eval()(x), second.eval()(x)
    assert torch.equal(ours.indices, loaded.indices)
    assert torch.equal(ours.quantized, loaded.quantized)
    assert torch.equal(ours.loss, loaded.loss)


def test_names_are_imported_on_first_use():
    code = (
        "import sys, driftvq\n"
        "assert 'torch' not in sys.modules\n"
        "driftvq.VQ\n"
        "assert 'driftvq.quantizers.adapters' not in sys.modules\n"
        "for name in driftvq.__all__: getattr(driftvq, name)\n"
        "assert driftvq.from_taming.__module__ == 'driftvq.quantizers.adapters'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'from_tamming'"):
        _ = driftvq.from_tamming
