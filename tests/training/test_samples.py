import numpy as np
import torch
from PIL import Image

from driftvq.data import eval_batches, open_source, to_float, to_uint8
from driftvq.training.config import TrainConfig
from driftvq.training.run import train
from driftvq.training.samples import pair_grid
from tests.training.test_logs import SETTINGS

IMAGES = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_samples_are_originals_over_what_the_model_gives_back(pictures, tmp_path, one_thread):
    config = TrainConfig(**SETTINGS, data=str(pictures), out=str(tmp_path / "run"), steps=3, tensorboard=False)
    result = train(config)
    files = sorted(path.name for path in (result.run / "samples").iterdir())
    assert files == ["step-00000002.png", "step-00000003.png"]
    picture = np.asarray(Image.open(result.run / "samples" / files[-1]))
    source = open_source(config.data, "val", val_share=config.val_share, seed=config.seed)
    with eval_batches(source, size=16, batch_size=16, limit=16) as batches:
        images = next(iter(batches)).images
    expected = to_uint8(result.model.reconstruct(to_float(images)))
    for number in range(min(len(images), 8)):
        columns = slice(16 * number, 16 * number + 16)
        assert np.array_equal(picture[:16, columns], images[number].permute(1, 2, 0))
        assert np.array_equal(picture[16:32, columns], expected[number].permute(1, 2, 0))


def test_a_grid_pads_its_last_row():
    originals, rebuilt = IMAGES, 255 - IMAGES
    grid = pair_grid(originals, rebuilt, columns=3)
    assert grid.shape == (64, 48, 3)
    assert np.array_equal(grid[32:48, 16:32], originals[4].permute(1, 2, 0))
    assert np.array_equal(grid[48:, 16:32], rebuilt[4].permute(1, 2, 0))
    assert (grid[32:, 32:] == 255).all()
