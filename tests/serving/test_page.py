"""The page in a real browser, with a real server and tiny trained models."""

import base64
import re
import shlex
from contextlib import redirect_stdout
from io import StringIO

import pytest
from browser import chromium, page_of
from playground import running
from tiny import cdcd_main

import cdcd

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, address, request):
    # The browser says of an answer of 400 what the page says too.
    is_refused = request.node.get_closest_marker("refused")
    expected = "status of 400" if is_refused else ""
    with page_of(browser, expected, permissions=["clipboard-read", "clipboard-write"]) as page:
        visit(page, address)
        yield page


def visit(page, where):
    page.goto("about:blank")  # Another fragment alone would load nothing.
    page.goto(where)
    page.locator("#page[data-state=ready]").wait_for()


def column(page, index=0):
    return page.locator(".column").nth(index)


def finish(page, index=0):
    column(page, index).and_(page.locator("[data-state=done]")).wait_for()


def text_of(page, index=0):
    """The text that is shown, without the marks of empty positions."""
    return column(page, index).locator(".tokens").inner_text().replace("·", "").strip()


def choose(page, text, start, end):
    """Writes a text, and selects a part of it."""
    box = page.get_by_label("Text with gaps")
    box.fill(text)
    box.evaluate("(box, [start, end]) => box.setSelectionRange(start, end)", [start, end])
    return box


def slider(page, index=0):
    return column(page, index).get_by_label("Step")


