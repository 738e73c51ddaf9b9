import pytest
import torch

from driftvq.experiments.methods import METHODS
from driftvq.training.checkpoints import seed_all
from driftvq.training.loop import TrainingLoop
from tests.experiments.smoke import model_of, run_plan, smoke_plan


def network(model):
    parts = (("encoder", model.encoder), ("decoder", model.decoder))
    return {f"{part}.{k}": v.detach().clone() for part, module in parts for k, v in module.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_every_method_starts_from_the_same_network():
    networks = []
    for method in METHODS:
        seed_all(3)
        networks.append(network(model_of(method)))
    assert all(same(networks[0], other) for other in networks)


def test_the_methods_of_a_seed_have_the_same_first_weights_and_images(tmp_path, monkeypatch):
    seen, first = {}, {}
    original = TrainingLoop.train_step

    def watch(self, batches):
        key = self.run.parent.name
        first.setdefault(key, network(self.model))
        batch = next(batches)
        seen.setdefault(key, []).append((list(batch.names), batch.images.clone()))
        original(self, iter([batch]))

    monkeypatch.setattr(TrainingLoop, "train_step", watch)
    plan = smoke_plan(methods=("vq", "vqgan_ema", "trans_vq", "autoencoder"), seeds=2, steps=3)
    run_plan(tmp_path, plan)
    for seed in (0, 1):
        cells = [cell.name for cell in plan.cells if cell.seed == seed]
        assert all(same(first[cells[0]], first[name]) for name in cells)
        for name in cells:
            assert len(seen[name]) == 3
            for (names, images), (others, pixels) in zip(seen[cells[0]], seen[name], strict=True):
                assert names == others
                assert torch.equal(images, pixels)
    by_seed = [next(cell.name for cell in plan.cells if cell.seed == seed) for seed in (0, 1)]
    assert not same(first[by_seed[0]], first[by_seed[1]])
    assert seen[by_seed[0]][0][0] != seen[by_seed[1]][0][0]


@pytest.mark.parametrize("recipe", ["compare", "table-64d", "imagenet"])
def test_nothing_but_the_method_differs_between_cells_of_a_place(recipe):
    plan = smoke_plan(recipe=recipe)
    for cell in plan.cells:
        other = next(c for c in plan.cells if c.point == cell.point)
        mine, theirs = cell.config.to_dict(), other.config.to_dict()
        changed = {name for name in mine if mine[name] != theirs[name]}
        assert changed <= {"quantizer", "quantizer_options"}
