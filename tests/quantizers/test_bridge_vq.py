import pytest
import torch

from driftvq import BridgeVQ


def by_hand(vq: BridgeVQ, group: int, heads: int) -> torch.Tensor:
    """The projector written out for one block, with softmax attention as its definition has it."""
    state = {name: tensor.detach() for name, tensor in vq.book.transform.state_dict().items()}
    base = vq.book.base.detach()
    codes, dim = base.shape
    filled = torch.cat([base, base.new_zeros(-codes % group, dim)])

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ state[f"{name}.weight"].t() + state[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(dim=1, keepdim=True)
        scaled = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    x = linear("compress", filled.reshape(-1, group * dim))
    q, k, v = linear("process.0.to_qkv", norm("process.0.norm1", x)).chunk(3, dim=1)
    width = q.shape[1] // heads
    mixed = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        mixed.append((q[:, part] @ k[:, part].t() / width**0.5).softmax(dim=1) @ v[:, part])
    x = x + linear("process.0.to_out", torch.cat(mixed, dim=1))
    hidden = torch.nn.functional.gelu(linear("process.0.ffn.fc1", norm("process.0.norm2", x)))
    x = x + linear("process.0.ffn.fc2", hidden)
    own = torch.stack([base[k] @ state["embed.weight"].t() + x[k // group] for k in range(codes)])
    return linear("recover", norm("norm", own))


def test_codebook_is_compressed_processed_and_recovered() -> None:
    torch.manual_seed(0)
    vq = BridgeVQ(dim=3, codebook_size=14, codes_per_token=4, width=8, heads=2, depth=1).double()
    torch.testing.assert_close(vq.codebook.detach(), by_hand(vq, group=4, heads=2))


def test_one_step_moves_codes_that_were_not_selected() -> None:
    torch.manual_seed(0)
    vq = BridgeVQ(dim=3, codebook_size=32, width=16)
    before = vq.codebook.detach().clone()
    optimizer = torch.optim.SGD(vq.parameters(), lr=1.0)
    vq(torch.randn(1, 3)).loss.backward()
    optimizer.step()
    assert ((vq.codebook - before).abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize(("size", "group"), [(64, 1), (1024, 4), (8192, 32), (300, 2)])
def test_groups_keep_the_tokens_few(size: int, group: int) -> None:
    assert BridgeVQ(dim=4, codebook_size=size, width=8).book.transform.group == group


def test_refuses_heads_that_do_not_divide_the_width_and_growth() -> None:
    with pytest.raises(ValueError, match="heads must divide width 8, got 3"):
        BridgeVQ(dim=4, codebook_size=16, width=8, heads=3)
    with pytest.raises(ValueError, match="cannot grow"):
        BridgeVQ(dim=4, codebook_size=16, width=8).grow_(32)
