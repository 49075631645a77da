"""The report as a browser shows it: headless Chromium finds what it should, and has nothing to complain about."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledgers import settings, write_sweep

from jaxagent.report import analysis, page, study

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs the Debian packages chromium and chromium-driver")

HOSTILE = ["<script>document.title = 'taken'</script>", "<img src=x onerror=\"document.title = 'taken'\">", "</svg>", "x" * 400]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(DRIVER)) as driver:
        yield driver


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def fails(setting: Any, seed: int) -> str | None:
        return HOSTILE[0] if setting["learner.lr"] > 1e-2 else None

    directory = tmp_path_factory.mktemp("browser")
    trials = [one | {"env.level": HOSTILE[i % len(HOSTILE)]} for i, one in enumerate(settings(80))]
    return written(write_sweep(directory / HOSTILE[1], trials, fails=fails), directory / "page.html")


def written(sweep: Path, out: Path) -> Path:
    read = study.read([sweep])
    page.write(read, analysis.analyse(read), out)
    return out


def opened(browser: Any, path: Path) -> Any:
    browser.get_log("browser")  # of the page before
    browser.get(path.as_uri())
    return browser


def all_of(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def shown_rows(browser: Any) -> list[Any]:
    return [row for row in all_of(browser, "#leaderboard tbody tr") if row.is_displayed()]


def test_the_page_shows_table_and_figures(browser: Any, report: Path) -> None:
    opened(browser, report)
    assert len(all_of(browser, "#leaderboard tbody tr")) == 80
    for name in ("intervals", "curves", "parallel", "importance"):
        (svg,) = all_of(browser, f"#figure-{name} svg")
        assert svg.is_displayed() and svg.size["width"] > 300 and svg.size["height"] > 100
    assert len(all_of(browser, "#failures tbody tr")) >= 5
    assert len(all_of(browser, "#reproduce pre")) == 5
    assert all_of(browser, "#answer .badge")[0].text in ("Yes", "Not yet")
    assert browser.get_log("browser") == []
    assert HOSTILE[1] in browser.title and not all_of(browser, "img")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_answer_is_on_the_first_screen(browser: Any, report: Path) -> None:
    opened(browser, report)
    height = browser.execute_script("return innerHeight")
    for selector in (".best", ".badge", "#figure-intervals svg", "#leaderboard thead"):
        assert all_of(browser, selector)[0].rect["y"] + 20 < height


def test_columns_sort_and_the_rest_is_shown_on_demand(browser: Any, report: Path) -> None:
    opened(browser, report)
    assert len(shown_rows(browser)) == 20
    all_of(browser, "#leaderboard .more")[0].click()
    assert len(shown_rows(browser)) == 80
    (lr,) = [head for head in all_of(browser, "#leaderboard th") if head.get_attribute("title") == "learner.lr"]
    column = browser.execute_script("return arguments[0].cellIndex + 1", lr)
    for order, sign in (("ascending", 1), ("descending", -1)):
        lr.find_element("tag name", "button").click()
        assert lr.get_attribute("aria-sort") == order
        cells = all_of(browser, f"#leaderboard tbody td:nth-child({column})")
        values = [sign * float(cell.get_attribute("data-value")) for cell in cells]
        assert values == sorted(values)
    all_of(browser, "#leaderboard th:nth-child(2) button")[0].click()
    scores = [cell.get_attribute("data-value") for cell in all_of(browser, "#leaderboard tbody td:nth-child(2)")]
    known = [float(score) for score in scores if score]
    assert known == sorted(known) and not any(scores[len(known) :])  # those without one stay last
    assert browser.get_log("browser") == []


def test_a_row_under_the_pointer_marks_its_lines(browser: Any, report: Path) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, report)
    third = all_of(browser, '#leaderboard tr[data-place="3"]')[0]
    ActionChains(browser).move_to_element(third.find_element("css selector", "td")).perform()
    marked = all_of(browser, ".setting.hot")
    assert {line.get_attribute("data-place") for line in marked} == {"3"}
    assert len(marked) >= 5  # the interval, four curves, the parallel coordinates
    ActionChains(browser).move_to_element(all_of(browser, "h1")[0]).perform()
    assert not all_of(browser, ".setting.hot")


@pytest.mark.parametrize("width", [320, 375, 768, 1280, 1920])
def test_nothing_sticks_out_of_the_page(browser: Any, report: Path, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened(browser, report)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        inside = browser.execute_script(
            "return [...document.querySelectorAll('section, header, .wide, pre, p')].every("
            "e => e.getBoundingClientRect().right <= innerWidth + 0.5 && e.getBoundingClientRect().left >= -0.5)"
        )
        assert inside
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_sweep_in_which_all_failed(browser: Any, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", settings(4), fails=lambda setting, seed: "not finite")
    opened(browser, written(sweep, tmp_path / "page.html"))
    assert all_of(browser, ".best")[0].text == "No setting has a score"
    assert all_of(browser, ".badge")[0].text == "Cannot be told"
    assert len(all_of(browser, "#failures tbody tr")) == 4 and not all_of(browser, "#reproduce")
    assert browser.get_log("browser") == []
