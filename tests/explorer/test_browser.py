"""The explorer in Chromium: slider, keys, a click on a value, light and dark, small and large."""

import re
import shutil

import pytest
from exploring import HOSTILE, exploring, fill

pytestmark = pytest.mark.process
TABLES = ("explored.customer", "explored.orders", "rawcore.rc_c_hist", "explored.dbt_orders", "odf.cities")
KEYS = {"odf.cities": "Bern"}


@pytest.fixture(scope="module")
def explorer(spark, warehouse, tmp_path_factory):
    from backstory.stores.iceberg.store import IcebergStore

    fill(IcebergStore(spark), tmp_path_factory.mktemp("explored"))
    with exploring(warehouse) as client:
        yield client


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "chromium is not installed: scripts/setup.sh --tests"
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, and the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, explorer):
    """Open a page of the explorer. At the end, no page may have had an error."""
    faults, contexts = [], []

    def open_(path, width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda message: faults.append(message.text) if message.type in {"error", "warning"} else None,
        )
        page.on("pageerror", lambda stop: faults.append(str(stop)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.goto(explorer.base + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not faults


@pytest.mark.parametrize("table", TABLES)
def test_links_lead_from_tables_to_a_record_and_its_values(opened, table):
    page = opened("/")
    page.get_by_role("link", name=table, exact=True).click()
    page.locator("table.rows tbody tr").first.get_by_role("link").click()
    page.wait_for_selector("figure.life svg")
    page.locator("a.blame").last.click()
    page.wait_for_selector("dl.story:has-text('Rows in this commit'), dl.story:has-text('expired')")


def test_the_slider_keeps_its_time_in_the_address(opened):
    page = opened("/table?table=explored.customer")
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_url(re.compile("at=2026-01-01T"))
    page.wait_for_selector("text=Dan")
    assert page.locator("td.changed").count() == 0
    for day in ("2026-02-01", "2026-03-01"):
        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_url(re.compile(f"at={day}T"))
    page.wait_for_selector("tr.new")
    assert page.locator("td.changed").count() == 2
    page.reload()
    assert page.locator("tr.new").count() == 1


def test_arrow_keys_lead_to_the_previous_and_next_change(opened):
    page = opened("/table?table=explored.customer")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("at=2026-04-01T"))
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("at=2026-03-01T"))
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("at=2026-04-01T"))
    page.go_back()
    page.wait_for_url(re.compile("at=2026-03-01T"))


def test_a_table_can_be_opened_with_only_the_keyboard(opened):
    page = opened("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(600):  # earlier tests may have left tables
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "explored.customer":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("table=explored.customer"))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/table?table=explored.customer",
        "/record?table=explored.customer&key=2",
        "/diff?table=explored.customer",
    ],
)
def test_page_controls_have_names_for_screen_readers(opened, path):
    page = opened(path)
    assert page.locator("html[lang]").count() == 1
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    controls = page.locator("input:visible, button:visible, a:visible, svg[role=img]")
    assert controls.count()
    assert not controls.evaluate_all(NAMELESS)
    assert page.locator("th:not([scope]), th[scope='']").count() == 0


NAMELESS = """all => all.filter(
  e => !((e.labels && e.labels.length) || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"""


PAGES = (
    "/",
    "/table?table=explored.customer",
    "/record?table=explored.customer&key=5",
    "/diff?table=explored.customer",
    "/check?table=explored.customer",
    "/value?table=explored.customer&key=5&column=name",
    "/table?table=no.such",
)


def test_no_page_is_wider_than_its_window(chromium, explorer):
    context = chromium.new_context()
    page = context.new_page()
    for path in PAGES:
        page.goto(explorer.base + path)
        for width in (360, 3840):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    context.close()


def test_hostile_values_are_shown_and_do_nothing(opened):
    page = opened("/record?table=explored.customer&key=5")
    assert HOSTILE[0] in page.locator("table.rows").inner_text()
    page = opened("/table?table=explored.customer")
    assert HOSTILE[0] in page.locator("table.rows").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_with_its_background(opened, scheme):
    """Contrast is AA, 4.5 to 1, for every visible text."""
    for path in (
        "/table?table=explored.customer&at=2026-03-15",
        "/record?table=explored.customer&key=2",
        "/check?table=explored.customer",
    ):
        page = opened(path, color_scheme=scheme)
        low = page.evaluate(CONTRASTS)
        assert not low, low


CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll('main *, header *, footer')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('svg, .unseen, .skip') || !e.getClientRects().length) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([e.outerHTML.slice(0, 80), ratio]);
  }
  return low;
}"""


def test_a_saved_history_opens_offline_without_scripts(opened, explorer, chromium, tmp_path):
    page = opened("/record?table=explored.customer&key=5")
    with page.expect_download() as download:
        page.get_by_role("link", name="Save this record as one file").click()
    file = tmp_path / "life.html"
    download.value.save_as(file)
    context = chromium.new_context(java_script_enabled=False, offline=True)
    alone = context.new_page()
    alone.goto(file.as_uri())
    assert alone.locator("svg").is_visible()
    assert HOSTILE[0] in alone.locator("table.rows").inner_text()
    context.close()


def test_a_copied_text_is_in_the_clipboard(opened):
    page = opened("/check?table=explored.customer", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy for Command line").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "backstory check explored.customer"
