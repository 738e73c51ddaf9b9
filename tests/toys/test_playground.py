import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from driftvq.toys import playground
from driftvq.toys.clouds import DEMOS, make_cloud
from driftvq.toys.playground import SIMULATION, script, write_playground
from driftvq.toys.rules import PAPER_METHODS, TransVQToyLearner, make_learner, squared_distances
from driftvq.toys.trajectories import kmeans_optimum, measure

EPOCHS = 3
BATCH_SIZE = 64
MERGED = 1e-9

RUN = """(text) => {
  const {demo, methods, initial, targets, codebook, order, first, constants, ...options} = JSON.parse(text);
  const cloud = {demo, initial: Float64Array.from(initial), targets: Float64Array.from(targets),
                 codebook: Float64Array.from(codebook)};
  const learners = methods.map((method) => makeLearner(method, cloud.codebook, constants, first));
  const run = new Run(cloud, learners, (epoch) => Int32Array.from(order[epoch]), {...options, seed: 0});
  run.ensure(run.steps);
  return JSON.stringify(run.states.map(({drift, methods}) => ({
    drift: [...drift],
    methods: methods.map(({codebook, count, distortion}) => ({codebook: [...codebook], count, distortion})),
  })));
}"""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of torch and those of the browser would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def simulation(browser: Any) -> Iterator[Callable[[dict[str, Any]], list[Any]]]:
    page = browser.new_page()
    page.add_script_tag(content=script(SIMULATION))
    yield lambda arguments: json.loads(page.evaluate(RUN, json.dumps(arguments)))
    page.close()


