"""Test the page of a comparison in a browser: figures, controls, layout, security and speed."""

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bespokefl import report
from tests.report.chromium import Chromium, chromium
from tests.report.comparisons import document, save
from tests.speed import within

pytestmark = pytest.mark.slow  # they need a browser

HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "<b>bold</b> & <a href='javascript:window.hacked=1'>link</a>",
    "%{x} ${window.hacked=1}",
    "\"quotes\" and 'others'",
    "<!-- <script>",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as one:
        yield one


@pytest.fixture(autouse=True)
def as_usual(browser: Chromium) -> None:
    browser.scripts(True)
    browser.media()
    browser.size(1200)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(save(tmp_path_factory.mktemp("comparison"), document()))


def written(folder: Path, **changes: Any) -> Path:
    return report.write(save(folder, document() | changes))


def scroll_through(browser: Chromium) -> None:
    """Scroll to every figure, because each is drawn only when it comes into view."""
    num = browser.value("document.querySelectorAll('.plot').length")
    for at in range(num):
        come_to(browser, f"document.querySelectorAll('.plot')[{at}]")


def come_to(browser: Chromium, plot: str) -> None:
    """Scroll to a figure until it is drawn; figures above it may move it."""
    scroll = "one.scrollIntoView({block: 'center', behavior: 'instant'})"
    browser.until(f"(one => ({scroll}, one.querySelector('.main-svg') !== null))({plot})")


def figures(browser: Chromium) -> dict[str, Any]:
    """Return the number of points of each figure."""
    script = """Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [
      plot.dataset.key,
      plot.data.reduce((sum, one) => sum + (one.z ? one.z.flat().length : one.x.filter(x => x !== null).length), 0)
    ]))"""
    return dict(browser.value(script))


def hover(browser: Chromium, key: str, x: float, y: float) -> str:
    """Return the label that appears at these coordinates of a figure."""
    come_to(browser, f"document.querySelector('[data-key={key}]')")
    at = browser.value(
        f"""(() => {{
          const plot = document.querySelector('[data-key={key}]'), full = plot._fullLayout;
          const box = plot.getBoundingClientRect(), [across, up] = [full.xaxis, full.yaxis];
          return [box.x + across._offset + across.d2p({x}), box.y + up._offset + up.d2p({y})];
        }})()"""
    )
    browser.point(1, 1)
    browser.point(*at)
    label = f"document.querySelector('[data-key={key}] .hoverlayer').textContent"
    browser.until(f"{label} !== ''")
    return str(browser.value(label))


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (800, "dark"), (1600, "light")])
def test_shows_every_figure_without_errors_and_fits(browser: Chromium, page: Path, width: int, scheme: str) -> None:
    browser.size(width)
    browser.media(scheme=scheme)
    browser.open(page)
    scroll_through(browser)
    drawn = figures(browser)
    general = {"curves", "against-0", "against-1", "size", "histogram", "density", "fairness"}
    inside = {"map", "silhouette", "grid", "teachers", "steps", "latest", "confidence", "makeup", "clusters"}
    assert general <= set(drawn)
    assert {key.rsplit("-", 1)[-1] for key in set(drawn) - general} == inside
    assert all(drawn.values()), drawn
    assert browser.complaints() == []
    assert browser.value("document.scrollingElement.scrollWidth <= innerWidth")
    wide = (
        "[...document.querySelectorAll('.plot')].filter(one => one.getBoundingClientRect().right > innerWidth).length"
    )
    assert browser.value(wide) == 0


