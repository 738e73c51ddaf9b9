"""The networks P_φ of TransVQ and FVQ, by which all codes move together.

Shape suffixes: k codes, d dimensions of a code, w width of the network, t tokens, g numbers in a group of codes.
"""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional.blocks import Linear, linear


class LinearAttention(nn.Module):
    """Single-head linear attention over the codes, ``φ(Q) (φ(K)ᵀ V) / (φ(Q) Σφ(K) + ε)`` with ``φ(x) = elu(x) + 1``.

    Cost and memory grow with the number of codes, not with its square. Since everything is linear between the features
    and the output, values and output are mapped as a w × w matrix and not once per code.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.to_q, self.to_k, self.to_v, self.to_out = (Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x_kw: Tensor) -> Tensor:
        q_kw, key_kw = F.elu(self.to_q(x_kw)).add_(1), F.elu(self.to_k(x_kw)).add_(1)
        by = linear if self.training else F.linear
        context_ww = by(key_kw.t(), x_kw.t()) @ self.to_v.weight.t() @ self.to_out.weight.t()
        total_k1 = q_kw @ key_kw.sum(dim=0, keepdim=True).t() + self.eps
        return by(q_kw / total_k1, context_ww.t())


def feed_forward(width: int, hidden: int) -> nn.Sequential:
    """``fc2(gelu(fc1(x)))``."""
    return nn.Sequential(OrderedDict(fc1=Linear(width, hidden), gelu=nn.GELU(), fc2=Linear(hidden, width)))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual path."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.ffn = LinearAttention(width), feed_forward(width, hidden)

    def forward(self, x_kw: Tensor) -> Tensor:
        x_kw = x_kw + self.attn(self.norm1(x_kw))
        y_kw: Tensor = x_kw + self.ffn(self.norm2(x_kw))
        return y_kw


class CodeTokens(nn.Sequential):
    """The body of the paper's P_φ: each code a token, one block of linear attention and MLP, a last norm (Sec. 3.4).

    Maps codes ``(k, d)`` to ``(k, width)``; names and layout are those of the authors' code. The hidden width of the
    MLP is ``mlp_ratio`` times the width.
    """

    def __init__(self, dim: int, width: int, mlp_ratio: float) -> None:
        in_proj, blocks = Linear(dim, width, bias=False), nn.Sequential(Block(width, int(width * mlp_ratio)))
        super().__init__(OrderedDict(in_proj=in_proj, blocks=blocks, norm=nn.LayerNorm(width)))


class CodeTransformer(CodeTokens):
    """The paper's P_φ, ``C' = P_φ(C)``: :class:`CodeTokens`, projected back to codes."""

    def __init__(self, dim: int, width: int, mlp_ratio: float) -> None:
        super().__init__(dim, width, mlp_ratio)
        self.out_proj = Linear(width, dim, bias=False)


class PublishedTransformer(CodeTransformer):
    """The authors' published P_φ: :class:`CodeTransformer` with a learned vector per code, drawn from N(0, 1)."""

    def __init__(self, codebook_size: int, dim: int, width: int, mlp_ratio: float) -> None:
        super().__init__(dim, width, mlp_ratio)
        self.pos_emb = nn.Embedding(codebook_size, width)

    def forward(self, codes_kd: Tensor) -> Tensor:
        in_proj, blocks, norm, out_proj, _ = self
        moved_kd: Tensor = out_proj(norm(blocks(in_proj(codes_kd) + self.pos_emb.weight)))
        return moved_kd


class AttentionBlock(nn.Module):
    """Softmax attention with several heads and a feed-forward, each behind a norm and beside a residual path (ViT)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.to_out = Linear(width, 3 * width), Linear(width, width)
        self.ffn = feed_forward(width, hidden)

    def forward(self, x_tw: Tensor) -> Tensor:
        q, key, value = self.to_qkv(self.norm1(x_tw)).unflatten(1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        # Written out: torch's fused form cannot be mapped over by vmap.
        mixed_htw = (q @ key.transpose(1, 2) * q.shape[2] ** -0.5).softmax(dim=2) @ value
        x_tw = x_tw + self.to_out(mixed_htw.transpose(0, 1).flatten(1))
        y_tw: Tensor = x_tw + self.ffn(self.norm2(x_tw))
        return y_tw


class CodeBridge(nn.Module):
    """FVQ's projector: groups of codes are compressed to tokens, which attend to each other, and recovered.

    ``c'_k = R norm(E c_k + token of its group)``: every place of a group is recovered by one layer. With layers of
    its own each place would begin in a region of its own, and those that no latent is near would never be trained.
    Attention is over tokens, so its cost is set by their number and not by that of the codes. The last group is filled
    up with zeros; ``width`` is that of the tokens, ``depth`` the number of blocks.
    """

    def __init__(self, dim: int, codes_per_token: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.group = codes_per_token
        self.compress = Linear(codes_per_token * dim, width)
        self.process = nn.Sequential(*(AttentionBlock(width, heads, 4 * width) for _ in range(depth)))
        self.embed = Linear(dim, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.recover = Linear(width, dim)

    def forward(self, codes_kd: Tensor) -> Tensor:
        codes, dim = codes_kd.shape
        grouped_tg = F.pad(codes_kd, (0, 0, 0, -codes % self.group)).view(-1, self.group * dim)
        tokens_tw = self.process(self.compress(grouped_tg))
        own_kw = self.embed(codes_kd) + tokens_tw.repeat_interleave(self.group, dim=0)[:codes]
        recovered_kd: Tensor = self.recover(self.norm(own_kw))
        return recovered_kd


class Residual(nn.Module):
    """``C' = C + P_φ(C)``, where P_φ starts from zero: C' = C exactly before the first step."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        *_, last = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, codes_kd: Tensor) -> Tensor:
        moved_kd: Tensor = codes_kd + self.network(codes_kd)
        return moved_kd


class BoundedLayer(nn.Sequential):
    """``h(c) = tanh(c V + b)``: the hidden layer of an MLP, with features that differ from the first step on.

    V is drawn from N(0, 1/d) and b from N(0, 1), for standardised codes.
    """

    def __init__(self, dim: int, width: int) -> None:
        layer = Linear(dim, width)
        nn.init.normal_(layer.weight, std=dim**-0.5)
        nn.init.normal_(layer.bias)
        super().__init__(OrderedDict(linear=layer, tanh=nn.Tanh()))