@pytest.mark.parametrize("demo", DEMOS)
def test_simulation_equals_the_python_rules(simulation: Callable[[dict[str, Any]], list[Any]], demo: str) -> None:
    cloud = make_cloud(demo, seed=3, epochs=EPOCHS)
    learners = [make_learner(method, cloud.codebook, seed=3) for method in PAPER_METHODS]
    steps = EPOCHS * (len(cloud) // BATCH_SIZE)
    states = simulation(
        {
            "demo": demo,
            "methods": PAPER_METHODS,
            "initial": cloud.initial.ravel().tolist(),
            "targets": cloud.targets.ravel().tolist(),
            "codebook": cloud.codebook.ravel().tolist(),
            "order": cloud.order.tolist(),
            "first": first_weights(learners[-1]),
            "constants": playground.constants(),
            "batchSize": BATCH_SIZE,
            "speed": 0.07,
            "steps": steps,
        }
    )
    assert len(states) == steps + 1
    errors = dict.fromkeys(PAPER_METHODS, 0.0)
    merged = dict.fromkeys(PAPER_METHODS, False)
    following = iter(states[1:])
    for epoch in range(EPOCHS):
        for idxs in cloud.batches(epoch, BATCH_SIZE):
            state = next(following)
            np.testing.assert_allclose(state["drift"], cloud.drift.ravel(), atol=1e-9)
            for method, learner, seen in zip(PAPER_METHODS, learners, state["methods"], strict=True):
                learner.step_(cloud.batch(idxs))
                error = largest_error(np.reshape(seen["codebook"], (-1, 2)), learner.codebook, merged[method])
                errors[method] = max(errors[method], error)
                usage, distortion = measure(learner.codebook, cloud.positions())
                assert seen["distortion"] == pytest.approx(distortion, rel=1e-9)
                if closest(learner.codebook) < MERGED:
                    merged[method] = True
                else:
                    assert seen["count"] == round(usage * len(learner.codebook))
            cloud.advance_(idxs, speed=0.07)
        for learner in learners:
            learner.end_epoch_()
    print(demo, errors)  # noqa: T201
    assert max(errors.values()) < 1e-9
    assert not merged["vanilla"]


def largest_error(codebook: np.ndarray, expected: np.ndarray, merged: bool) -> float:
    """The largest difference of a coordinate.

    A wide kernel can pull codes of NS-VQ into one point, to the last digit. Which of them wins next is a matter of
    rounding; as they are alike, the codebook is the same but for the numbering.
    """
    if merged:
        row, column = linear_sum_assignment(squared_distances(codebook, expected).T)
        codebook, expected = codebook[row], expected[column]
    return float(np.abs(codebook - expected).max())


def closest(codebook: np.ndarray) -> float:
    """The distance between the two nearest codes."""
    distances = squared_distances(codebook, codebook)
    return float(np.sqrt(distances[~np.eye(len(codebook), dtype=bool)].min()))


def first_weights(learner: Any) -> dict[str, list[float]]:
    """The hidden layer of a TransVQ learner that has not learned yet."""
    assert isinstance(learner, TransVQToyLearner)
    hidden, _, out = learner.quantizer.book.transform.network
    assert hidden.out_features == playground.HIDDEN
    assert not torch.any(out.weight)
    return {"weight": hidden.weight.detach().ravel().tolist(), "bias": hidden.bias.detach().tolist()}


def test_optimum_is_near_that_of_many_restarts(browser: Any) -> None:
    page = browser.new_page()
    page.add_script_tag(content=script(SIMULATION))
    search = "(text) => new Optimum(16, 0).at(Float64Array.from(JSON.parse(text)), [0, 0])"
    for demo in DEMOS:
        points = make_cloud(demo, seed=5).targets
        found = page.evaluate(search, json.dumps(points.ravel().tolist()))
        _, optimum = kmeans_optimum(points, codes=16, restarts=3)
        assert found == pytest.approx(optimum, rel=0.05)
    page.close()


class Page:
    """The playground in a browser tab, with everything that it complained about."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())

    def time(self) -> int:
        return int(self.tab.input_value("#time"))

    def scrub(self, step: int) -> None:
        self.tab.locator("#time").fill(str(step))
        self.tab.wait_for_function("(step) => document.getElementById('time').value === String(step)", arg=step)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def alive(self) -> list[int]:
        return [int(self.tab.text_content(f"#panel-{side} .alive strong")) for side in (0, 1)]

    def pixels(self) -> list[str]:
        return self.tab.evaluate("[...document.querySelectorAll('canvas')].map((canvas) => canvas.toDataURL())")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_playground(tmp_path_factory.mktemp("playground") / "play.html")


@pytest.fixture
def open_page(browser: Any, file: Path) -> Iterator[Callable[..., Page]]:
    pages: list[Page] = []

    def open_page(**context: Any) -> Page:
        pages.append(Page(browser, file, **context))
        return pages[-1]

    yield open_page
    for page in pages:
        page.settle()
        page.context.close()
        assert page.complaints == []
        assert page.requests == [file.as_uri()]


def test_plays_by_itself_and_pauses(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.tab.wait_for_function("() => document.getElementById('time').value > 3")
    page.tab.click("#play")
    stopped = page.time()
    page.tab.wait_for_timeout(200)
    assert page.time() == stopped
    page.tab.get_by_role("button", name="Play").click()
    page.tab.wait_for_function("(stopped) => document.getElementById('time').value > stopped", arg=stopped)


def test_waits_where_motion_is_unwelcome(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.tab.wait_for_timeout(200)
    assert page.time() == 0
    page.tab.get_by_role("button", name="Play").click()
    page.tab.wait_for_function("() => document.getElementById('time').value > 1")


def test_vanilla_dies_and_ns_vq_lives_in_translation(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    assert page.alive() == [16, 16]
    for step in (40, 100, 450):
        page.scrub(step)
        vanilla, ns_vq = page.alive()
        assert vanilla / 16 < 0.5
        assert ns_vq / 16 == 1.0
    assert "left behind and are dead" in page.tab.text_content("#sentence")
    assert "of 16 codes alive" in page.tab.get_attribute("#panel-0 canvas", "aria-label")


def test_scrubbing_back_shows_the_same_again(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.scrub(12)
    before, drawn = page.alive(), page.pixels()[:2]
    page.scrub(90)
    assert page.pixels()[:2] != drawn
    page.scrub(12)
    assert page.alive() == before
    assert page.pixels()[:2] == drawn


def test_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    keyboard = page.tab.keyboard
    for _ in range(3):
        keyboard.press("ArrowRight")
    page.settle()
    assert page.time() == 3
    keyboard.press("ArrowLeft")
    page.settle()
    assert page.time() == 2
    keyboard.press("Space")
    page.tab.wait_for_function("() => document.getElementById('time').value > 4")
    keyboard.press("Space")
    keyboard.press("Home")
    page.settle()
    assert page.time() == 0
    page.tab.focus("#time")
    keyboard.press("ArrowRight")
    page.settle()
    assert page.time() == 1


def test_every_control_can_be_reached_and_has_a_name(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    controls = set(
        page.tab.locator("button, select, input").evaluate_all(
            "(all) => all.map((control) => control.id || control.name)"
        )
    )
    reached = set()
    for _ in controls:
        page.tab.keyboard.press("Tab")
        reached.add(page.tab.evaluate("document.activeElement.id || document.activeElement.name"))
        assert page.tab.evaluate("""() => {
            const focused = document.activeElement;
            const shown = [focused, focused.nextElementSibling].filter(Boolean);
            return shown.some((element) => getComputedStyle(element).outlineStyle !== "none");
        }""")
    assert reached == controls
    unnamed = "[...document.querySelectorAll('select, input')].filter((c) => !c.labels.length).map((c) => c.id)"
    assert page.tab.evaluate(unnamed) == []
    assert all(page.tab.locator("button").evaluate_all("(all) => all.map((b) => b.ariaLabel || b.textContent)"))


@pytest.mark.parametrize("demo", DEMOS)
def test_switches_demo_and_method(open_page: Callable[..., Page], demo: str) -> None:
    page = open_page(reduced_motion="reduce")
    page.tab.get_by_role("radio", name=demo.capitalize()).check()
    page.settle()
    assert page.time() == 0
    page.scrub(60)
    sentences, drawings = set(), set()
    for name in ("NS-VQ", "TransVQ", "Vanilla EMA"):
        page.tab.select_option("#method-1", label=name)
        page.settle()
        assert page.time() == 60
        sentences.add(page.tab.text_content("#sentence"))
        drawings.add(page.pixels()[1])
    assert len(sentences) == len(drawings) == 3


def test_settings_change_the_run(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.scrub(25)
    seen = [page.pixels()[1]]
    for setting, value in (("#speed", "0.3"), ("#batch", "40"), ("#tau", "1"), ("#seed", "8")):
        page.tab.fill(setting, value)
        page.tab.dispatch_event(setting, "change")
        page.settle()
        seen.append(page.pixels()[1])
    page.tab.click("#reseed")
    page.settle()
    assert page.tab.input_value("#seed") == "9"
    assert len({*seen, page.pixels()[1]}) == 6
    page.tab.fill("#seed", "")
    page.tab.dispatch_event("#seed", "change")
    assert page.tab.input_value("#seed") == "0"
    page.tab.click("#reset")
    page.scrub(25)
    assert page.pixels()[1] == seen[0]


def test_fits_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 375, "height": 812}, is_mobile=True, has_touch=True, device_scale_factor=2)
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 375
    boxes = [page.tab.locator(f"#panel-{side} canvas").bounding_box() for side in (0, 1)]
    assert boxes[1]["y"] > boxes[0]["y"] + boxes[0]["height"]
    play = page.tab.locator("#play").bounding_box()
    assert play["y"] + play["height"] <= 812
    assert min(play["width"], play["height"]) >= 44
    page.tab.tap("#play")
    page.tab.get_by_role("button", name="Play").wait_for()


def test_dark_mode_has_its_own_colours(open_page: Callable[..., Page]) -> None:
    shown = {}
    for scheme in ("light", "dark"):
        page = open_page(reduced_motion="reduce", color_scheme=scheme)
        page.scrub(20)
        ground = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        shown[scheme] = (sum(map(int, re.findall(r"\d+", ground)[:3])), page.pixels())
    assert shown["dark"][0] < 150 < 600 < shown["light"][0]
    assert all(dark != light for dark, light in zip(shown["dark"][1], shown["light"][1], strict=True))
    page.tab.emulate_media(color_scheme="light")
    page.settle()
    assert page.pixels()[0] == shown["light"][1][0]


def test_frame_time(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    milliseconds = page.tab.evaluate("""() => Array.from({length: 60}, (_, step) => {
        const start = performance.now();
        player.seek(step + 1);
        player.draw(start);
        return performance.now() - start;
    })""")
    print(f"a frame with its step: median {np.median(milliseconds):.1f} ms, worst {max(milliseconds):.1f} ms")  # noqa: T201
    assert page.time() == 60


def test_page_needs_no_other_file() -> None:
    html = playground.page()
    assert "{{" not in html
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|innerHTML|https?://""", html)


def test_write_replaces_a_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "play.html"
    path.write_text("before")
    assert write_playground(str(path)) == path
    assert path.read_text(encoding="utf-8") == playground.page()
    assert list(tmp_path.iterdir()) == [path]


def test_write_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        write_playground(tmp_path / "nowhere" / "play.html")


def test_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "play.html"
    taken.mkdir()
    with pytest.raises(OSError, match="play"):
        write_playground(taken)
    assert list(tmp_path.iterdir()) == [taken]
