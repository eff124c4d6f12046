"""The site that `notebooks/website.py` builds: every link leads somewhere, a search finds names and lessons."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import layerdiv_tl as ld

WEBSITE = Path(__file__).parents[1] / "notebooks" / "website.py"


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.links, self.loaded, self.anchors = set(), set(), set()
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        self.anchors |= {held[name] for name in ("id", "name") if held.get(name)}
        if tag == "a" and "href" in held:
            self.links.add(held["href"])
        elif "src" in held or (tag == "link" and "href" in held):
            self.loaded.add(held.get("src") or held["href"])
        if "srcset" in held:
            self.loaded.add(held["srcset"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Without the notebooks' outputs, which take minutes and hold no links."""
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, WEBSITE, "--no-outputs", "--out", str(out)], check=True)
    return out


@pytest.mark.full
def test_every_link_and_anchor_leads_somewhere(site):
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert {"index.html", "CONTRIBUTING.html", "CHANGELOG.html"} <= {path.name for path in pages}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if link.startswith(("https://", "mailto:")):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, "\n".join(broken)


@pytest.mark.full
def test_pages_load_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for address in Page(path.read_text(encoding="utf-8")).loaded:
            assert address.startswith("data:") or (path.parent / address).is_file(), f"{path.name}: {address}"


@pytest.mark.full
def test_the_search_has_every_public_name_and_lesson(site):
    listed = re.search(r"const SECTIONS = (\[\[.*\]\]);", (site / "index.html").read_text(encoding="utf-8"))
    titles = {title for _, title, _ in json.loads(listed[1])}
    assert {f"layerdiv_tl: {name}" for name in set(dir(ld)) - {"depth", "zoo"}} <= titles
    assert {f"layerdiv_tl.depth: {name}" for name in ld.depth.__all__} <= titles
    assert any("heads" in title for title in titles)


@pytest.mark.full
def test_members_stand_with_their_class(site):
    anchors = Page((site / "reference/layerdiv_tl.html").read_text(encoding="utf-8")).anchors
    assert {"Task.frame", "Task.select", "Grid.run", "Grid.frame"} <= anchors


@pytest.mark.full
def test_the_front_page_searches_in_a_browser(site, browser):
    with browser.open(site / "index.html") as opened:
        opened.page.fill("#search", "drop_plan")
        opened.page.wait_for_selector("#found a")
        first = opened.page.locator("#found a").first
        assert "drop_plan" in first.text_content()
        assert first.get_attribute("href") == "reference/layerdiv_tl/depth.html#drop_plan"
        opened.page.fill("#search", "<img src=x onerror=alert(1)>")
    assert [word for word in opened.complaints if "ERR_FAILED" not in word] == []
    assert {Path(request).parent.name for request in opened.requests} <= {"assets"}  # pictures beside the page
