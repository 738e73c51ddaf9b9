import copy
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from vector_quantize_pytorch import VectorQuantize

from driftvq import EMAVQ, FSQ, LFQ, NSVQ, QUANTIZERS, VQ, GroupedVQ, GumbelVQ, ResidualVQ, TransVQ, make_quantizer
from driftvq.drift_meter import DriftMeter, DriftReading
from driftvq.drift_meter.meter import affine_part

MOVEMENT = [
    "latents_moved",
    "latents_moved_by_distance",
    "translation_share",
    "affine_share",
    "cells_changed",
    "cells_changed_by_latents",
    "cells_changed_by_codes",
    "codes_moved_selected",
    "codes_moved_unselected",
    "follow_selected",
    "follow_unselected",
]


class Toy:
    """Latents and codes that a test moves by hand."""

    def __init__(self, n=600, k=20, d=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.latents = torch.randn(n, d, generator=generator)
        # Half of the codes lie among the latents, the others where the latents do not come.
        self.codes = torch.randn(k, d, generator=generator)
        self.codes[k // 2 :] += 12
        self.meter = DriftMeter(lambda probe: self.latents, None, torch.zeros(1), codebook=lambda: self.codes)

    def moved(self, latents=None, codes=None):
        self.meter.measure()
        self.latents = self.latents if latents is None else latents
        self.codes = self.codes if codes is None else codes
        return self.meter.measure()


def winners(z, c):
    return ((z[:, None] - c[None]) ** 2).sum(axis=2).argmin(axis=1)


def oracle(z, z2, c, c2):
    """Every value of a reading in plain NumPy, with dense distances and lstsq."""
    n, d = z.shape
    w, w2 = winners(z, c), winners(z2, c2)
    spread, spread2 = (np.sqrt(((a - a.mean(axis=0)) ** 2).sum(axis=1).mean()) for a in (z, z2))
    moved = z2 - z
    total = (moved**2).sum(axis=1).mean()
    design = np.column_stack([np.ones(n), z])
    solution = np.linalg.lstsq(design, moved, rcond=None)[0]
    residual = ((moved - design @ solution) ** 2).sum(axis=1)
    noise = residual.sum() / (n - d - 1) / n
    translation = (moved.mean(axis=0) ** 2).sum()
    explained = total - residual.mean() - translation
    shares = max(translation - noise, 0) / total, max(explained - noise * d, 0) / total
    counts = np.bincount(w2, minlength=len(c2))
    p = counts[counts > 0] / n
    away, away2 = np.linalg.norm(z - c[w], axis=1), np.linalg.norm(z2 - c2[w2], axis=1)
    selected = np.isin(np.arange(len(c)), w)
    cells = w[((c[:, None] - z[None]) ** 2).sum(axis=2).argmin(axis=1)]
    field, codes = np.stack([moved[w == cell].mean(axis=0) for cell in cells]), c2 - c
    return {
        "latents_moved": np.linalg.norm(moved, axis=1).mean() / spread,
        "latents_moved_by_distance": np.linalg.norm(moved, axis=1).mean() / away.mean(),
        "translation_share": shares[0],
        "affine_share": sum(shares),
        "cells_changed": (w != w2).mean(),
        "cells_changed_by_latents": (winners(z2, c) != w).mean(),
        "cells_changed_by_codes": (winners(z, c2) != w).mean(),
        "codes_moved_selected": np.linalg.norm(codes[selected], axis=1).mean() / spread,
        "codes_moved_unselected": np.linalg.norm(codes[~selected], axis=1).mean() / spread,
        "follow_selected": (field[selected] * codes[selected]).sum() / (field[selected] ** 2).sum(),
        "follow_unselected": (field[~selected] * codes[~selected]).sum() / (field[~selected] ** 2).sum(),
        "latent_spread": spread2,
        "winning_distance": away2.mean(),
        "quantization_error": (away2**2).mean() / spread2**2,
        "usage": (counts > 0).mean(),
        "usage_expected": 1 - (1 - 1 / len(c)) ** n,
        "perplexity": math.exp(-(p * np.log(p)).sum()),
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_value_equals_numpy(seed):
    toy = Toy(seed=seed)
    generator = torch.Generator().manual_seed(100 + seed)
    matrix = torch.eye(3) + 0.4 * torch.randn(3, 3, generator=generator)
    z, c = toy.latents, toy.codes
    z2 = z @ matrix + 1 + 0.02 * torch.randn(z.shape, generator=generator)
    c2 = c + 0.5 * torch.randn(c.shape, generator=generator)
    reading = toy.moved(z2, c2).to_dict()
    expected = oracle(*(t.double().numpy() for t in (z, z2, c, c2)))
    known = {name: value for name, value in reading.items() if not math.isnan(value)}
    assert known.keys() == expected.keys()
    assert known == pytest.approx(expected, rel=1e-5)


def test_translation_with_frozen_codes_leaves_them_behind():
    toy = Toy()
    reading = toy.moved(latents=toy.latents + torch.tensor([0.5, 0.0, 0.0]))
    assert reading.follow_selected == reading.follow_unselected == 0
    assert reading.codes_moved_selected == reading.codes_moved_unselected == 0
    assert reading.translation_share == pytest.approx(1)
    assert reading.affine_share == pytest.approx(1)
    assert reading.latents_moved * reading.latent_spread == pytest.approx(0.5, rel=1e-5)
    assert reading.cells_changed == reading.cells_changed_by_latents > 0.1
    assert reading.cells_changed_by_codes == 0


def test_codes_that_move_along_follow_fully_and_no_cell_changes():
    toy, shift = Toy(), torch.tensor([0.5, -0.25, 1.0])
    reading = toy.moved(toy.latents + shift, toy.codes + shift)
    assert reading.follow_selected == pytest.approx(1, abs=1e-5)
    assert reading.follow_unselected == pytest.approx(1, abs=1e-5)
    assert reading.cells_changed == 0
    assert reading.cells_changed_by_latents > 0.1
    assert reading.cells_changed_by_codes > 0.1
    assert reading.codes_moved_unselected == pytest.approx(reading.latents_moved, rel=1e-5)


def test_winners_that_follow_leave_the_others_behind():
    """What the paper says of vanilla VQ: only the codes that were selected move."""
    toy, shift = Toy(), torch.tensor([0.5, 0.0, 0.0])
    selected = torch.zeros(20, dtype=torch.bool)
    selected[torch.from_numpy(winners(toy.latents.numpy(), toy.codes.numpy()))] = True
    reading = toy.moved(toy.latents + shift, toy.codes + shift * selected[:, None])
    assert reading.follow_selected == pytest.approx(1, abs=1e-5)
    assert reading.follow_unselected == 0


def test_expansion_is_affine_and_codes_may_follow_it():
    toy = Toy(n=2000, k=200)
    toy.codes = toy.latents[:200].clone()
    matrix = torch.tensor([[1.5, 0.2, 0.0], [0.0, 0.8, 0.0], [0.3, 0.0, 1.1]])
    reading = toy.moved(toy.latents @ matrix, toy.codes @ matrix)
    assert reading.translation_share < 0.05
    assert reading.affine_share == pytest.approx(1, abs=1e-5)
    assert reading.follow_selected == pytest.approx(1, abs=0.1)


def test_codes_off_the_set_of_the_latents_follow_too():
    """Latents on a plane that stretches; codes beside it move along as the nearest latents do."""
    toy = Toy(n=2000, k=100, d=6)
    toy.latents[:, 2:] *= 1e-3
    toy.codes = toy.latents[:100].clone()
    toy.codes[:, 2:] += 0.2 * torch.randn(100, 4, generator=torch.Generator().manual_seed(1))
    stretch = torch.tensor([1.5, 1.2, 3.0, 3.0, 3.0, 3.0])
    along = torch.where(torch.arange(6) < 2, stretch, 1.0)
    reading = toy.moved(toy.latents * stretch, toy.codes * along)
    assert reading.follow_selected == pytest.approx(1, abs=0.1)


def test_noise_is_neither_translation_nor_affine_and_cannot_be_followed():
    toy = Toy(n=4000)
    generator = torch.Generator().manual_seed(5)
    reading = toy.moved(latents=toy.latents + 0.3 * torch.randn(4000, 3, generator=generator))
    assert reading.affine_share < 0.01
    assert reading.cells_changed_by_latents == reading.cells_changed


def test_cells_that_change_by_codes_alone():
    toy = Toy()
    swapped = toy.codes.clone()
    swapped[[0, 1]] = toy.codes[[1, 0]]
    share = np.isin(winners(toy.latents.numpy(), toy.codes.numpy()), [0, 1]).mean()
    reading = toy.moved(codes=swapped)
    assert reading.cells_changed == reading.cells_changed_by_codes == share > 0
    assert reading.cells_changed_by_latents == 0
    assert math.isnan(reading.follow_selected)
    assert reading.latents_moved == 0


def test_the_first_reading_says_only_what_is():
    reading = Toy().meter.measure()
    assert all(math.isnan(getattr(reading, name)) for name in MOVEMENT)
    assert 0 < reading.quantization_error < 1
    assert 0 < reading.usage <= 0.5


def test_readings_are_frozen_floats():
    reading = Toy().moved()
    assert all(type(value) is float for value in reading.to_dict().values())
    with pytest.raises(AttributeError):
        reading.usage = 1.0


def test_cosine_ignores_lengths():
    generator = torch.Generator().manual_seed(0)
    latents, codes = torch.randn(300, 4, generator=generator), torch.randn(8, 4, generator=generator)
    scale = torch.rand(300, 1, generator=generator) + 0.5
    for metric, changes in (("cosine", False), ("l2", True)):
        box = [latents]
        meter = DriftMeter(lambda probe, box=box: box[0], None, codes, codebook=codes, metric=metric)
        meter.measure()
        box[0] = latents * scale * 3
        assert (meter.measure().cells_changed > 0) == changes


def encoder_and_probe(dim=8, seed=0):
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        nn.Conv2d(3, dim, 4, 2, 1), nn.BatchNorm2d(dim), nn.Dropout(0.1), nn.Conv2d(dim, dim, 3, 1, 1)
    )
    return encoder, torch.randn(4, 3, 16, 16)


def train(encoder, vq, steps, seed=1):
    parameters = [*encoder.parameters(), *(p for p in vq.parameters() if p.requires_grad)]
    optimizer, generator = torch.optim.Adam(parameters, 1e-2), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        quantized, _, loss = vq(encoder(torch.randn(8, 3, 16, 16, generator=generator)))
        optimizer.zero_grad()
        ((quantized - 1).square().mean() + loss.sum()).backward()
        optimizer.step()


OPTIONS = {"codebook_size": 64, "channel_first": True}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_works_with_every_quantizer_and_says_what_it_measures(name):
    encoder, probe = encoder_and_probe()
    vq = make_quantizer(name, dim=8, **OPTIONS)
    meter = DriftMeter(encoder, vq, probe)
    train(encoder, vq, 3)
    meter.measure()
    train(encoder, vq, 3)
    reading = meter.measure()
    assert reading.interval == 3
    assert reading.latents_moved > 0
    assert 0 <= reading.cells_changed <= 1
    assert 0 < reading.usage <= 1
    assert 0 <= reading.recent_usage <= 1
    assert 0 <= reading.age_median <= reading.age_p90 <= reading.age_max <= 6
    by_distance = name not in ("bsq", "fsq", "gumbel_vq", "ibq", "lfq")
    assert math.isnan(reading.follow_selected) != by_distance
    assert ("not how they follow" in meter.measures) != by_distance
    assert ("the first" in meter.measures) == (name in ("residual_vq", "grouped_vq", "multi_scale_vq"))


@pytest.mark.parametrize("make", [VQ, EMAVQ, NSVQ, TransVQ, FSQ, LFQ, GumbelVQ, ResidualVQ, GroupedVQ])
def test_winners_are_those_of_the_quantizer(make):
    encoder, probe = encoder_and_probe()
    vq = make(dim=8, **OPTIONS)
    train(encoder, vq, 3)
    meter = DriftMeter(encoder, vq, probe)
    meter.measure()
    encoder.eval(), vq.eval()
    indices = vq(encoder(probe)).indices
    first = indices[..., 0] if indices.ndim == 4 else indices
    assert torch.equal(meter.counts, first.flatten().bincount(minlength=64))


def test_measuring_changes_nothing():
    encoder, probe = encoder_and_probe()
    vq = NSVQ(dim=8, **OPTIONS)
    train(encoder, vq, 2)
    encoder[2].eval()
    meter = DriftMeter(lambda images: encoder(images), vq, probe)
    before = copy.deepcopy((encoder.state_dict(), vq.state_dict())), torch.get_rng_state()
    meter.measure()
    for module, state in zip((encoder, vq), before[0], strict=True):
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert all(p.grad is None or p.requires_grad for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), before[1])
    assert [part.training for part in encoder] == [True, True, False, True]
    assert vq.training


def test_modes_are_restored_when_the_encoder_fails():
    encoder, probe = encoder_and_probe()
    meter = DriftMeter(encoder, VQ(dim=8, **OPTIONS), probe[:, :2])
    with pytest.raises(RuntimeError):
        meter.measure()
    assert encoder.training
    assert meter.quantizer.training


def test_a_resumed_meter_reads_the_same_bits():
    encoder, probe = encoder_and_probe()
    vq = NSVQ(dim=8, **OPTIONS)
    train(encoder, vq, 2)
    meter = DriftMeter(encoder, vq, probe)
    meter.measure()
    state = copy.deepcopy(meter.state_dict())
    train(encoder, vq, 2, seed=2)
    resumed = DriftMeter(encoder, vq, probe)
    resumed.load_state_dict(state)
    reading = meter.measure()
    assert resumed.measure() == reading
    assert reading.latents_moved > 0
    assert reading.interval == 2


def test_the_state_is_safe_to_load(tmp_path):
    toy = Toy()
    toy.meter.measure()
    torch.save(toy.meter.state_dict(), tmp_path / "state.pt")
    toy.meter.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert toy.meter.measure().latents_moved == 0


def test_a_state_of_another_probe_is_a_new_start():
    state = Toy(n=500).meter
    state.measure()
    toy = Toy()
    toy.meter.load_state_dict(state.state_dict())
    assert math.isnan(toy.meter.measure().latents_moved)
    toy.meter.load_state_dict({})
    assert math.isnan(toy.meter.measure().latents_moved)


def test_codes_on_the_way_of_a_kmeans_start_are_not_compared():
    encoder, probe = encoder_and_probe()
    vq = VQ(dim=8, kmeans_init=True, **OPTIONS)
    meter = DriftMeter(encoder, vq, probe)
    meter.measure()
    train(encoder, vq, 1)
    assert vq.start.done
    assert math.isnan(meter.measure().codes_moved_selected)
    train(encoder, vq, 1)
    assert meter.measure().codes_moved_selected > 0


@pytest.mark.parametrize("options", [{}, {"codebook": True}])
def test_works_with_vector_quantize_pytorch(options):
    encoder, probe = encoder_and_probe()
    vq = VectorQuantize(dim=8, codebook_size=32, accept_image_fmap=True, kmeans_init=True)
    meter = DriftMeter(encoder, vq, probe, **({"codebook": lambda: vq.codebook} if options else {}))
    assert math.isnan(meter.measure().latents_moved)
    train(encoder, vq, 3)
    first = meter.measure()
    assert math.isnan(first.follow_selected)  # before, all of its codes were zero
    train(encoder, vq, 3)
    reading = meter.measure()
    assert reading.latents_moved > 0
    assert reading.codes_moved_selected > 0
    assert math.isnan(reading.recent_usage)
    assert vq.training
    vq.eval(), encoder.eval()
    assert reading.usage == len(vq(encoder(probe))[1].unique()) / 32


def test_a_plain_autoencoder_has_latents_only():
    encoder, probe = encoder_and_probe()
    meter = DriftMeter(encoder, None, probe, channel_first=True)
    meter.measure()
    with torch.no_grad():
        encoder[3].bias += 1
    reading = meter.measure()
    assert reading.translation_share == pytest.approx(1, abs=1e-5)
    assert math.isnan(reading.usage)
    assert math.isnan(reading.cells_changed)
    assert meter.counts.numel() == 0
    assert meter.measures == "latents; there is no quantizer"


def test_latents_that_are_not_finite_give_no_reading():
    toy = Toy()
    reading = toy.moved(latents=toy.latents * math.nan)
    assert all(math.isnan(value) for value in reading.to_dict().values())
    assert repr(reading) == repr(DriftReading())


def test_many_positions_are_thinned_evenly():
    latents = torch.arange(1000.0)[:, None]
    meter = DriftMeter(
        lambda probe: latents, None, torch.zeros(1), codebook=torch.arange(1000.0)[:, None], max_latents=11
    )
    meter.measure()
    assert meter.counts.nonzero().flatten().tolist() == [int(i * 99.9) for i in range(11)]


@pytest.mark.parametrize("channel_first", [False, True])
def test_layouts(channel_first):
    latents = torch.randn(2, 4, 4, 4)
    codes = torch.randn(5, 4)
    expected = latents.movedim(1, -1) if channel_first else latents
    meter = DriftMeter(lambda probe: latents, None, codes, codebook=codes, channel_first=channel_first)
    meter.measure()
    nearest = winners(expected.reshape(-1, 4).numpy(), codes.numpy())
    assert meter.counts.tolist() == np.bincount(nearest, minlength=5).tolist()


@pytest.mark.parametrize(
    ("latents", "options", "message"),
    [
        (
            torch.zeros(2, 4, 4, 4),
            {"codebook": torch.zeros(5, 4)},
            r"may be .* or .*: pass channel_first",
        ),
        (torch.zeros(2, 6, 3), {"codebook": torch.zeros(5, 4)}, r"\(…, 4\) or \(b, 4, …\), got \(2, 6, 3\)"),
        (torch.zeros(2, 4, 3), {"codebook": torch.zeros(5, 4), "channel_first": False}, "needs 4 channels"),
        (torch.zeros(2, 4), {"codebook": torch.zeros(2, 5, 4)}, r"\(k, d\), got \(2, 5, 4\)"),
        (torch.zeros(2, 4), {"codebook": lambda: None}, "must be a tensor"),
        (torch.zeros(2, 4), {"quantizer": nn.Identity()}, "Identity has no attribute 'codebook': pass codebook="),
    ],
)
def test_errors_name_what_was_given(latents, options, message):
    options = {"quantizer": None, **options}
    meter = DriftMeter(lambda probe: latents, options.pop("quantizer"), torch.zeros(1), **options)
    with pytest.raises(ValueError, match=message):
        meter.measure()


def test_max_latents_is_checked():
    with pytest.raises(ValueError, match="max_latents must be a whole number of at least 1, got 0"):
        DriftMeter(nn.Identity(), None, torch.zeros(1), max_latents=0)


def test_a_snapshot_is_a_copy():
    toy = Toy()
    toy.meter.measure()
    toy.latents += 1
    toy.codes += 1
    reading = toy.meter.measure()
    assert reading.latents_moved > 0
    assert reading.codes_moved_unselected > 0


def test_a_reading_prints_as_four_lines_with_a_verdict():
    toy = Toy()
    for reading in (DriftReading(), toy.meter.measure()):
        lines = str(reading).splitlines()
        assert [line.split()[0] for line in lines] == ["latents", "cells", "codes", "verdict"]
        assert "nan" not in str(reading).lower()
    toy.latents += 1
    reading = toy.meter.measure()
    lines = str(reading).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"latents  moved {reading.latents_moved:.2g} spreads, ")
    assert f"others {reading.follow_unselected:.2f}, {reading.usage:.0%} selected by the probe" in lines[2]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, "broken: the latents are not finite"),
        ({"latent_spread": 1.0}, "unknown: there is no codebook, or it waits for its start"),
        ({"usage": 0.3, "usage_expected": 0.35}, "alive: 86% of the use that the probe allows"),
        ({"usage": 0.3, "usage_expected": 0.6}, "partly used: 50% of the use that the probe allows"),
        (
            {"usage": 0.9, "usage_expected": 0.9, "recent_usage": 0.1, "latents_moved": 1.0, "follow_unselected": 0.0},
            "collapsed: 10% of the codes were selected in the last 100 steps; the other codes stay behind",
        ),
        (
            {"recent_usage": 0.9, "latents_moved": 1.0, "follow_unselected": 0.0},
            "alive: 90% of the codes were selected in the last 100 steps",
        ),
    ],
)
def test_the_verdict_is_by_training_where_it_is_known_and_else_by_what_the_probe_allows(values, verdict):
    assert DriftReading(**({"latent_spread": 1.0} if values else {}) | values).verdict() == verdict


