import torch

from driftvq import NSVQPaper, NSVQSequel


def test_loss_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    codes, z = torch.randn(16, 3), torch.randn(40, 3)
    losses = []
    for cls in (NSVQPaper, NSVQSequel):
        vq = cls(dim=3, codebook_size=16, bandwidth=0.5)
        vq.set_codebook_(codes)
        losses.append(vq(z).loss)
    assert torch.equal(*losses)


def test_lost_codes_move_to_latents_and_others_stay() -> None:
    torch.manual_seed(0)
    vq = NSVQSequel(dim=2, codebook_size=4, replace_after=3)
    vq.set_codebook_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1000.0, 0.0], [0.0, 1000.0]]))
    z = torch.tensor([[0.1, 0.0], [0.9, 0.1], [0.2, 0.2]])
    for step in range(4):
        before = vq.codebook.detach().clone()
        vq(z)
        moved = (vq.codebook != before).any(dim=1)
        assert moved.tolist() == [False, False, step == 3, step == 3]
    assert torch.cdist(vq.codebook.detach()[2:], z).min(dim=1).values.max() == 0