def test_makes_no_network_requests(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    assert [one for one in browser.requests() if not one.startswith("data:")] == [page.resolve().as_uri()]
    browser.value("document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'}))")
    browser.until("document.images[document.images.length - 1].complete")
    assert any("Content Security Policy" in one for one in browser.complaints())  # the policy forbids requests


def test_offers_no_upload_of_data(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    offered = browser.value("[...document.querySelectorAll('.modebar-btn')].map(one => one.dataset.title)")
    assert set(offered) == {"Download plot", "Zoom in", "Zoom out", "Reset axes"}


def test_hover_names_the_client(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    one = browser.value(
        "(t => [t.x[0], t.y[0], t.text[0]])(document.querySelector('[data-key=against-0]').data.find(t => t.x.length))"
    )
    said = hover(browser, "against-0", one[0], one[1])
    assert one[2] in said
    assert "training examples" in said


def test_legend_shows_and_hides_in_all_figures(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    curves = "[...new Set(document.querySelector('[data-key=curves]').data.map(one => one.name).filter(Boolean))]"
    bars = "[...new Set(document.querySelector('[data-key=histogram]').data.map(one => one.name))]"
    before = browser.value(curves)
    assert "ucfl" in before and set(before) == set(browser.value(bars))
    chip = browser.value(
        "[...document.querySelectorAll('.chips button')].findIndex(one => one.innerText.trim() === 'ucfl')"
    )
    browser.click(f".chips button:nth-child({chip + 1})")
    assert set(browser.value(curves)) == set(browser.value(bars)) == set(before) - {"ucfl"}
    assert browser.value(f"document.querySelectorAll('.chips button')[{chip}].getAttribute('aria-pressed')") == "false"
    browser.click(f".chips button:nth-child({chip + 1})")
    assert set(browser.value(curves)) == set(before)
    browser.click(".presets button:nth-child(3)")
    assert browser.value(curves) == []
    assert browser.complaints() == []  # empty figures are no error


def test_axis_of_the_curves_can_be_switched(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    last = "document.querySelector('[data-key=curves]').data.find(one => one.name === 'ucfl').x.at(-1)"
    assert browser.value(last) == 10  # rounds
    browser.click("input[value=bytes] + span")
    assert browser.value(last) == 10 * 3000
    silent = "document.querySelector('[data-key=curves]').data.find(one => one.name === 'local')"
    assert browser.value(f"{silent}.y[0] === {silent}.y[1]")  # Local sends nothing: a level line
    assert "local sends nothing" in browser.value("document.querySelector('#curves .summary').textContent")
    browser.click("input[value=time] + span")
    assert browser.value(last) == 50  # T, in the first system
    assert browser.value("document.querySelector('select[name=system]').checkVisibility()")
    choose = (
        "(s => {{ s.value = '{}'; s.dispatchEvent(new Event('change')) }})(document.querySelector('select[name={}]'))"
    )
    browser.value(choose.format(1, "system"))
    assert browser.value(last) == 100


def test_finds_a_client(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    browser.value(
        """(one => { one.value = 'client 7'; one.dispatchEvent(new Event('input')) })(
             document.querySelector('[name=find]'))"""
    )
    said = browser.value("document.getElementById('found').textContent")
    assert "client 7: 59 training examples." in said
    assert "Best method: " in said
    ring = "document.querySelector('[data-key=against-0]').data.at(-1).text"
    assert browser.value(ring) == ["client 7"]


def test_hostile_names_are_only_text(browser: Chromium, tmp_path: Path) -> None:
    made = document(names=HOSTILE + [f"client {at}" for at in range(12 - len(HOSTILE))])
    made["title"] = made["notes"][0] = made["data"]["split"] = HOSTILE[1]
    made["methods"][2]["name"] = made["methods"][2]["about"] = HOSTILE[0]
    made["methods"][3]["failed"], made["methods"][3]["figures"] = HOSTILE[0], None
    path = report.write(save(tmp_path, made))
    browser.open(path)
    scroll_through(browser)
    browser.value("document.getElementById('clients').open = true")
    shown = browser.value("[...document.querySelectorAll('#clients tbody th')].map(one => one.textContent)")
    assert shown[: len(HOSTILE)] == HOSTILE
    assert browser.value("document.title") == HOSTILE[1]
    assert browser.value("document.querySelector('h1').textContent") == HOSTILE[1]
    traces = "document.querySelector('[data-key=against-0]').data"
    for at, name in enumerate(HOSTILE[:4]):
        x, y = browser.value(
            f"""(name => {{
              for (const t of {traces}) {{
                const k = (t.text || []).indexOf(name);
                if (k >= 0) return [t.x[k], t.y[k]];
              }}
            }})({json.dumps(name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))})"""
        )
        assert name in hover(browser, "against-0", x, y), at
    assert browser.value("typeof window.hacked") == "undefined"
    assert browser.value("document.querySelectorAll('main img, .plot a[href]').length") == 0
    assert browser.complaints() == []


def test_reads_without_scripts(browser: Chromium, page: Path) -> None:
    browser.scripts(False)
    browser.open(page)
    text = browser.value("document.body.innerText")
    assert "Best mean".upper() in text.upper()
    assert "2 seeds are too few to conclude about other seeds" in text
    for method in ("local", "fedavg", "selffl", "persfl", "ucfl", "pfedvem", "cfl"):
        assert method in browser.value("document.querySelector('.ranking').innerText")
    assert "The figures below need JavaScript" in text
    assert browser.value("document.querySelector('.legend').checkVisibility()") is False


def test_figures_are_drawn_one_after_the_other(browser: Chromium, page: Path) -> None:
    """Each figure is painted before the next one is drawn, so a visible figure does not wait for others."""
    browser.open(page)
    browser.value(
        """(() => {
          window.steps = [];
          const look = () => {
            const now = document.querySelectorAll('.js-plotly-plot').length;
            if (now !== window.steps.at(-1)) window.steps.push(now);
            requestAnimationFrame(look);
          };
          look();
          document.getElementById('part-1').scrollIntoView({behavior: 'instant'});
        })()"""
    )
    browser.until("document.querySelectorAll('.js-plotly-plot').length >= 3")
    steps = browser.value("window.steps")
    assert all(after - before == 1 for before, after in pairwise(steps)), steps


def test_prints_every_figure_on_white(browser: Chromium, page: Path, tmp_path: Path) -> None:
    browser.media(scheme="dark")
    browser.open(page)
    assert browser.value(
        "document.querySelectorAll('.js-plotly-plot').length < document.querySelectorAll('.plot').length"
    )
    browser.value(
        """addEventListener('beforeprint', () => { window.printed = [...document.querySelectorAll('.plot')].map(
             plot => [plot.data.length, plot._fullLayout.font.color, plot._fullLayout.width]) })"""
    )
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    printed = browser.value("window.printed")
    assert len(printed) == browser.value("document.querySelectorAll('.plot').length")
    assert all(
        num > 0 and ink == "#1c2126" and width <= 640 for num, ink, width in printed
    )  # dark text, although the screen is in dark mode
    assert browser.value("document.querySelector('.plot').layout.font.color") == "#e8eaec"  # restored after printing


def test_follows_the_colour_scheme(browser: Chromium, page: Path) -> None:
    browser.open(page)
    scroll_through(browser)
    ink = "document.querySelector('.plot').layout.font.color"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(ink), browser.value(paper)
    browser.media(scheme="dark")
    browser.until(f"{ink} !== {json.dumps(light[0])}")
    assert browser.value(paper) != light[1]


def test_methods_differ_without_colour(browser: Chromium, tmp_path: Path) -> None:
    others = tuple(f"method {at}" for at in range(18))
    path = report.write(save(tmp_path, document(methods=("local", "fedavg", *others), seeds=1, clients=4, rounds=2)))
    browser.open(path)
    scroll_through(browser)
    browser.click(".presets button:nth-child(2)")
    looks = browser.value(
        """document.querySelector('[data-key=curves]').data.filter(one => one.name)
             .map(one => [one.name, one.marker.symbol, one.line.dash])"""
    )
    assert len({marker for _, marker, _ in looks}) == 20
    own = [dash for name, _, dash in looks if name.startswith("method")]
    assert len(set(own[:6])) == 6  # one for each colour


def test_a_loss_is_better_when_it_is_low(browser: Chromium, tmp_path: Path) -> None:
    made = document(score="loss")
    browser.open(report.write(save(tmp_path, made)))
    scroll_through(browser)
    assert browser.complaints() == []
    points = browser.value("document.querySelector('[data-key=against-0]').data.find(one => one.name === 'better off')")
    assert points["x"] and all(own < other for own, other in zip(points["y"], points["x"], strict=True))
    assert browser.value("document.querySelector('.ranking tbody th .name').innerText") == "cfl"
    assert "Loss" in browser.value("document.querySelector('.ranking thead').textContent")


def test_table_shows_the_results(browser: Chromium, page: Path) -> None:
    made = document()
    best = next(one for one in made["methods"] if one["figures"]["best"])
    found = best["figures"]["accuracy"]
    browser.open(page)
    first = browser.value("document.querySelector('.ranking tbody tr').innerText")
    assert best["name"] in first and "best" in first
    assert f"{100 * found['mean']:.1f}" in first
    assert f"± {100 * found['sem']:.1f}" in first
    assert "{:.1f} to {:.1f}".format(*(100 * end for end in found["interval"])) in first
    tags = browser.value(
        "Object.fromEntries([...document.querySelectorAll('.ranking tr')].filter(one => one.querySelector('.tag'))"
        ".map(one => [one.querySelector('.name').innerText, one.querySelector('.tag').innerText]))"
    )
    texts = {"best": "best mean", "equal": "equal", "unclear": "too few to tell"}
    assert "the interval of the difference is within ±1 point" in browser.value("document.body.innerText")
    relations = {one["name"]: one["figures"]["relation"] for one in made["methods"]}
    assert "unclear" in relations.values()
    assert tags == {name: texts[relation] for name, relation in relations.items() if relation != "worse"}
    assert browser.value("getComputedStyle(document.querySelector('.best .mean')).fontWeight") == "750"


def test_a_comparison_of_an_earlier_version(browser: Chromium, tmp_path: Path) -> None:
    made = document()
    for method in made["methods"]:
        del method["figures"]["relation"]
    for one in made["verdicts"].values():
        del one["conclusive"]
    del made["margin"]
    browser.open(report.write(save(tmp_path, made)))
    tags = browser.value("[...document.querySelectorAll('.ranking .tag')].map(one => one.innerText)")
    assert tags[0] == "best mean" and set(tags[1:]) == {"tie"}
    assert "Best performing".upper() in browser.value("document.body.innerText").upper()


def test_an_unfinished_comparison_shows_the_results_so_far(browser: Chromium, tmp_path: Path) -> None:
    made = document()
    made["finished"] = False
    made["methods"][-1]["runs"], made["methods"][-1]["figures"] = [], None  # not started
    made["methods"][-2]["runs"].pop()
    made["methods"][-2]["runs"][0]["interrupted"] = True
    browser.open(report.write(save(tmp_path, made)))
    said = browser.value("document.querySelector('.warning').innerText")
    assert "11 of 14 runs are available, 1 of them stopped before its last round" in said
    assert "cfl is in no figure because none of its runs is finished yet." in browser.value("document.body.innerText")
    scroll_through(browser)
    assert all(figures(browser).values())
    assert browser.complaints() == []


def test_nothing_finished_yet(browser: Chromium, tmp_path: Path) -> None:
    made = document()
    made["finished"] = False
    for method in made["methods"]:
        method["runs"], method["figures"] = [], None
    made["verdicts"] = {}
    browser.open(report.write(save(tmp_path, made)))
    assert "there is nothing to show" in browser.value("document.body.innerText")
    assert browser.complaints() == []


def test_one_seed_has_no_standard_error(browser: Chromium, tmp_path: Path) -> None:
    browser.open(report.write(save(tmp_path, document(seeds=1))))
    assert "One seed: there is no standard error" in browser.value("document.querySelector('.warning').innerText")
    assert "±" not in browser.value("document.querySelector('.ranking').innerText")
    scroll_through(browser)
    assert browser.complaints() == []


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients(browser: Chromium, tmp_path: Path, clients: int) -> None:
    made = document(methods=("local", "fedavg", "ditto"), seeds=1, clients=3)
    for kind in ("names", "groups", "train", "validation", "test"):
        made["clients"][kind] = made["clients"][kind][:clients]
    made["data"]["clients"] = clients
    for method in made["methods"]:
        for run in method["runs"]:
            run["personal"]["accuracy"] = run["personal"]["accuracy"][:clients]
            run["gain"] = run["gain"] and run["gain"][:clients]
    browser.open(report.write(save(tmp_path, made)))
    scroll_through(browser)
    assert all(figures(browser).values())
    assert browser.complaints() == []


def test_clients_without_test_data_are_left_out(browser: Chromium, tmp_path: Path) -> None:
    made = document()
    for method in made["methods"]:
        for run in method["runs"]:
            run["personal"]["accuracy"][5] = None
            if run["gain"]:
                run["gain"][5] = None
    browser.open(report.write(save(tmp_path, made)))
    scroll_through(browser)
    assert browser.complaints() == []
    shown = "document.querySelector('[data-key=against-0]').data.flatMap(one => one.text || [])"
    assert set(browser.value(shown)) == {f"client {at}" for at in range(12)} - {"client 5"}


def test_a_capture_of_the_whole_page_shows_all_figures(browser: Chromium, page: Path) -> None:
    """Figures that nobody scrolls to are drawn, too: at once in a window that is taller than a screen."""
    blank = "[...document.querySelectorAll('.plot')].filter(one => !one.querySelector('.main-svg')).length"
    browser.size(1200, 12000)
    browser.open(page)
    assert browser.value(blank) == 0
    browser.size(1200)
    browser.open(page)
    browser.until(f"{blank} === 0")  # while the page is idle
    assert browser.complaints() == []


def test_print_media_without_events_draws_all_figures(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.media("print")
    browser.until("document.documentElement.classList.contains('paper')")
    wide = "Math.max(...[...document.querySelectorAll('.plot')].map(one => one.layout ? one.layout.width : 1e9))"
    assert browser.value(wide) <= 640
    browser.media()
    browser.until("!document.documentElement.classList.contains('paper')")


@pytest.mark.alone
def test_a_large_comparison_is_written_and_opened_quickly(browser: Chromium, tmp_path: Path) -> None:
    """20 methods × 5 seeds × 200 clients: written in under 10 s, under 8 MB, open in under 3 s."""
    methods = ("local", "fedavg", "selffl", "persfl", "ucfl", "pfedvem", "cfl", *(f"method {at}" for at in range(13)))
    folder = save(tmp_path, document(methods=methods, seeds=5, clients=200, rounds=100))
    path = within(10, lambda: report.write(folder))
    assert path.stat().st_size < 8e6
    took = []
    while len(took) < 5 and min(took, default=3) >= 3:  # each time with a new browser
        with chromium(watched=False) as fresh:
            fresh.size(1600)
            begun = time.perf_counter()
            fresh.open(path)
            come_to(fresh, "document.querySelector('.plot')")  # with the first figure
            took.append(time.perf_counter() - begun)
    assert min(took) < 3, took
    browser.size(1600)
    browser.open(path)
    scroll_through(browser)
    assert all(figures(browser).values())
    assert browser.complaints() == []
