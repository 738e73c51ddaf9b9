"""The paper's theory as experiments: each claim a function that returns the numbers to judge it by.

``python benchmarks/theory.py frozen`` (or ``drift``, ``one_dimension``, ``encoder``) prints them.

Shapes: s seeds side by side, k codes, n points of a cloud, m patches, d latent dimensions, p parameters of an encoder.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from driftvq.quantizers import SimVQ, TransVQPaper
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.toys.clouds import POINTS, make_cloud
from driftvq.toys.rules import winners
from driftvq.toys.trajectories import kmeans_optimum, measure, run_demos

Array = NDArray[np.float64]
StepSize = Callable[[int], float]

CHECKPOINTS = (1_000, 10_000, 100_000)
SPEEDS = (0.01, 0.03, 0.1, 0.3)
BATCH_SIZES = (10, 30, 100, 300)
TIME_CONSTANTS = 5
"""How long the drift is followed, in 1/speed steps: under 1 % of the way is left."""


def robbins_monro(step: int) -> float:
    """``η_t = ½ (1 + t/30)^-¾``: its sum diverges, the sum of its squares does not."""
    return 0.5 * float((1 + step / 30) ** -0.75)


def constant(step: int) -> float:
    """``η_t = 0.1``."""
    return 0.1


class Convergence(NamedTuple):
    """Online VQ on a frozen cloud, at each checkpoint ``(t, s)``.

    ``gap``: root mean square distance of the codes to the means of their cells, over that of the points to their codes:
    0 at a k-means fixed point. ``excess``: distortion over the one that Lloyd's algorithm reaches from there, less 1.
    """

    gap: Array
    excess: Array


def online_vq(
    step_size: StepSize, seeds: Sequence[int] = range(5), checkpoints: Sequence[int] = CHECKPOINTS
) -> Convergence:
    """Eqs. A4 and A5: one point at a time moves its winner, ``c_w += η_t (x - c_w)``, on a cloud that stands still."""
    clouds = [make_cloud("translation", seed) for seed in seeds]
    points = np.stack([cloud.initial for cloud in clouds])
    codes = np.stack([cloud.codebook for cloud in clouds])
    draws = np.stack([np.random.default_rng(seed).integers(POINTS, size=max(checkpoints)) for seed in seeds])
    run = np.arange(len(clouds))
    gaps, excesses = [], []
    for step, drawn in enumerate(draws.T):
        pull = points[run, drawn][:, None] - codes
        winner = np.einsum("skd,skd->sk", pull, pull).argmin(axis=1)
        codes[run, winner] += step_size(step) * pull[run, winner]
        if step + 1 in checkpoints:
            gap, excess = zip(*(fixed_point_gap(c, p) for c, p in zip(codes, points, strict=True)), strict=True)
            gaps.append(gap)
            excesses.append(excess)
    return Convergence(np.array(gaps), np.array(excesses))


def fixed_point_gap(codes: Array, points: Array) -> tuple[float, float]:
    """How far codes are from a k-means fixed point: see :class:`Convergence`."""
    _, distortion = measure(codes, points)
    means, count = cell_means(codes, points)
    moved = (np.square(means - codes).sum(axis=1) * count).sum() / len(points)
    settled = codes
    for _ in range(100):
        settled = cell_means(settled, points)[0]
    return math.sqrt(moved / distortion), distortion / measure(settled, points)[1] - 1


def cell_means(codes: Array, points: Array) -> tuple[Array, Array]:
    """The mean of every Voronoi cell and its number of points; an empty cell keeps its code."""
    one_hot = winners(codes, points)[:, None] == np.arange(len(codes))
    count = one_hot.sum(axis=0).astype(np.float64)
    means = (one_hot.T @ points) / np.maximum(count, 1)[:, None]
    return np.where(count[:, None] > 0, means, codes), count


def usage_map(
    method: str,
    speeds: Sequence[float] = SPEEDS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seeds: Sequence[int] = range(3),
) -> Array:
    """Usage after the translation, mean over the seeds, ``(speeds, batch sizes)``."""
    result = np.zeros((len(speeds), len(batch_sizes)))
    for row, speed in enumerate(speeds):
        for column, batch_size in enumerate(batch_sizes):
            steps = TIME_CONSTANTS / speed
            epochs = math.ceil(steps * batch_size / POINTS)
            runs = [("translation", seed) for seed in seeds]
            trajectories = run_demos(runs, method, batch_size=batch_size, epochs=epochs, speed=speed)
            result[row, column] = np.mean([trajectory.usage[-1] for trajectory in trajectories])
    return result


class OneDimension(NamedTuple):
    """Distortion over the k-means optimum on points of a line: reached by training, and the best ``C' = wC`` can be."""

    sim_vq: float
    best_linear: float
    trans_vq: float


