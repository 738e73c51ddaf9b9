"""Soft assignments over linear logits ``l_ik = z_i·w_k + b_k``, differentiated without storing latents × codes.

Squared distances are linear logits too: ``-|z - c_k|² = 2 z·c_k - |c_k|² - |z|²``, and a softmax ignores the ``|z|²``.

The noise is a function of a seed and a place: drawn again without keeping it, and on any device. In shapes, v are the
dimensions of a code.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from driftvq.functional.blocks import block_rows, highest, index_like, operator, product, row_blocks

LN_2 = math.log(2)  # logits are divided by it where powers of 2 take the place of exponentials, which cost more


def gumbel_softmax(
    z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, codebook_kv: Tensor, temperature: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """Straight-through Gumbel-softmax: a sampled code in the forward pass, the soft mixture's gradient in the backward.

    ``y_i = Σ_k softmax_k((l_ik + g_ik) / τ) c_k`` with Gumbel noise g, fixed by the int64 scalar ``seed``; the sample
    is ``argmax_k (l_ik + g_ik)``. Returns its indices ``(n,)``, and its codes ``(n, v)`` with the gradient of y.
    """
    z_nd, weight_kd, bias_k = z_nd.contiguous(), weight_kd.contiguous(), bias_k.contiguous()
    return _gumbel_op(z_nd, weight_kd, bias_k, codebook_kv.contiguous(), temperature, seed)


def _gumbel_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    z_nd, weight_kd, bias_k, codebook_kv, ctx.temperature, seed = inputs
    ctx.save_for_backward(z_nd, weight_kd, bias_k, codebook_kv, seed)


def _gumbel_backward(ctx, _, grad_nv):  # type: ignore[no-untyped-def]
    given = (*ctx.saved_tensors, grad_nv.contiguous(), ctx.temperature)
    return (*_gumbel_grad_op(*given), None, None)


@operator(
    "gumbel_softmax",
    lambda z_nd, _w, _b, codes_kv, *_: (index_like(z_nd), codes_kv.new_empty(len(z_nd), codes_kv.shape[1])),
    _gumbel_backward,
    _gumbel_setup,
)
def _gumbel_op(
    z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, codebook_kv: Tensor, temperature: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    indices_n = torch.empty(len(z_nd), dtype=torch.int64, device=z_nd.device)
    for rows, logits_bk in _noisy_logits(z_nd, weight_kd, bias_k, seed):
        highest(logits_bk, out=indices_n[rows])
    return indices_n, codebook_kv[indices_n]


def _empty(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(map(torch.empty_like, tensors))


@operator("gumbel_softmax_backward", lambda *given: _empty(*given[:4]))
def _gumbel_grad_op(
    z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, codebook_kv: Tensor, seed: Tensor, grad_nv: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads, codebook_grad_kv = _zeros(z_nd, weight_kd, bias_k), torch.zeros_like(codebook_kv)
    for rows, logits_bk in _noisy_logits(z_nd, weight_kd, bias_k, seed):
        p_bk = logits_bk.div_(tau).softmax(dim=1)
        codebook_grad_kv += product(grad_nv[rows].t(), p_bk.t()).t()
        towards_bk = product(grad_nv[rows], codebook_kv)
        towards_bk.sub_((p_bk * towards_bk).sum(dim=1, keepdim=True))
        _accumulate(grads, rows, towards_bk.mul_(p_bk).div_(tau), z_nd, weight_kd)
    return (*grads, codebook_grad_kv)


def soft_usage(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor]:
    """Mean assignment ``Σ_i share_i p_i``, ``(k,)``, and entropy ``Σ_i share_i H(p_i)`` of ``p_i = softmax_k(l_ik)``.

    The share of each latent, e.g. ``1/n`` for all, is not differentiated; entropies are in nats.
    """
    tensors = (z_nd, weight_kd, bias_k, share_n)
    if not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        # torch.func differentiates no operator of ours; here all of it is kept for the gradient.
        log_p_nk = (z_nd @ weight_kd.t() + bias_k).log_softmax(dim=1)
        p_nk = log_p_nk.exp()
        return share_n @ p_nk, -share_n @ (p_nk * log_p_nk).sum(dim=1)
    return _soft_usage_op(z_nd.contiguous(), weight_kd.contiguous(), bias_k.contiguous(), share_n)


def _soft_usage_backward(ctx, mean_grad_k, entropy_grad):  # type: ignore[no-untyped-def]
    given = (*ctx.saved_tensors, mean_grad_k.contiguous(), entropy_grad)
    return (*_soft_usage_grad_op(*given), None)


@operator("soft_usage", lambda z_nd, _, bias_k, *__: (*_empty(bias_k), z_nd.new_empty(())), _soft_usage_backward)
def _soft_usage_op(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor]:
    mean_k, entropy = torch.zeros_like(bias_k), z_nd.new_zeros(())
    for rows in row_blocks(len(z_nd), len(weight_kd), z_nd.device):
        log_p_bk = product(z_nd[rows], weight_kd, bias_k).log_softmax(dim=1)
        p_bk = log_p_bk.exp()
        mean_k.addmv_(p_bk.t(), share_n[rows])
        entropy -= share_n[rows].dot(log_p_bk.mul_(p_bk).sum(dim=1))
    return mean_k, entropy


@operator("soft_usage_backward", lambda *given: _empty(*given[:3]))
def _soft_usage_grad_op(
    z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, share_n: Tensor, mean_grad_k: Tensor, entropy_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _zeros(z_nd, weight_kd, bias_k)
    for rows in row_blocks(len(z_nd), len(weight_kd), z_nd.device):
        log_p_bk = product(z_nd[rows], weight_kd, bias_k).log_softmax(dim=1)
        p_bk = log_p_bk.exp()
        # d/dp of mean·grad + H·grad; the softmax's own derivative removes the mean.
        pull_bk = log_p_bk.mul_(-entropy_grad).add_(mean_grad_k)
        pull_bk.sub_((p_bk * pull_bk).sum(dim=1, keepdim=True))
        _accumulate(grads, rows, pull_bk.mul_(p_bk).mul_(share_n[rows, None]), z_nd, weight_kd)
    return grads


def entropies(p: Tensor) -> Tensor:
    """``-p log p``; not special.entr, whose slope at exactly 0 is infinite."""
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log())


def index_softmax(z_nd: Tensor, codebook_kd: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The code of the highest ``z·c_k``, with the gradient of the soft choice among all of them.

    ``y_i = Σ_k (onehot_ik + p_ik - sg p_ik) c_k`` with ``p_i = softmax_k(z_i·c_k)``: the selected code receives the
    gradient, and through p all latents and codes do. Returns indices ``(n,)``, codes y ``(n, d)``, and from the same
    pass what :func:`soft_usage` gives.
    """
    return _index_op(z_nd.contiguous(), codebook_kd.contiguous(), share_n)