def test_select_a_gap_run_scrub_renoise_and_reload(page, runs):
    """The whole way, which ends in a link that gives the same text, and in commands that do."""
    box = choose(page, "Mia was at the market.", 4, 10)
    page.get_by_role("button", name="Make a gap").click()
    page.locator(".size", has_text="2 tokens").wait_for()
    assert box.input_value() == "Mia [2] the market."
    page.get_by_title("One token more").click()
    page.get_by_role("button", name="Any length").click()
    assert box.input_value() == "Mia [3] the market. [*]"
    set_steps(page, 12)
    page.get_by_role("button", name="Fill the gaps").click()
    finish(page)
    model = cdcd.load(runs["stories"])
    first = model.infill("Mia [3] the market. [*]", num_steps=12)
    assert text_of(page) == first
    given = column(page).locator(".tokens .given")
    assert given.all_inner_texts() == ["Mia", "the", "market", "."]

    # Back to the sixth step; a rival becomes given there.
    slider(page).fill("5")
    assert "step 6 of 12" in slider(page).get_attribute("aria-valuetext")
    column(page).locator(".tokens .token").nth(2).click()
    rival = column(page).locator(".rival").nth(3)
    word = rival.locator(".word").inner_text()
    rival.get_by_role("button").click()
    page.get_by_role("button", name="Re-noise from here").click()
    finish(page)
    changed = text_of(page)
    assert word in given.all_inner_texts()
    assert changed != first

    # With another temperature and new noise, from a later step.
    slider(page).fill("8")
    set_value(page, "score_temperature", "0.5")
    page.get_by_role("button", name="with new noise").click()
    finish(page)
    last, link = text_of(page), page.url
    assert (
        "from step 6: 1 word; then from step 9: new noise, score temperature 0.5"
        in page.locator(".trail").inner_text()
    )
    visit(page, link)
    finish(page)
    assert text_of(page) == last
    column(page).get_by_role("button", name="Copy as command").click()
    column(page).get_by_role("button", name="Copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    check_command(command, last)


def check_command(command, text):
    with redirect_stdout(StringIO()) as printed:
        assert cdcd_main(*shlex.split(command)[1:]) == 0
    assert printed.getvalue() == f"{text}\n"


def set_value(page, name, value):
    """Moves the slider of a setting of the first model."""
    page.locator(f"[data-name={name}]").first.fill(value)


def set_steps(page, count):
    set_value(page, "num_steps", str(count))


@pytest.mark.refused
def test_everything_by_the_keyboard(page, runs):
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the page"
    box = choose(page, "Mia was here", 4, 7)
    box.focus()
    page.keyboard.press("Alt+g")
    page.locator(".size", has_text="1 token").wait_for()
    page.keyboard.press("Alt+ArrowUp")
    page.keyboard.press("Alt+e")
    assert box.input_value() == "Mia [2] here [*]"
    page.keyboard.press("Alt+e")
    page.keyboard.press("Control+Enter")
    column(page).and_(page.locator("[data-state=failed]")).wait_for()
    assert (
        "'here' is not in the model's vocabulary" in column(page).get_by_role("status").inner_text()
    )
    box.fill("Mia [2] home.")
    page.locator("#seed").focus()
    page.keyboard.press("Control+Enter")
    finish(page)
    slider(page).focus()
    page.keyboard.press("Home")
    assert slider(page).input_value() == "0"
    page.keyboard.press("ArrowRight")
    assert slider(page).input_value() == "1"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    assert (
        page.locator(":focus").get_attribute("aria-label").split(",")[0]
        == page.locator(":focus").inner_text()
    )
    page.keyboard.press("Enter")
    assert "Position 2" in column(page).locator(".inspector").inner_text()


def test_compare_two_columns_with_the_baseline(page, runs):
    page.get_by_label("Text with gaps").fill("Mia was [*]")
    page.get_by_label("Compare").check()
    page.locator("#model-1").select_option("baseline")
    page.get_by_role("button", name="Fill the gaps").click()
    finish(page, 0)
    finish(page, 1)
    link, texts = page.url, [text_of(page, 0), text_of(page, 1)]
    assert texts == [
        cdcd.load(runs[name]).infill("Mia was [*]") for name in ("stories", "baseline")
    ]
    # Token by token: halfway, the text ends there.
    slider(page, 1).fill("3")
    assert texts[1].startswith(text_of(page, 1))
    assert len(text_of(page, 1)) < len(texts[1])
    visit(page, link)
    finish(page, 0)
    finish(page, 1)
    assert [text_of(page, 0), text_of(page, 1)] == texts


def test_going_on_from_the_second_column(page, runs):
    """It becomes the only one, with its settings."""
    page.get_by_label("Text with gaps").fill("Mia [4] home. [*]")
    page.get_by_label("Compare").check()
    page.locator("[data-name=score_temperature]").nth(1).fill("0.6")
    page.get_by_role("button", name="Fill the gaps").click()
    finish(page, 0)
    finish(page, 1)
    shown = text_of(page, 1)
    slider(page, 1).fill("2")
    column(page, 1).get_by_role("button", name="Re-noise from here").click()
    finish(page, 0)
    assert column(page, 1).is_hidden()
    assert text_of(page) == shown
    assert page.locator("[data-name=score_temperature]").first.input_value() == "0.6"


def test_translation_and_its_heat_map(page, runs):
    page.get_by_role("tab", name="Translation").click()
    page.get_by_role("button", name="Translate").click()
    page.locator(".translations[data-state=done]").wait_for()
    chosen, link = page.locator(".chosen").inner_text(), page.url
    assert page.locator(".heat tbody tr").count() == 8
    assert page.locator(".heat td.cell").count() == 8 * 9
    translator = cdcd.load_translator(runs["numerals"])
    source = page.get_by_label("Sentence to translate").input_value()
    [expected] = translator.translate([source], num_samples=8)
    assert chosen == (expected or "(nothing)")
    visit(page, link)
    page.locator(".translations[data-state=done]").wait_for()
    assert page.locator(".chosen").inner_text() == chosen


def test_the_replay_is_whole_without_a_server(page, browser, tmp_path):
    page.get_by_label("Text with gaps").fill("Mia [4] home. [*]")
    page.get_by_role("button", name="Fill the gaps").click()
    finish(page)
    shown = text_of(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download replay").click()
    file = tmp_path / "replay.html"
    download.value.save_as(file)
    asked = []
    with page_of(browser, offline=True) as replay:
        replay.on("request", lambda request: asked.append(request.url))
        replay.goto(file.as_uri())
        assert replay.locator(".tokens").inner_text().strip() == shown
        replay.get_by_label("Step").fill("0")
        assert "step 1 of 4" in replay.get_by_label("Step").get_attribute("aria-valuetext")
        replay.locator(".tokens .token").nth(1).click()
        assert replay.locator(".rival").count() == 5
        assert replay.locator(".pin").count() == 0
        assert replay.locator(".recipe").inner_text().startswith("cdcd infill")
    assert asked == [file.as_uri()]


@pytest.mark.refused
def test_what_users_write_is_shown_as_text(page):
    page.get_by_label("Text with gaps").fill("<img src=x onerror=alert(1)> [2]")
    page.get_by_role("button", name="Fill the gaps").click()
    column(page).and_(page.locator("[data-state=failed]")).wait_for()
    assert "'<' is not in the model's vocabulary" in column(page).get_by_role("status").inner_text()
    assert page.locator("img").count() == 0


def test_odd_links_are_as_none(page, address):
    odd = '{"text": "a", "seed": 0, "columns": [null], "changes": [null]}'
    packed = base64.urlsafe_b64encode(odd.encode()).decode()
    for fragment in ("s=%%%", "s=e30", f"s={packed}", "token=", "x"):
        visit(page, f"{address}/#{fragment}")
        assert page.get_by_label("Text with gaps").input_value() == "One sunny day Mia [*]"


def test_a_token_comes_with_the_address_and_stays_out_of_links(browser, models):
    with running(models, token="a-good-token") as address:
        with page_of(browser) as page:
            visit(page, f"{address}/#token=a-good-token")
            assert "token" not in page.url
            page.get_by_role("button", name="Fill the gaps").click()
            finish(page)
            assert "token" not in page.url
        with page_of(browser, "status of 401") as page:
            page.goto(address)
            assert "a token is needed" in page.get_by_role("alert").inner_text()


@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"]
)
def test_names_contrast_and_width(browser, address, options):
    """Every control has a name, text of any certainty can be read, and nothing is wider than the screen."""
    with page_of(browser, **options) as page:
        visit(page, address)
        page.get_by_role("button", name="Fill the gaps").click()
        finish(page)
        column(page).locator(".tokens .token").nth(5).click()
        for control in page.locator(
            "button:visible, input:visible, select:visible, textarea:visible"
        ).all():
            snapshot = control.aria_snapshot()
            assert re.match(r"""- '?\w+ ".+\"""", snapshot), snapshot
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert min(page.locator(".legend .swatch").evaluate_all(CONTRAST)) >= 4.5


CONTRAST = """swatches => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  const light = colours => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return swatches.map(swatch => {
    const style = getComputedStyle(swatch);
    const pair = [light([paper, style.backgroundColor]), light([paper, style.backgroundColor, style.color])];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  });
}"""