def one_dimension(seed: int = 0, codes: int = 8, rounds: int = 6) -> OneDimension:
    """SimVQ and TransVQ from the same frozen Gaussian codes on 500 points of N(2, 1), trained until they stand still.

    The loss is the library's own, on all points at once, and L-BFGS minimises it: thousands of steps of Adam did not
    bring TransVQ to a standstill.
    """
    rng = np.random.default_rng(seed)
    points, base = rng.normal(2.0, 1.0, (500, 1)), rng.standard_normal((codes, 1))
    _, optimum = kmeans_optimum(points, codes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sim_vq = SimVQ(dim=1, codebook_size=codes)
        trans_vq = TransVQPaper(dim=1, codebook_size=codes, transform="mlp", width=32, residual=True)
    best = min(_distortion(scale * base, points) for scale in np.linspace(-20, 20, 4001))
    reached = [_distortion(_trained(model, base, points, rounds), points) for model in (sim_vq, trans_vq)]
    return OneDimension(reached[0] / optimum, best / optimum, reached[1] / optimum)


def _trained(quantizer: CodebookQuantizer, base: Array, points: Array, rounds: int) -> Array:
    """The codebook after rounds of L-BFGS; each forgets the curvature, which the changing cells make stale."""
    quantizer.double().set_codebook_(torch.from_numpy(base))
    latents = torch.from_numpy(points)
    parameters = list(quantizer.parameters())

    def loss() -> float:
        for parameter in parameters:
            parameter.grad = None
        value = quantizer(latents).loss
        value.backward()
        return float(value.detach())

    for _ in range(rounds):
        optimizer: Any = torch.optim.LBFGS(
            parameters,
            max_iter=200,
            history_size=20,
            tolerance_grad=1e-12,
            tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(loss)
    codebook: Array = quantizer.codebook.detach().numpy()
    return codebook


def _distortion(codes: Array, points: Array) -> float:
    return float(np.square(points - codes.T).min(axis=1).mean())


def report_frozen() -> str:
    """Claims 1 and 2."""
    lines = ["| step size | steps | gap to the cell means | excess distortion |", "|---|---|---|---|"]
    for name, step_size in (("Robbins-Monro", robbins_monro), ("constant 0.1", constant)):
        result = online_vq(step_size)
        for steps, gap, excess in zip(CHECKPOINTS, result.gap, result.excess, strict=True):
            lines.append(f"| {name} | {steps} | {gap.mean():.4f} ± {gap.std():.4f} | {excess.mean():.2%} |")
    return "\n".join(lines)


def report_drift() -> str:
    """Claims 3 and 4."""
    parts = []
    for method in ("vanilla", "ns_vq_toy", "trans_vq_toy"):
        header = f"| {method}: speed | " + " | ".join(f"batch {size}" for size in BATCH_SIZES) + " |"
        rows = [
            f"| {speed} | " + " | ".join(f"{share:.2f}" for share in shares) + " |"
            for speed, shares in zip(SPEEDS, usage_map(method), strict=True)
        ]
        parts.append("\n".join([header, "|---" * (len(BATCH_SIZES) + 1) + "|", *rows]))
    return "\n\n".join(parts)


def report_one_dimension() -> str:
    """Claim 5."""
    results = np.array([one_dimension(seed) for seed in range(5)])
    lines = ["| codebook | distortion ÷ k-means |", "|---|---|"]
    names = ("SimVQ, trained", "best w of C' = wC", "TransVQ, trained")
    for name, values in zip(names, results.T, strict=True):
        lines.append(f"| {name} | {values.mean():.3f} ± {values.std():.3f} |")
    return "\n".join(lines)


def report_encoder() -> str:
    """Claim 6."""
    lines = []
    for step in (SMALL_STEP, LARGE_STEP):
        lines += [f"| step {step}: prediction from ΔE(x_i) | untrained encoder | trained encoder |", "|---|---|---|"]
        results = [encoder_drift(seed, step) for seed in range(3)]
        for name in results[0]["start"]:
            cells = [np.array([result[moment][name] for result in results]) for moment in ("start", "trained")]
            lines.append(f"| {name} | " + " | ".join(f"{cell.mean():.2f} ± {cell.std():.2f}" for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines[:-1])


REPORTS = {
    "frozen": report_frozen,
    "drift": report_drift,
    "one_dimension": report_one_dimension,
    "encoder": report_encoder,
}

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check a claim of the theory by experiment.")
    parser.add_argument("claim", choices=REPORTS)
    sys.stdout.write(REPORTS[parser.parse_args().claim]() + "\n")