def _index_backward(ctx, _, grad_nd, mean_grad_k, entropy_grad):  # type: ignore[no-untyped-def]
    given = (*ctx.saved_tensors, grad_nd.contiguous(), mean_grad_k.contiguous(), entropy_grad)
    return (*_index_grad_op(*given), None)


@operator(
    "index_softmax",
    lambda z_nd, codes_kd, _: (index_like(z_nd), *_empty(z_nd), z_nd.new_empty(len(codes_kd)), z_nd.new_empty(())),
    _index_backward,
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output[0]),
)
def _index_op(z_nd: Tensor, codebook_kd: Tensor, share_n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    indices_n = torch.empty(len(z_nd), dtype=torch.int64, device=z_nd.device)
    codes, mean_k, entropy = len(codebook_kd), codebook_kd.new_zeros(len(codebook_kd)), z_nd.new_zeros(())
    buffer_bk = z_nd.new_empty(min(len(z_nd), block_rows(codes, z_nd.device)), codes)
    for rows in row_blocks(len(z_nd), codes, z_nd.device):
        exponents_bk = product(z_nd[rows] / LN_2, codebook_kd)
        highest(exponents_bk, out=indices_n[rows])
        powers_bk = torch.exp2(_from_highest(exponents_bk), out=buffer_bk[: len(exponents_bk)])
        total_b = powers_bk.sum(dim=1)
        mean_k.addmv_(powers_bk.t(), share_n[rows] / total_b)
        # H = log Σ e^l - Σ p l, the logits counted from the highest one.
        entropy_b = total_b.log() - LN_2 * exponents_bk.mul_(powers_bk).sum(dim=1) / total_b
        entropy += share_n[rows].dot(entropy_b)
    return indices_n, codebook_kd[indices_n], mean_k, entropy


def _from_highest(exponents_bk: Tensor) -> Tensor:
    """Exponents of 2 in place as differences to the row's highest; those of numbers too small to matter are cut."""
    return exponents_bk.sub_(exponents_bk.amax(dim=1, keepdim=True)).clamp_(min=-100)


@operator("index_softmax_backward", lambda *given: _empty(*given[:2]))
def _index_grad_op(
    z_nd: Tensor, codes_kd: Tensor, share_n: Tensor, indices_n: Tensor, grad_nd: Tensor, mean_grad_k: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    # By l the slope of the mixture is g·c_k, that of the entropy -share·log p_k = -share·z·c_k + a constant, which the
    # softmax's own derivative removes, that of the mean share·grad_k: all of it is one product. The entropy's is h.
    pull_nv = torch.cat([torch.addcmul(grad_nd, z_nd, share_n[:, None] * h, value=-1), share_n[:, None]], dim=1)
    pulled_kv = torch.cat([codes_kd, mean_grad_k[:, None]], dim=1)
    z_grad_nd, codes_grad_dk = torch.empty_like(z_nd), codes_kd.new_zeros(codes_kd.shape[::-1])
    for rows in row_blocks(len(z_nd), len(codes_kd), z_nd.device):
        powers_bk = _from_highest(product(z_nd[rows] / LN_2, codes_kd)).exp2_()
        total_b1 = powers_bk.sum(dim=1, keepdim=True)
        slope_bk = product(pull_nv[rows], pulled_kv).mul_(powers_bk)
        slope_bk.addcmul_(powers_bk, slope_bk.sum(dim=1, keepdim=True) / total_b1, value=-1)  # times the total
        z_grad_nd[rows] = product(slope_bk, codes_kd.t()) / total_b1
        codes_grad_dk += product((z_nd[rows] / total_b1).t(), slope_bk.t())
    return z_grad_nd, codes_grad_dk.t().contiguous().index_add_(0, indices_n, grad_nd)


def _noisy_logits(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, seed: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Block by block, the rows of latents and their logits with noise ``(b, k)``."""
    seed = seed.to(z_nd.device)
    key_n, key_k = keys(len(z_nd), seed, ROW), keys(len(weight_kd), seed, COLUMN)
    for rows in row_blocks(len(z_nd), len(weight_kd), z_nd.device):
        yield rows, gumbel(key_n[rows], key_k, z_nd.dtype).add_(bias_k).addmm_(z_nd[rows], weight_kd.t())


def _zeros(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros_like(z_nd), torch.zeros_like(weight_kd), torch.zeros_like(bias_k)


def _accumulate(
    grads: tuple[Tensor, Tensor, Tensor], rows: slice, logit_grad_bk: Tensor, z_nd: Tensor, weight_kd: Tensor
) -> None:
    """Add one block's share of the gradients of latents, weight and bias."""
    z_grad_nd, weight_grad_kd, bias_grad_k = grads
    z_grad_nd[rows] = product(logit_grad_bk, weight_kd.t())
    weight_grad_kd += product(z_nd[rows].t(), logit_grad_bk.t()).t()
    bias_grad_k.add_(logit_grad_bk.sum(dim=0))


ROW, COLUMN, SEED, SPREAD = 0x2545F4914F6CDD1D, 0x6A09E667F3BCC909, 0x3C6EF372FE94F82B, 0x1F83D9ABFB41BD6B
"""Odd numbers without pattern, by which places and seeds are told apart."""

FIRST, SECOND = 0x2C1B3C6D, 0x297A2D39  # odd numbers of 30 bits, by whose products the bits of two keys are mixed


def keys(count: int, seed: Tensor, kind: int) -> Tensor:
    """Random bits of each :data:`ROW` or each :data:`COLUMN`, int32 ``(count,)``; the device keeps the int64 seed."""
    key = (torch.arange(1, count + 1, device=seed.device) * kind).add_(seed * SEED)
    for _ in range(2):
        key = (key ^ (key >> 31 & 0x1FFFFFFFF)) * SPREAD  # the mask: a shift repeats the sign
    return (key >> 32).to(torch.int32)


def uniform(row_b: Tensor, column_k: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers strictly between 0 and 1, one for each pair of keys ``(b, k)``."""
    bits_bk = (row_b[:, None] ^ column_k).mul_(FIRST)
    bits_bk = bits_bk.bitwise_xor_((bits_bk >> 15).bitwise_and_(0x1FFFF)).mul_(SECOND)
    edge = max(2.0**-33, torch.finfo(dtype).eps / 2)
    return bits_bk.to(dtype).mul_(2.0**-32).add_(0.5).clamp_(min=2.0**-33, max=1 - edge)


def gumbel(row_b: Tensor, column_k: Tensor, dtype: torch.dtype) -> Tensor:
    """Gumbel noise ``-log(-log u)``, ``(b, k)``."""
    return uniform(row_b, column_k, dtype).log_().neg_().log_().neg_()
