"""The page of write_report in headless Chromium, opened from disk."""

import json
import shutil
import time

import numpy as np
import pytest

import nmfscale

WIDTHS = 1280, 390
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="needs the programs chromium and chromedriver"
    ),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    counts = nmfscale.datasets.docstrings(["numpy"])
    model = nmfscale.TopicModel(4, random_state=1).fit(counts)
    groups = {
        "half ": np.where(np.arange(counts.shape[0]) % 2, "odd", "even"),
        "initial": [str(name).rpartition(".")[2][0] for name in counts.sample_names],
    }
    groups["half"] = [f"group {i % 300}" for i in range(counts.shape[0])]
    results = [nmfscale.group_effects(model, groups["half "], random_state=0, n_permutations=99)]
    where = tmp_path_factory.mktemp("report") / "report.html"
    return nmfscale.write_report(model, where, counts, groups=groups, results=results)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser, path, width):
    """Open the page at this width, and wait until its charts are drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    deadline = time.monotonic() + 60
    while not browser.execute_script(DRAWN):
        assert time.monotonic() < deadline
        time.sleep(0.05)


DRAWN = """
const chart = Bokeh.documents.map((d) => d.get_model_by_name("structure chart")).find(Boolean);
return chart !== undefined && chart.x_range.end > 2;
"""
LABELS = """
const chart = Bokeh.documents.map((d) => d.get_model_by_name("structure chart")).find(Boolean);
return [...chart.below[0].major_label_overrides.values()];
"""


# Whether the table of features says that it is wider than the page.
WIDE = "return [document.querySelector('#features .scroll').classList.contains('wide')];"
# Whether numbers of topics on the map have distances of a number at least.
NUMBERS_APART = """
const map = Bokeh.documents.map((d) => d.get_model_by_name("map chart")).find(Boolean);
const { x, y, right, down } = map.renderers[1].data_source.data;
const unit = map.inner_height / (map.y_range.end - map.y_range.start);
const at = [...x].map((_, k) => [unit * x[k] + right[k], down[k] - unit * y[k]]);
return at.every((one, i) => at.slice(i + 1).every((other) =>
  Math.abs(one[0] - other[0]) > 12 || Math.abs(one[1] - other[1]) > 10));
"""


def texts(browser, selector):
    from selenium.webdriver.common.by import By

    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, selector)]


def choose(browser, name, value):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.ID, name)).select_by_value(value)


@pytest.mark.parametrize("width", WIDTHS)
def test_opens_without_network_errors_or_overflow(browser, path, width):
    opened(browser, path, width)
    records = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    fetched = [
        each["params"]["request"]["url"]
        for each in records
        if each["method"] == "Network.requestWillBeSent"
    ]
    assert path.as_uri() in fetched
    assert [url for url in fetched if not url.startswith(("file:", "data:"))] == []
    assert [each for each in browser.get_log("browser") if each["level"] != "INFO"] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(WIDE) == [width < 500]
    assert browser.execute_script(NUMBERS_APART)


def test_clicks_do_what_they_say(browser, path):
    from selenium.webdriver.common.by import By

    opened(browser, path, WIDTHS[0])
    assert browser.execute_script(LABELS) == ["even", "odd"]
    choose(browser, "grouping", "1")
    assert len(browser.execute_script(LABELS)) > 10
    choose(browser, "grouping", "2")  # more groups than names have room
    named = len(browser.execute_script(LABELS))
    assert 20 < named < 300 and texts(browser, "#named") == [f"{named} of 300 groups are named."]

    first = texts(browser, "#topic-0 .word")
    choose(browser, "score", "probability")
    frequent = texts(browser, "#topic-0 .word")
    assert frequent[0] != "" and frequent != first
    search = browser.find_element(By.ID, "find")
    search.send_keys(frequent[0])
    shown = [each for each in texts(browser, ".card h3") if each]
    assert any(each.startswith("0 ") for each in shown)
    assert texts(browser, "#found") == [f"in {len(shown)} of 4 topics"]
    assert frequent[0] in texts(browser, "#topic-0 mark")

    features = texts(browser, "#feature-table tbody td:first-child")
    assert len(features) == 25
    browser.find_element(By.CSS_SELECTOR, "#feature-table th:first-child button").click()
    names = texts(browser, "#feature-table tbody td:first-child")
    assert names == sorted(names) and names != features
    heading = browser.find_element(By.CSS_SELECTOR, "#feature-table th:first-child")
    assert heading.get_attribute("aria-sort") == "ascending"
    browser.find_element(By.ID, "filter").send_keys("array")
    assert all("array" in name for name in texts(browser, "#feature-table tbody td:first-child"))

    column = browser.find_element(By.CSS_SELECTOR, "#groups th:nth-child(2) button")
    column.click()
    means = [float(each) for each in texts(browser, "#groups td:nth-child(2)")]
    assert means == sorted(means)
    column.click()
    assert [float(each) for each in texts(browser, "#groups td:nth-child(2)")] == means[::-1]


def test_keyboard_reaches_the_controls(browser, path):
    from selenium.webdriver.common.keys import Keys

    opened(browser, path, WIDTHS[0])
    reached = set()
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(browser.switch_to.active_element.get_attribute("id"))
    assert {"grouping", "score", "find", "filter"} <= reached


def test_hundred_thousand_samples_are_a_small_file(tmp_path):
    rng = np.random.default_rng(0)
    counts, _ = nmfscale.datasets.simulate_topic_counts(1000, 2000, 20, random_state=0)
    model = nmfscale.TopicModel(20, random_state=0, max_iter=2, tol=0).fit(counts)
    model.loadings_ = rng.dirichlet(np.ones(20), 100_000)
    model.sample_totals_ = rng.integers(100, 1000, 100_000)
    groups = {f"group {g}": rng.integers(0, 30, 100_000).astype(str) for g in range(5)}
    path = nmfscale.write_report(model, tmp_path / "report.html", groups=groups)
    assert path.stat().st_size < 5e6
