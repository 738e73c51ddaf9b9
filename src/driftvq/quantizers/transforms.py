"""The maps P_φ by which TransVQ moves a whole codebook.

Shape suffixes: k codes, d dimensions of a code, w width of the model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.quantizers.rowwise import map_rows


class LinearAttention(nn.Module):
    """Single-head linear attention over the codes, ``φ(Q) (φ(K)ᵀ V) / (φ(Q) Σφ(K))`` with ``φ(x) = elu(x) + 1``.

    Cost and memory grow with the number of codes, not with its square. Since everything is linear between the features
    and the output, values and output are mapped as a w × w matrix and not once per code.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, width, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x_kw: Tensor) -> Tensor:
        q_kw, key_kw = F.elu(self.to_q(x_kw)).add_(1), F.elu(self.to_k(x_kw)).add_(1)
        context_ww = (key_kw.t() @ x_kw) @ self.to_v.weight.t() @ self.out.weight.t()
        total_k1 = q_kw @ key_kw.sum(dim=0, keepdim=True).t()
        return torch.addmm(self.out.bias, q_kw / total_k1, context_ww)


class AttentionTransform(nn.Module):
    """The paper's P_φ: each code a token, one linear-attention layer, then an MLP (Sec. 3.4).

    Args:
        dim: dimension of a code.
        width: model width.
        mlp_ratio: hidden width of the MLP over the model width.
        residual: add the result to C, starting from zero, so that C' = C exactly before the first step.
        code_embedding: with a number of codes, add a learned vector per code (the published code's positional one).
    """

    def __init__(
        self, dim: int, width: int = 256, mlp_ratio: float = 2, residual: bool = True, code_embedding: int | None = None
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.residual = residual
        self.embed = nn.Linear(dim, width)
        self.code_embedding = None
        if code_embedding is not None:
            self.code_embedding = nn.Parameter(torch.randn(code_embedding, width) * 0.02)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = LinearAttention(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, hidden)
        self.mlp_out = nn.Linear(hidden, width)
        self.out = nn.Linear(width, dim)
        if residual:
            zero_(self.out)

    def forward(self, codebook_kd: Tensor) -> Tensor:
        x_kw = self.embed(codebook_kd)
        if self.code_embedding is not None:
            x_kw = x_kw + self.code_embedding
        x_kw = x_kw + self.attention(self.attention_norm(x_kw))
        hidden_kh = F.gelu(self.mlp_in(self.mlp_norm(x_kw)))
        # out(x + mlp_out(hidden)), with the two linear maps of the hidden layer merged into one h × d matrix.
        merged_hd = self.mlp_out.weight.t() @ self.out.weight.t()
        offset_d = torch.addmv(self.out.bias, self.out.weight, self.mlp_out.bias)
        moved_kd: Tensor = torch.addmm(F.linear(x_kw, self.out.weight, offset_d), hidden_kh, merged_hd)
        return codebook_kd + moved_kd if self.residual else moved_kd


class MLPTransform(nn.Module):
    """The cheaper P_φ of Sec. 6: a two-layer MLP on each code by itself.

    Args:
        dim: dimension of a code.
        hidden: hidden width.
        residual: add the result to C, starting from zero, so that C' = C exactly before the first step.
    """

    def __init__(self, dim: int, hidden: int = 512, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.hidden = nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, dim)
        if residual:
            zero_(self.out)

    def forward(self, codebook_kd: Tensor) -> Tensor:
        moved_kd = map_rows(self._moved, self.parameters(), codebook_kd, self.hidden.out_features)
        return codebook_kd + moved_kd if self.residual else moved_kd

    def _moved(self, codebook_kd: Tensor) -> Tensor:
        moved_kd: Tensor = self.out(F.gelu(self.hidden(codebook_kd)))
        return moved_kd


def zero_(layer: nn.Linear) -> None:
    """Make a layer's output zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
