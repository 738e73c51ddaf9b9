"""The page in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftvq.report import aggregate, load_comparison, write_report
from tests.report.synthetic import EVIL, write_comparison, write_run

CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb(colour).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (rgb(colour)[3] === 255) return colour;
    }
    return "#fff";
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility() && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  const found = texts.map((element) => {
    const style = getComputedStyle(element);
    const colour = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    return [ratio(colour, behind(element)), element.textContent.slice(0, 40)];
  });
  const curves = [...document.querySelectorAll(".curve")];
  const lines = curves.map((line) => ratio(getComputedStyle(line).stroke, behind(line)));
  const [text] = found.sort((a, b) => a[0] - b[0]);
  return {text, line: Math.min(...lines), background: light(behind(document.body))};
}"""


class Tab:
    """A page of a browser that has no network, with everything that it complained about."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
        self.context.set_offline(True)
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        if context.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-drawn=all]")

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def report(sweep_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(sweep_source, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def desktop(browser: Any, report: Path) -> Iterator[Tab]:
    tab = Tab(browser, report, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    yield tab
    tab.close()


def labels(page: Any) -> list[str]:
    return page.locator("table.results tbody tr:not(.failure) th .label").all_text_contents()


def test_every_figure_has_size_and_words(desktop: Tab) -> None:
    page = desktop.page
    figures = page.evaluate(
        """() => [...document.querySelectorAll("figure, .strips, .cost, .scroll > table")].map((figure) => {
          const picture = figure.querySelector("svg[viewBox]:not(.swatch), img, table") ?? figure;
          const box = picture.getBoundingClientRect();
          return [box.width, box.height];
        })"""
    )
    assert len(figures) > 20
    assert all(width > 100 and height > 60 for width, height in figures if (width, height) != (100, 100))
    images = page.evaluate("[...document.images].map((image) => [image.complete, image.naturalWidth, image.width])")
    assert len(images) == 3 * 9
    assert all(complete and natural == 32 and width > 50 for complete, natural, width in images)
    assert page.locator(".plot:not([aria-valuetext]), svg[role=img]:not([aria-label])").count() == 0
    for number in page.locator("figure.chart .curve").all()[:3]:
        assert "NaN" not in number.get_attribute("d")
    markup = """document.body.innerHTML.replace(/data:image[^"]*/g, "")"""
    assert page.evaluate(f"{markup}.includes('NaN')") is False


def test_the_answer_comes_first(desktop: Tab, sweep_source: Path) -> None:
    best = desktop.page.locator(".answer .best").text_content().replace("\xa0", " ")
    document = json.loads(desktop.page.locator("#results").text_content())
    assert best == document["comparisons"][0]["answer"]["best"]
    assert best.startswith("NS-VQ (driftvq default) has the lowest KID at every codebook size K")
    top = desktop.page.locator(".answer").bounding_box()
    assert top["y"] + top["height"] < 900


def test_one_seed_has_no_columns_of_spreads_and_is_ranked(browser: Any, tmp_path: Path) -> None:
    run = write_comparison(tmp_path / "run", sweep=None, seeds=(0,), images=2, size=16, trouble=False)
    tab = Tab(browser, write_report(run, tmp_path / "report.html"))
    headings = tab.page.locator("table.results thead th").all_text_contents()
    assert not [heading for heading in headings if heading.startswith(("Against", "Seeds"))]
    assert "one seed: no spread" in tab.page.locator("#numbers .key").text_content()
    ranked = sorted(aggregate(load_comparison(run)).rows, key=lambda row: (row.rank is None, row.rank))
    assert labels(tab.page) == [row.method.label for row in ranked]
    tab.close()


def test_landmarks_and_skip_link(desktop: Tab) -> None:
    page = desktop.page
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    assert page.locator("h1").count() == 1
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_sorting_by_click(desktop: Tab, sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    head = desktop.page.locator("table.results thead th", has_text="PSNR")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert desktop.page.locator("table.results th[aria-sort]").count() == 1
    best_first = sorted(results.rows, key=lambda row: -row.values["psnr"].mean)
    assert labels(desktop.page) == [row.method.label for row in best_first]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert labels(desktop.page) == [row.method.label for row in reversed(best_first)]


def test_sorting_by_keyboard(desktop: Tab, sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    head = desktop.page.locator("table.results thead th", has_text="Usage")
    head.get_by_role("button").focus()
    desktop.page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert labels(desktop.page)[-1] == "plain autoencoder"
    desktop.page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "ascending"
    worst = min((row for row in results.rows if "usage" in row.values), key=lambda row: row.values["usage"].mean)
    assert labels(desktop.page)[0] == worst.method.label
    assert labels(desktop.page)[-1] == "plain autoencoder"
    assert "Sorted by Usage" in desktop.page.locator("#numbers [role=status]").text_content()


def test_best_and_failed_are_said_in_words(desktop: Tab) -> None:
    page = desktop.page
    best = (
        page.locator("tbody tr", has_text="NS-VQ (driftvq default)")
        .filter(has_text="8192")
        .locator(".value.best")
        .first
    )
    assert best.locator(".sign").text_content() == "★"
    assert best.locator(".hidden").text_content() == "best: "
    assert best.locator("strong").count() == 1
    failure = page.locator("tbody", has=page.locator(".failure"))
    assert failure.count() == 1
    assert failure.locator(".label").text_content() == "VQVAE2 (EMA)"
    words = failure.locator(".failure").text_content()
    assert "Seed 2 failed: RuntimeError: no space left" in words
    assert words.endswith("ema_vq--8192--seed2/log.txt")


def test_markup_stays_text(desktop: Tab) -> None:
    page = desktop.page
    assert page.locator("script").count() == 2
    assert page.locator("img[src='x'], b:text-is('bold'), main i").count() == 0
    text = page.locator("body").inner_text()
    for part in (
        f"photographs {EVIL}",
        f"vanilla VQ {EVIL}",
        f"A note {EVIL}",
        f"no space left on device {EVIL}",
        "sharpness <b>",
    ):
        assert part in text
    assert page.title() == "Which quantizer keeps its codes alive? · driftvq"
    page.locator("#drift details.more > summary").click()
    page.get_by_text("wobble <i>").first.wait_for(state="visible")  # drawn once it is open


def test_no_other_script_can_run(browser: Any, report: Path) -> None:
    tab = Tab(browser, report)
    ran = """() => {
      const script = document.createElement("script");
      script.textContent = "window.ran = true";
      document.body.append(script);
      const image = document.createElement("img");
      image.setAttribute("onerror", "window.ran = true");
      image.src = "https://example.com/x.png";
      document.body.append(image);
      return new Promise((resolve) => setTimeout(() => resolve(window.ran ?? false), 100));
    }"""
    assert tab.page.evaluate(ran) is False
    assert tab.complaints
    assert all("Content Security Policy" in text for text in tab.complaints)
    tab.context.close()


def test_charts_are_read_by_keyboard_and_pointer(desktop: Tab) -> None:
    page = desktop.page
    plot = page.locator("#training .plot").nth(2)
    plot.focus()
    page.keyboard.press("Home")
    first = plot.get_attribute("aria-valuetext")
    assert first.startswith("step 0: ")
    page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuetext").startswith("step 50: ")
    assert plot.locator(".tip").is_visible()
    page.keyboard.press("Escape")
    assert not plot.locator(".tip").is_visible()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    plot.locator(".tip").wait_for(state="visible")
    assert plot.locator(".tip tr").count() == 8
    page.mouse.move(0, 0)


def test_legend_hides_a_method_everywhere(desktop: Tab) -> None:
    page = desktop.page
    curves = page.locator("#training .plot").nth(2).locator("> svg .curve")
    assert curves.count() == 8
    button = page.locator("#sweep .legend button", has_text="SimVQ")
    button.focus()
    page.keyboard.press("Enter")
    assert curves.count() == 7
    assert page.locator("#training .legend button", has_text="SimVQ").get_attribute("aria-pressed") == "false"
    page.keyboard.press("Enter")
    assert curves.count() == 8


def test_the_place_in_the_sweep_is_chosen_for_all_figures(desktop: Tab) -> None:
    page = desktop.page
    caption = page.locator("#histograms figure", has_text="SimVQ").locator("figcaption")
    before = page.locator("#training .plot > svg .curve").first.get_attribute("d")
    image = page.locator("#strips .strip").nth(2).locator("img").first
    source = image.get_attribute("src")
    page.locator("input[name=point]").last.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("input[name=point]").first.is_checked()
    assert "100% alive" in caption.text_content()
    assert page.locator("#training .plot > svg .curve").first.get_attribute("d") != before
    assert page.locator("#strips .strip").nth(2).locator("img").first.get_attribute("src") != source
    page.keyboard.press("ArrowLeft")


def test_numbers_of_a_figure_are_a_table(desktop: Tab) -> None:
    figure = desktop.page.locator("#training figure").first
    figure.locator("summary").click()
    rows = figure.locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 7
    assert figure.locator("thead th").count() == 10


def test_zoom_by_keyboard(desktop: Tab) -> None:
    page = desktop.page
    page.locator("#strips .strip").nth(1).locator("button").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    title = dialog.locator("h2")
    assert title.text_content() == "NS-VQ (driftvq default), image 1 of 3"
    assert dialog.locator("img").count() == 4
    assert dialog.locator("img").first.evaluate("(image) => getComputedStyle(image).imageRendering") == "pixelated"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert title.text_content() == "TransVQ (driftvq default), image 2 of 3"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert title.text_content() == "TransVQ (driftvq default), image 3 of 3"
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "TransVQ (driftvq default), image 3 of 3: look closer"
    page.locator("#strips .strip").nth(0).locator("button").nth(1).click()
    page.get_by_role("button", name="Close", exact=True).click()
    assert page.get_by_role("dialog").count() == 0


def test_the_command_is_copied(desktop: Tab) -> None:
    page = desktop.page
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(".command code").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_has_no_sideways_scroll_and_colours_contrast(browser: Any, report: Path, scheme: str) -> None:
    tab = Tab(
        browser, report, viewport={"width": 375, "height": 700}, color_scheme=scheme, has_touch=True, is_mobile=True
    )
    tab.page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 375
    table = tab.page.locator("#numbers .scroll")
    assert table.evaluate("(box) => box.scrollWidth > box.clientWidth && box.clientWidth <= 375")
    shrunk = "(svgs) => Math.min(...svgs.map((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"
    assert tab.page.locator(".grid.small svg, .plot > svg").evaluate_all(shrunk) > 0.9, "letters are too small"
    found = tab.page.evaluate(CONTRAST)
    assert found["text"][0] >= 4.5, found
    assert found["line"] >= 3, found
    assert (found["background"] < 0.1) == (scheme == "dark")
    tab.close()


def test_paper_is_white(browser: Any, report: Path) -> None:
    tab = Tab(browser, report, color_scheme="dark")
    tab.page.emulate_media(media="print")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.page.locator("nav").is_visible()
    tab.close()


def test_it_is_one_file_of_moderate_size(report: Path) -> None:
    assert report.stat().st_size < 10_000_000


def test_without_javascript_the_table_is_there(browser: Any, report: Path) -> None:
    tab = Tab(browser, report, java_script_enabled=False)
    text = tab.page.locator("body").inner_text()
    assert "has the lowest KID at every codebook size K" in text
    assert "| Method | codebook size K |" in text
    tab.close()


def test_two_comparisons_side_by_side(browser: Any, sweep_source: Path, plain_source: Path, tmp_path: Path) -> None:
    second = write_comparison(
        tmp_path / "second", sweep=None, seeds=(0,), name="second run", shift=0.1, images=2, size=16, trouble=False
    )
    tab = Tab(browser, write_report([plain_source, second], tmp_path / "both.html"))
    page = tab.page
    assert page.locator("h1").text_content() == "2 comparisons side by side"
    assert page.locator(".answer").count() == 2
    rows = page.locator("table.joint tbody tr")
    assert rows.count() == 8
    assert "%" in rows.first.locator(".change").first.text_content()
    assert page.locator("#training figure").count() == 6
    left, right = (page.locator("#training .one").nth(i).bounding_box() for i in (0, 1))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]
    ticks = [
        page.locator("#training .one").nth(i).locator("figure").nth(2).locator(".axes text").all_text_contents()
        for i in (0, 1)
    ]
    assert ticks[0] == ticks[1]
    page.locator("#strips .one").nth(1).locator("button").last.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.closest('.one').querySelector('h3').textContent") == "second run"
    page.set_viewport_size({"width": 375, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    tab.close()
    mixed = Tab(browser, write_report([plain_source, sweep_source], tmp_path / "mixed.html"))
    assert mixed.page.locator("#sweep figure").count() == 3
    assert mixed.page.locator("table.joint tbody tr").count() == 8 + 21
    mixed.close()


@pytest.mark.parametrize("loss", ["cells", "files", "metrics"])
def test_a_comparison_that_has_little_yet(browser: Any, plain: Path, loss: str) -> None:
    if loss == "cells":
        shutil.rmtree(plain / "cells")
    elif loss == "files":
        for name in ("codes.json", "metrics.jsonl", "log.txt"):
            for path in plain.glob(f"cells/*/{name}"):
                path.unlink()
        shutil.rmtree(plain / "originals")
    else:
        for path in plain.glob("cells/*/cell.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"values": {}}))
    tab = Tab(browser, write_report(plain))
    assert tab.page.locator("table.results tbody").count() == 8
    assert (
        tab.page.locator(".answer .best")
        .text_content()
        .startswith("There is no result yet." if loss != "files" else "NS-VQ (driftvq default) has the lowest KID")
    )
    tab.close()


@pytest.fixture(scope="module")
def beside_kmeans(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    folder = tmp_path_factory.mktemp("kmeans") / "c"
    write_comparison(folder, sweep=None, seeds=(0,), images=1, size=16, trouble=False, kmeans=True)
    tab = Tab(browser, write_report(folder), reduced_motion="reduce")
    yield tab
    tab.close()


def test_a_yardstick_without_training_is_a_line_or_has_no_legend_entry(beside_kmeans: Tab) -> None:
    page = beside_kmeans.page
    entry = "No quantizer, k-means afterwards"
    assert page.locator("#training .legend button", has_text=entry).count() == 1
    assert page.locator("#drift .legend button", has_text=entry).count() == 0
    psnr = page.locator("#training .plot").nth(2)
    ends = [
        path.split("L")
        for path in psnr.locator("> svg .curve").evaluate_all("(all) => all.map((c) => c.getAttribute('d'))")
    ]
    (flat,) = [points for points in ends if len(points) == 2]
    assert flat[0].split()[-1] == flat[1].split()[-1]
    assert "these 256 images select 8" in page.locator("#histograms").inner_text()
    assert page.locator(".answer").inner_text().count("As a yardstick, not ranked:") == 1


def test_pointing_at_a_method_just_hidden_fades_nothing(beside_kmeans: Tab) -> None:
    page = beside_kmeans.page
    button = page.locator("#training .legend button", has_text="SimVQ")
    button.hover()
    assert page.locator("#training .faded").count() > 0
    button.click()
    assert page.locator("#training .faded").count() == 0
    button.click()
    page.mouse.move(0, 0)
    assert page.locator("#training .faded").count() == 0


def test_drift_charts_show_what_matters(beside_kmeans: Tab) -> None:
    page = beside_kmeans.page
    moved = page.locator("#drift figure", has_text="How far the latents moved, in units of their spread")
    assert "log scale" in moved.locator("figcaption").inner_text()
    assert moved.locator(".axes text", has_text="100").count() == 1
    follow = page.locator("#drift figure", has_text="unselected codes follow")
    assert "beyond the scale" in follow.locator("figcaption").inner_text()
    assert follow.locator(".clipped text").text_content() == "-40.0"
    assert follow.locator(".clipped .mark").count() == 8
    assert follow.locator(".axes text", has_text="-40").count() == 0
    assert page.locator("#drift figure", has_text="Lost codes that were moved").count() == 1
    assert page.locator("#drift").inner_text().count("Drift fades:") == 1


RISING = [2134, 2739, 2837, 2970, 3078, 3122, 3145, 3157, 3165, 3170]
"""A count: no value of it is an outlier."""


@pytest.mark.parametrize(
    ("values", "seen"), [(RISING, [2134, 3170]), ([-90, *(0.1 * i for i in range(1, 10))], [-0.6, 0.9])]
)
def test_what_lies_far_out_alone_is_clipped(beside_kmeans: Tab, values: list[float], seen: list[float]) -> None:
    series = [{"xs": list(range(len(values))), "ys": values}]
    low, high = beside_kmeans.page.evaluate("(series) => rangeOf(series, { clips: true })", series)
    assert (low, high) == pytest.approx(seen, rel=0.16)  # and a margin


def test_maps_say_how_many_codes_are_under_a_cross(beside_kmeans: Tab) -> None:
    page = beside_kmeans.page
    panel = page.locator("#maps figure", has_text="vanilla VQ")
    assert " dead (collapsed)" in panel.locator("figcaption").inner_text()
    assert int(panel.locator("text.under").first.text_content()) > 5


@pytest.mark.parametrize("sweep", [None, (1024,), (64, 1024, 8192)], ids=["plain", "one place", "sweep"])
def test_usage_is_seen_on_a_phone(browser: Any, tmp_path: Path, sweep: tuple[int, ...] | None) -> None:
    folder = write_comparison(tmp_path / "c", sweep=sweep, seeds=(0,), images=1, size=16, trouble=False)
    tab = Tab(browser, write_report(folder), viewport={"width": 375, "height": 700})
    heading = tab.page.locator("table.results thead th", has_text="Usage").bounding_box()
    box = tab.page.locator("#numbers .scroll").bounding_box()
    assert heading["x"] + heading["width"] <= box["x"] + box["width"]
    tab.close()


def test_one_place_of_a_sweep_has_no_column(browser: Any, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", sweep=(1024,), seeds=(0,), images=1, size=16, trouble=False)
    tab = Tab(browser, write_report(folder))
    headings = tab.page.locator("table.results thead th").all_inner_texts()
    assert [text.split()[0] for text in headings[:3]] == ["Method", "KID", "Usage"]
    assert "codebook size K: 1024" in tab.page.locator("header").inner_text()
    assert "% of the codes used)" in tab.page.locator(".answer").inner_text()
    tab.close()


def test_following_fully_is_on_the_scale_even_if_one_method_alone_does(browser: Any, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", sweep=None, seeds=(0,), images=1, size=16, trouble=False)
    for path in folder.glob("cells/*/metrics.jsonl"):
        text = re.sub(r'(follow_unselected": )[-\d.e]+', r"\g<1>-0.01", path.read_text())
        path.write_text(text.replace("-0.01", "0.9", 1) if path.parent.name.startswith("ns_vq--") else text)
    tab = Tab(browser, write_report(folder))
    follow = tab.page.locator("#drift figure", has_text="unselected codes follow")
    assert "1" in follow.locator(".axes text").all_text_contents()
    assert follow.locator(".clipped .mark").count() == 0
    tab.close()


def test_a_single_run_has_a_page(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run")
    tab = Tab(browser, write_report(run))
    text = tab.page.locator("body").inner_text()
    assert "Training run my run" in text
    assert "After 90 of 120 steps: PSNR 21.50 dB, SSIM 0.500, rFID 80.00." in text
    assert "The codebook is alive: 97.0% of the codes were selected in the last 90 steps of training" in text
    assert "the validation images select 60.0%" in text
    assert not [words for words in ("heading to sort", "★", "every method", "Scale") if words in text]
    assert "driftvq train --size 16 --out 'my run'" in text
    assert tab.page.locator("#strips img").count() == 2 * 3
    assert tab.page.locator("#training figure").count() == 3
    assert tab.page.locator("#drift figure").count() == 2
    once = tab.page.locator("#drift figure", has_text="Lost codes that were moved")
    assert once.locator(".axes .tick").count() == 1  # read once, at step 60, and not at 59.5, 60 and 60.5
    tab.close()


def test_half_a_character_in_a_name_becomes_a_question_mark(tmp_path: Path) -> None:
    write_comparison(tmp_path / "c", sweep=None, seeds=(0,), images=1, size=8, name="x")
    record = tmp_path / "c" / "comparison.json"
    values = json.loads(record.read_text())
    values["title"] = "caf\udce9"
    record.write_text(json.dumps(values))
    assert "caf? · driftvq" in write_report([tmp_path / "c"], tmp_path / "page.html").read_text()
