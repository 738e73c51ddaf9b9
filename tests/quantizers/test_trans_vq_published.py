"""The authors' TransVQ, written again from its description, with their names, and ours with their weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq import TransVQPublished

K, D, WIDTH, HIDDEN = 40, 6, 256, 512


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (F.elu(to(x)) + 1 for to in (self.to_q, self.to_k))
        scores = torch.einsum("iw,jw->ij", q, k)
        return self.to_out(scores @ self.to_v(x) / (scores.sum(dim=1, keepdim=True) + 1e-6))


class FFN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.ffn = Attention(), FFN()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class CodeTransform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(D, WIDTH, bias=False)
        self.pos_emb = nn.Embedding(K, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.out_proj = nn.Linear(WIDTH, D, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.in_proj(codes) + self.pos_emb(torch.arange(K))
        return self.out_proj(self.norm(self.blocks[0](x)))


class Theirs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frozen_codebook", torch.randn(K, D) * D**-0.5)
        self.code_transform = CodeTransform()

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        codebook = self.code_transform(self.frozen_codebook)
        indices = (z.detach()[:, None] - codebook.detach()).square().sum(dim=2).argmin(dim=1)
        codes = codebook[indices]
        loss = F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())
        return z + (codes - z).detach(), indices, loss, codebook


def pair(dtype: torch.dtype) -> tuple[TransVQPublished, Theirs]:
    """Both with the same weights, none of them at a value that would hide a mistake."""
    torch.manual_seed(0)
    theirs = Theirs().to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.manual_seed(1)
    ours = TransVQPublished(dim=D, codebook_size=K).to(dtype)
    ours.load_published_(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_codebook_indices_loss_and_gradients_are_the_authors(dtype: torch.dtype, atol: float) -> None:
    ours, theirs = pair(dtype)
    z, gradient = torch.randn(2, 100, D, dtype=dtype, generator=torch.Generator().manual_seed(2))
    mine, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    quantized, indices, loss = ours(mine)
    expected, their_indices, their_loss, codebook = theirs(other)
    torch.testing.assert_close(ours.codebook, codebook, rtol=0, atol=atol)
    assert torch.equal(indices, their_indices)
    assert indices.unique().numel() > 10
    torch.testing.assert_close(quantized, expected, rtol=0, atol=atol)
    torch.testing.assert_close(loss, their_loss, rtol=0, atol=atol)
    ((quantized * gradient).mean() + loss).backward()
    ((expected * gradient).mean() + their_loss).backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=atol)
    found = dict(ours.book.transform.named_parameters())
    assert found.keys() == dict(theirs.code_transform.named_parameters()).keys()
    for name, parameter in theirs.code_transform.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=0, atol=atol, msg=name)


def test_trained_side_by_side_they_stay_the_same() -> None:
    ours, theirs = pair(torch.float64)
    before = ours.codebook.detach().clone()
    optimizers = [torch.optim.Adam(module.parameters(), lr=1e-3) for module in (ours, theirs)]
    for step in range(10):
        z = torch.randn(50, D, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for optimizer, loss in zip(optimizers, (ours(z).loss, theirs(z)[2]), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.testing.assert_close(ours.codebook, theirs(z)[3], rtol=0, atol=1e-8)
    assert (ours.codebook - before).abs().max() > 0.01


def test_weights_are_found_in_a_whole_model() -> None:
    ours, theirs = pair(torch.float32)
    state = {f"model.quantize.{name}": tensor for name, tensor in theirs.state_dict().items()}
    fresh = TransVQPublished(dim=D, codebook_size=K)
    fresh.load_published_({**state, "model.encoder.weight": torch.zeros(3), "my_frozen_codebook": torch.zeros(1)})
    assert torch.equal(fresh.codebook, ours.codebook)


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    state = {**Theirs().state_dict(), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            changed(code_transform__norm__weight=None),
            r"lacks 1 tensors? of TransVQ, the first 'code_transform.norm.weight'",
        ),
        (
            changed(code_transform__norm__bias=None, code_transform__normm__bias=torch.zeros(WIDTH)),
            r"lacks 1 tensors? of TransVQ, the first 'code_transform.norm.bias'",
        ),
        ({}, "lacks 18 tensors of TransVQ, the first 'frozen_codebook'"),
        (changed(frozen_codebook=torch.zeros(K, D + 1)), r"has shape \(40, 7\), expected \(40, 6\): use the dim"),
    ],
    ids=["missing", "misspelt", "nothing", "shape"],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(state: dict[str, Tensor], message: str) -> None:
    vq = TransVQPublished(dim=D, codebook_size=K)
    before = vq.codebook.detach().clone()
    with pytest.raises(ValueError, match=message):
        vq.load_published_(state)
    assert torch.equal(vq.codebook, before)


def test_starts_with_codes_of_the_authors_spread() -> None:
    """0.58 at 16 dimensions, as measured on their code."""
    torch.manual_seed(0)
    vq = TransVQPublished(dim=16, codebook_size=1024)
    assert vq.start.done
    assert vq.codebook.std().item() == pytest.approx(0.58, abs=0.03)
    assert vq.book.base.std().item() == pytest.approx(0.25, rel=0.05)


def test_indices_look_up_the_whole_transformed_codebook() -> None:
    torch.manual_seed(0)
    vq = TransVQPublished(dim=D, codebook_size=K).eval()
    quantized, indices, _ = vq(torch.randn(2, 5, D))
    assert torch.equal(vq.indices_to_codes(indices[:1, :2]), quantized[:1, :2])
    attention = vq.book.transform.blocks[0].attn
    tokens = vq.book.transform.in_proj(vq.book.base) + vq.book.transform.pos_emb.weight
    assert not torch.allclose(attention(tokens[:3]), attention(tokens)[:3], atol=1e-4)
