"""How well a kernel predicts where an encoder's other latents go when it learns from one image (Eqs. 8 to 16).

Shape suffixes: m patches, d latent dimensions, p parameters of the encoder.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

PATCH = 8
LATENT = 4
PATCHES = 64
SMALL_STEP, LARGE_STEP = 0.001, 1.0
"""Learning rates of the one step of gradient descent whose effect is predicted."""


def photo_patches(count: int, seed: int) -> Tensor:
    """Random patches of scikit-learn's two photographs, ``(count, 3, 8, 8)`` in [-1, 1]."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(seed)
    photos = load_sample_images().images
    patches = []
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        top, left = (rng.integers(size - PATCH) for size in photo.shape[:2])
        patches.append(photo[top : top + PATCH, left : left + PATCH])
    return torch.from_numpy(np.stack(patches)).movedim(-1, 1).double() / 127.5 - 1


def make_autoencoder() -> tuple[nn.Sequential, nn.Module]:
    """A strided convolutional encoder to 4 numbers, and a linear decoder."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(),
        nn.Flatten(),
        nn.Linear(32 * (PATCH // 4) ** 2, LATENT),
    )
    decoder = nn.Sequential(nn.Linear(LATENT, 3 * PATCH**2), nn.Unflatten(1, (3, PATCH, PATCH)))
    return encoder.double(), decoder.double()


def encoder_drift(seed: int = 0, step: float = SMALL_STEP, train_steps: int = 500) -> dict[str, dict[str, float]]:
    """Correlations of true and predicted drift, before and after training: ``{moment: {prediction: correlation}}``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, decoder = make_autoencoder()
    patches = photo_patches(4096, seed)
    result = {"start": drift_correlations(encoder, decoder, patches[:PATCHES], step)}
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(train_steps):
        batch = patches[torch.randint(len(patches), (64,), generator=rng)]
        optimizer.zero_grad()
        torch.autograd.backward(F.mse_loss(decoder(encoder(batch)), batch))
        optimizer.step()
    result["trained"] = drift_correlations(encoder, decoder, patches[:PATCHES], step)
    return result


def drift_correlations(
    encoder: nn.Module, decoder: nn.Module, patches: Tensor, step: float = SMALL_STEP
) -> dict[str, float]:
    """Pearson correlation, over all i, all j ≠ i and all dimensions, of ΔE(x_j) with what kernels make of ΔE(x_i).

    ΔE(x_j) is measured: the encoder takes one step of gradient descent on the reconstruction of x_i alone.

    - ``tangent kernel``: ``K(x_j, x_i) K(x_i, x_i)⁻¹ ΔE(x_i)`` (Eq. 13).
    - ``Gaussian kernel``: ``exp(-|E(x_j) - E(x_i)|² / 2σ²) ΔE(x_i)`` (Eq. 15), 2σ² the median squared distance.
    - ``no kernel``: ``ΔE(x_i)``, as if all latents moved alike.
    - ``pull``: ``exp(-|E(x_j) - E(x_i)|² / 2σ²) (E(x_i) - E(x_j))``, the form NS-VQ uses (Eq. 16).
    """
    parameters = {name: parameter.detach() for name, parameter in encoder.named_parameters()}
    latents_md, jacobian_mdp = _latents_and_jacobian(encoder, parameters, patches)
    true_mmd = torch.stack(
        [_measured_drift(encoder, decoder, parameters, patches, i, step) for i in range(len(patches))]
    )
    own_md = true_mmd.diagonal(dim1=0, dim2=1).t()
    kernel_mmdd = torch.einsum("idp,jep->ijed", jacobian_mdp, jacobian_mdp)
    own_kernel_mdd = kernel_mmdd.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    source_md = torch.linalg.solve(own_kernel_mdd, own_md)
    sq_dist_mm = torch.cdist(latents_md, latents_md).square()
    others = ~torch.eye(len(patches), dtype=torch.bool)
    gaussian_mm1 = torch.exp(-sq_dist_mm / sq_dist_mm[others].median())[:, :, None]
    predictions = {
        "tangent kernel": torch.einsum("ijed,id->ije", kernel_mmdd, source_md),
        "Gaussian kernel": gaussian_mm1 * own_md[:, None],
        "no kernel": own_md[:, None].expand_as(true_mmd),
        "pull": gaussian_mm1 * (latents_md[:, None] - latents_md[None]),
    }
    return {name: _correlation(true_mmd[others], predicted[others]) for name, predicted in predictions.items()}


def _latents_and_jacobian(encoder: nn.Module, parameters: dict[str, Tensor], patches: Tensor) -> tuple[Tensor, Tensor]:
    def latent(values: dict[str, Tensor], patch: Tensor) -> Tensor:
        latents: Tensor = functional_call(encoder, values, (patch[None],))
        return latents[0]

    parts = vmap(jacrev(latent), in_dims=(None, 0))(parameters, patches)
    jacobian_mdp = torch.cat([part.flatten(start_dim=2) for part in parts.values()], dim=2)
    with torch.no_grad():
        return encoder(patches), jacobian_mdp


def _measured_drift(
    encoder: nn.Module, decoder: nn.Module, parameters: dict[str, Tensor], patches: Tensor, chosen: int, step: float
) -> Tensor:
    """ΔE of every patch after one step on the chosen one, ``(m, d)``."""
    one = patches[chosen : chosen + 1]
    values = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = F.mse_loss(decoder(functional_call(encoder, values, (one,))), one)
    gradients = torch.autograd.grad(loss, list(values.values()))
    with torch.no_grad():
        moved = {name: value - step * g for (name, value), g in zip(parameters.items(), gradients, strict=True)}
        drift: Tensor = functional_call(encoder, moved, (patches,)) - encoder(patches)
    return drift


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])
