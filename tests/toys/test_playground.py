import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import recordings
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
  const run = new Run(cloud, learners, (epoch) => Int32Array.from(order[epoch]), {...options, seed: 0, moments: [0]});
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
    steps = EPOCHS * (len(cloud.initial) // BATCH_SIZE)
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

    def __init__(self, browser: Any, file: Path, address: str = "", **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri() + address)

    def time(self) -> int:
        return int(re.search(r"batch (\d+) /", self.tab.text_content("#batch-now"))[1])

    def scrub(self, step: int) -> None:
        place = self.tab.evaluate("(step) => player.run.placeOf(step)", step)
        self.tab.locator("#time").fill(str(place))
        self.settle()
        assert self.time() == step

    def settle(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def alive(self) -> list[int]:
        return [int(self.tab.text_content(f"#panel-{side} .alive strong")) for side in range(3)]

    def says(self) -> list[str]:
        return [self.tab.text_content(f"#panel-{side} .says") for side in range(3)]

    def whole(self) -> None:
        """Wait until the whole timeline is known."""
        self.tab.wait_for_function("() => player.run.states.length > player.run.steps")
        self.settle()

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


def test_waits_until_asked_to_play_and_plays_slowly(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.tab.wait_for_timeout(200)
    assert page.time() == 0
    page.tab.get_by_role("button", name="Play").click()
    page.tab.wait_for_function("() => player.time > 2")
    assert page.tab.input_value("#pace") == "4"
    page.tab.click("#play")
    stopped = page.time()
    assert stopped < 60
    page.tab.wait_for_timeout(200)
    assert page.time() == stopped


def test_vanilla_dies_and_the_cures_live_in_translation(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    assert page.alive() == [16, 16, 16]
    for step in (40, 60, 450):
        page.scrub(step)
        vanilla, library, paper = page.alive()
        assert vanilla / 16 < 0.5
        assert library == paper == 16
    assert page.tab.text_content("#sentence") == (
        "The cloud has arrived. Vanilla VQ (EMA) fails here. NSVQ (driftvq) and NS-VQ (paper) keep all 16 codes alive."
    )
    assert page.says()[0].startswith(f"Fails here: {16 - vanilla} of 16 codes are dead.")
    assert "of 16 codes alive" in page.tab.get_attribute("#panel-0 canvas", "aria-label")


def test_says_that_the_papers_trans_vq_fails_in_split(open_page: Callable[..., Page]) -> None:
    page = open_page(address="#demo=split&methods=vanilla.trans_vq.trans_vq_toy&at=450", reduced_motion="reduce")
    _, library, paper = page.alive()
    assert library == 16
    assert paper < 8
    assert page.says()[2].startswith(f"Fails here: {16 - paper} of 16 codes are dead.")
    assert "Vanilla VQ (EMA) and TransVQ (paper) fail here" in page.tab.text_content("#sentence")


def test_the_collapse_fills_a_tenth_of_the_timeline_and_is_there_before_playing(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.whole()
    assert page.time() == 0
    counts = page.tab.evaluate("player.run.states.map(({methods}) => methods[0].count)")
    end = next(step for step, count in enumerate(counts) if count == counts[-1])
    share = page.tab.evaluate("(end) => player.run.placeOf(end) / (player.run.moments.length - 1)", end)
    assert end / 450 < 0.05 < share


def test_the_address_has_the_state_and_gives_it_back(open_page: Callable[..., Page], file: Path) -> None:
    page = open_page(reduced_motion="reduce")
    assert page.tab.url == file.as_uri()
    page.tab.get_by_role("radio", name="Shrinking").check()
    page.tab.select_option("#method-2", value="trans_vq_toy")
    page.tab.fill("#speed", "0.3")
    page.tab.fill("#seed", "7")
    page.tab.dispatch_event("#seed", "change")
    page.scrub(20)
    address = page.tab.url.removeprefix(file.as_uri())
    assert address == "#demo=shrinking&methods=vanilla.ns_vq.trans_vq_toy&seed=7&speed=0.3&at=20"
    again = open_page(address=address, reduced_motion="reduce")
    again.settle()
    assert (again.time(), again.alive(), again.pixels()[:3]) == (20, page.alive(), page.pixels()[:3])
    page.tab.click("#reset")
    assert page.tab.url == file.as_uri()


@pytest.mark.parametrize(
    "address", ["#demo=constructor&at=-4", "#methods=vanilla.toString.ns_vq&seed=x", "#at=Infinity&tau=&methods=a"]
)
def test_an_address_that_says_nonsense_is_the_default(open_page: Callable[..., Page], address: str) -> None:
    page = open_page(address=address, reduced_motion="reduce")
    page.settle()
    assert page.time() == 0
    assert page.tab.evaluate("toAddress(player.settings, player.time, player.defaults)") in ("", "tau=0.01")


def test_without_a_recording_the_papers_rule_is_shown_and_named(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.tab.fill("#speed", "0.2")
    page.settle()
    assert page.tab.input_value("#method-1") == "ns_vq_toy"
    assert page.says()[1].startswith("NSVQ (driftvq) was not recorded at these conditions; this is the paper's rule.")
    assert page.tab.locator("#method-1 option[value=ns_vq]").is_disabled()
    page.tab.fill("#speed", "0.1")
    page.settle()
    assert page.tab.input_value("#method-1") == "ns_vq"


@pytest.mark.parametrize("demo", DEMOS)
def test_python_draws_the_clouds_of_the_page(browser: Any, demo: str) -> None:
    page = browser.new_page()
    page.add_script_tag(content=script(SIMULATION))
    draw = """(text) => {
      const {demo, constants} = JSON.parse(text);
      const {initial, targets, codebook} = drawCloud(demo, 5, constants);
      const order = [...permutation(stream(5, "order 29"), constants.points)];
      return JSON.stringify([initial, targets, codebook].map((points) => [...points]).concat([order]));
    }"""
    text = json.dumps({"demo": demo, "constants": playground.constants()})
    initial, targets, codebook, order = json.loads(page.evaluate(draw, text))
    page.close()
    cloud = recordings.page_cloud(demo, 5)
    np.testing.assert_array_equal(cloud.order[29], order)
    for points, drawn in ((cloud.initial, initial), (cloud.targets, targets), (cloud.codebook, codebook)):
        np.testing.assert_allclose(points.ravel(), drawn, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", recordings.RECORDED)
def test_the_recordings_are_of_the_present_library(method: str) -> None:
    """If a quantizer has been changed on purpose: `python benchmarks/recordings.py` records anew."""
    recorded = json.loads(playground._asset(playground.RECORDINGS))
    assert {(one["demo"], one["method"]) for one in recorded} == {(d, m) for d in DEMOS for m in recordings.RECORDED}
    (kept,) = [one["codes"] for one in recorded if (one["demo"], one["method"]) == ("translation", method)]
    assert len(kept) == len(playground.moments())
    (now,) = recordings.record(("translation",), (method,), steps=10)
    np.testing.assert_allclose(kept[:11], now["codes"], atol=0.02)


def test_scrubbing_back_shows_the_same_again(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.scrub(12)
    before, drawn = page.alive(), page.pixels()[:3]
    page.scrub(50)
    assert page.pixels()[:3] != drawn
    page.scrub(12)
    assert page.alive() == before
    assert page.pixels()[:3] == drawn


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
    page.tab.wait_for_function("() => player.time > 4")
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
    for method in ("vanilla", "ns_vq", "ns_vq_toy", "trans_vq", "trans_vq_toy"):
        page.tab.select_option("#method-1", value=method)
        page.settle()
        assert page.time() == 60
        sentences.add(page.says()[1])
        drawings.add(page.pixels()[1])
    assert len(sentences) == len(drawings) == 5


def test_settings_change_the_run(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    page.scrub(25)
    seen = [page.pixels()[2]]
    for setting, value in (("#speed", "0.3"), ("#batch", "40"), ("#tau", "1"), ("#seed", "8")):
        page.tab.fill(setting, value)
        page.tab.dispatch_event(setting, "change")
        page.settle()
        seen.append(page.pixels()[2])
    page.tab.click("#reseed")
    page.settle()
    assert page.tab.input_value("#seed") == "9"
    assert len({*seen, page.pixels()[2]}) == 6
    page.tab.fill("#seed", "")
    page.tab.dispatch_event("#seed", "change")
    assert page.tab.input_value("#seed") == "0"
    page.tab.click("#reset")
    page.scrub(25)
    assert page.pixels()[2] == seen[0]


def test_fits_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 375, "height": 812}, is_mobile=True, has_touch=True, device_scale_factor=2)
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 375
    boxes = [page.tab.locator(f"#panel-{side} canvas").bounding_box() for side in (0, 1)]
    assert boxes[1]["y"] > boxes[0]["y"] + boxes[0]["height"]
    play = page.tab.locator("#play").bounding_box()
    assert play["y"] + play["height"] <= 812
    assert min(play["width"], play["height"]) >= 44
    for mark in (".legend", "#usage", "#sentence"):
        box = page.tab.locator(mark).bounding_box()
        assert box["y"] + box["height"] <= 812
    page.tab.tap("#play")
    page.tab.get_by_role("button", name="Pause").wait_for()


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
