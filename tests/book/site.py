"""Checks the site that mdBook has built: each link within it leads to a file, and to an id of that file.

    python3 tests/book/site.py FOLDER
"""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name"):
                self.ids.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.append(value)


folder = Path(sys.argv[1]).resolve()
# The printed book has all pages in one, and 404.html is served at any path.
pages = {path: Page(path) for path in folder.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")}
faults, count = [], 0
for path, page in pages.items():
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        count += 1
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        where = path.relative_to(folder)
        if not target.is_relative_to(folder) or not target.is_file():
            faults.append(f"{where}: {link}: no such file")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            faults.append(f"{where}: {link}: no such id")
if len(pages) < 20 or count < 100:
    faults.append(f"only {len(pages)} pages with {count} links: that is no book")
print("\n".join(faults) or f"{len(pages)} pages, {count} links: none leads nowhere")
sys.exit(bool(faults))
