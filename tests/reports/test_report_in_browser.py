"""The report in a real browser: it loads alone, sorts, filters, prints, and fits narrow screens.

Needs the extra `browser` and a Chromium: `$CHROMIUM`, or `/usr/bin/chromium`.
"""

import os
import re

import pytest
import synthetic_study as synthetic

from sparsemlp.figures import Chosen, draw_figures, render
from sparsemlp.reports.report import Picture, write_report

pytestmark = pytest.mark.browser
small = synthetic.small

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def address(small, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    pictures = []

    def take(drawing):
        svg = render(drawing.figure, "svg")
        pictures.append(Picture(drawing.name, drawing.caption, svg))

    lacking = draw_figures(small, Chosen(), take)
    write_report(small, pictures, lacking, out)
    return out.as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        with playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS) as browser:
            yield browser


@pytest.fixture
def open_page(browser, address):
    """Opens the report; whatever it asks of the network or complains about fails the test."""
    contexts, requests, complaints = [], [], []

    def open_it(**options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints
    assert not [url for url in requests if not url.startswith("data:") and url != address]


def column(page, key: str) -> list[str]:
    return page.locator(f'#table tbody tr:visible td[data-key="{key}"]').all_inner_texts()


def sort_by(page, heading: str) -> None:
    page.get_by_role("button", name=heading, exact=True).click()


def test_every_figure_is_visible(open_page):
    page = open_page()
    pictures = page.locator("figure img")
    assert pictures.count() == 13
    for index in range(pictures.count()):
        picture = pictures.nth(index)
        assert picture.is_visible()
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 200
        assert picture.get_attribute("alt")


def test_a_click_sorts_numbers_as_numbers_and_gaps_to_the_end(open_page):
    page = open_page()
    sort_by(page, "top-1")
    up = column(page, "test_top1")
    assert up[-1] == ""
    values = [float(text.removesuffix("%")) for text in up if text]
    assert values == sorted(values)
    heading = page.locator("#table th", has_text=re.compile(r"^top-1$"))
    assert heading.get_attribute("aria-sort") == "ascending"
    sort_by(page, "top-1")
    down = column(page, "test_top1")
    assert [float(text.removesuffix("%")) for text in down if text] == values[::-1]
    assert down[-1] == ""
    sort_by(page, "block")
    blocks = [text for text in column(page, "block") if text]
    assert list(dict.fromkeys(blocks)) == ["1x8", "2x2", "32x32"]


def test_the_filter_keeps_rows_that_have_all_words(open_page):
    page = open_page()
    page.locator("#filter").fill("32x32 MASKED 0.8")
    names = column(page, "name")
    assert names == ["32x32-0.8-masked-seed0", "32x32-0.8-masked-seed1"]
    assert page.locator("#count").inner_text() == "2 of 38 runs"
    page.locator("#filter").fill("")
    assert len(column(page, "name")) == 38


def test_a_button_of_the_table_is_reached_and_pressed_by_keyboard(open_page):
    page = open_page()
    page.get_by_role("button", name="seed", exact=True).focus()
    page.keyboard.press("Enter")
    assert column(page, "seed") == sorted(column(page, "seed"))


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(open_page, width, scheme):
    page = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate(OVERFLOW) <= 0
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate(OVERFLOW) <= 0


def brightness(page, what: str) -> float:
    color = page.evaluate(f"getComputedStyle(document.body).{what}")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", color)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_colours_of_the_system(open_page, scheme, is_dark):
    page = open_page(color_scheme=scheme)
    back, text = brightness(page, "backgroundColor"), brightness(page, "color")
    assert (back < text) is is_dark
    assert abs(back - text) > 0.7


def test_paper_is_white_and_complete_without_controls(open_page):
    page = open_page(color_scheme="dark", viewport={"width": 703, "height": 1030})
    page.emulate_media(media="print")
    assert brightness(page, "backgroundColor") > 0.99
    assert not page.locator("#filter").is_visible()
    assert page.evaluate(OVERFLOW) <= 0
    right = "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    assert page.locator("#table, figure img").evaluate_all(right) <= 703
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_it_is_whole_without_javascript(open_page):
    page = open_page(java_script_enabled=False)
    assert len(column(page, "name")) == 38
    assert not page.locator("#filter").is_visible()
    assert page.locator("figure img").count() == 13