def test_a_codebook_that_waits_for_its_start_is_not_accused():
    vq = VQ(dim=8, codebook_size=64, kmeans_init=True)
    reading = DriftMeter(nn.Identity(), vq, torch.randn(32, 8)).measure()
    assert reading.verdict() == "unknown: there is no codebook, or it waits for its start"


def test_the_meter_needs_no_lightning():
    code = "import sys; from driftvq.drift_meter import DriftMeter; sys.exit(int('lightning' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_example_of_the_documentation_runs(pytestconfig, capsys):
    page = (pytestconfig.rootpath / "docs" / "drift_meter.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(snippet, "drift_meter.md", "exec"), {})
    shown = capsys.readouterr().out
    (promised,) = re.findall(r"```text\n(latents .*?)```", page, re.DOTALL)
    assert [re.sub(r"[\d.e+-]+", "#", line) for line in shown.splitlines()] == [
        re.sub(r"[\d.e+-]+", "#", line) for line in promised.splitlines()
    ]


def test_every_value_is_explained_in_the_documentation(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "drift_meter.md").read_text()
    assert all(f"`{name}`" in page for name in DriftReading().to_dict())


def test_what_an_affine_map_explains_of_noise_is_noise_on_average():
    ratios = []
    for seed in range(200):
        latents, moved = torch.randn(2, 100, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        signal, noise = affine_part(latents, moved)
        ratios.append((signal / noise).numpy())
    np.testing.assert_allclose(np.mean(ratios, axis=0), 1, rtol=0.1)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_few_latents_show_a_shift_at_most(n):
    latents, moved = torch.randn(2, n, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signal, noise = affine_part(latents, moved)
    assert signal[1] == 0
    assert signal[0].item() == pytest.approx(moved.mean(dim=0).square().sum().item())
    assert noise.isfinite().all()


def test_latents_in_one_place_show_no_linear_map():
    signal, noise = affine_part(torch.ones(50, 3, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64))
    assert signal[1] == 0
    assert noise.isfinite().all()
