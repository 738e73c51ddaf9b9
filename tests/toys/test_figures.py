import pytest
from PIL import Image

from driftvq.toys.figures import animate, draw_curves, draw_method, label
from driftvq.toys.trajectories import run_demos


@pytest.fixture(scope="module")
def trajectories():
    runs = [("translation", 0), ("split", 0)]
    return {method: run_demos(runs, method, n=300, epochs=5) for method in ("vanilla", "ns_vq_toy")}


def colours(path):
    with Image.open(path) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(2**24)}


def test_method_figure_shows_codes_in_red(trajectories, tmp_path):
    path = draw_method(trajectories["vanilla"], tmp_path / "new" / "vanilla.png")
    assert (212, 0, 0) in colours(path)
    with Image.open(path) as image:
        assert image.width > image.height > 300


def test_curves_are_drawn(trajectories, tmp_path):
    path = draw_curves([t for of_method in trajectories.values() for t in of_method], tmp_path / "curves.png")
    assert {(212, 0, 0), (31, 95, 191), (0, 0, 0)} <= colours(path)


def test_animation_moves_and_stays_small(trajectories, tmp_path):
    path = animate(trajectories["vanilla"][0], trajectories["ns_vq_toy"][0], tmp_path / "translation.gif")
    assert path.stat().st_size < 300_000
    with Image.open(path) as image:
        assert image.n_frames >= 10
        first = image.convert("RGB").tobytes()
        image.seek(image.n_frames - 1)
        assert image.convert("RGB").tobytes() != first


def test_labels_tell_the_toy_rule_from_the_library():
    assert label("ns_vq_toy") == "NS-VQ (paper's toy rule)"
    assert label("ns_vq") == "NSVQ (driftvq)"
    assert label("ema_vq") == "ema_vq (library defaults)"
