"""The configuration of the site; `nox -s docs` builds it in `docs/_build/html`."""

import importlib.util
import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS)]
# Examples that time nothing; and a page must not depend on how many processors built it.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

from pictures import start
from sphinx_gallery.sorting import FunctionSortKey

import numnorm

project = "numnorm"
author = "numnorm developers"
copyright = "numnorm developers, BSD-3-Clause"
version = release = numnorm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "gallery_pictures",
    "picture_directive",
]
exclude_patterns = [
    *("_build", "_extensions", "_templates", "pictures", "gallery", "generated/gallery/*.md5"),
    *("decisions/README.md", "generated/gallery/sg_execution_times.rst", "sg_execution_times.rst"),
]
templates_path = ["_templates"]
default_role = "autolink"
nitpicky = True
suppress_warnings = ["config.cache"]

# Markdown

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 3
myst_substitutions = start.numbers()  # on the start page

# What stands elsewhere in the repository, and the page of the site that has it.
PAGES = [
    (r"\]\((\.\./)*CONTRIBUTING\.md", "](/contributing.md"),
    (r"\]\((\.\./)*CHANGELOG\.md", "](/changelog.md"),
    (r"\]\((\.\./)*SECURITY\.md", "](/security.md"),
    (r"\]\((\.\./)*CODE_OF_CONDUCT\.md", "](/code_of_conduct.md"),
    (r"\]\((?:\.\./|docs/)*decisions/README\.md", "](/decisions/index.md"),
    (r"\]\(gallery/(\w+)\.py\)", r"](/generated/gallery/\1.rst)"),
    (r"\]\((?:\.\./)*asv_benchmarks/peers/results/peers\.md", "](/performance/tables/zen5.md"),
]

# What is written in paper.md as the Journal of Open Source Software wants it: sections of the first
# level, references that a file beside it has, and files of pictures, which the site draws.
PAPER = [
    (r"(?m)^# References$", "## References\n\nThe references are in [paper.bib](paper.bib)."),
    (r"(?m)^# ", "## "),
    (r"@([A-Z][A-Za-z]+)(\d{4})", r"\1 \2"),
    (r"!\[([^\]\n]+)\]\(pictures/([\w.]+)\.png\)", r"```{picture} \2\n:alt: \1\n\n\1\n```"),
]

# A doctest ends with an empty line, which a block of code does not show.
LAST_LINE = re.compile(r"^(```python\n.*?)\n\n```$", re.DOTALL | re.MULTILINE)


def _to_pages(app, name, source):
    """Turn links to files of the repository into links to pages."""
    for pattern, page in [*PAGES, *(PAPER if name == "paper" else [])]:
        source[0] = re.sub(pattern, page, source[0])
    source[0] = LAST_LINE.sub(r"\1\n```", source[0])


def _to_included_pages(app, path, name, source):
    _to_pages(app, name, source)


# The reference

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
# Other libraries, whose documentation is not at hand without a network; and fields, below.
nitpick_ignore_regex = [
    ("py:obj", r"(numba|numpy|sklearn)\..*"),
    ("py:obj", "forward|m2|mean|momentum|saved"),
]


def _skip(app, what, name, obj, skip, options):
    """Leave out methods of other libraries, and fields, which the docstrings describe."""
    if what != "class":
        return None
    is_own = str(getattr(obj, "__module__", None)).startswith("numnorm")
    return True if skip or not is_own or type(obj).__name__ == "_tuplegetter" else None


# The gallery: an example runs where its library is installed by the extra `docs`, or was before.

RUNS = {  # in the order of the gallery
    "snv_spectra": "matplotlib",
    "robust_columns": "sklearn",
    "spectra_pls": "chemotools",
    "cmvn_utterance": "matplotlib",
    "climatology": "xarray",
    "eeg_standardization": "matplotlib",
    "irregular_times": "pandas",
    "hampel_filter": "matplotlib",
    "streaming_statistics": "matplotlib",
    "streamed_quantiles": "matplotlib",
    "reversible_norm": "matplotlib",
    "sparse_counts": "matplotlib",
    "digits_batch_sizes": "matplotlib",
    "digits_convolutions": "sklearn",
    "batch_norm_averages": "sklearn",
    "square_corners": "matplotlib",
    "lstm_characters": "matplotlib",
    "lstm_ragged_online": "matplotlib",
    "invariances": "matplotlib",
    "detach_gradients": "matplotlib",
    "detached_depths": "matplotlib",
    "transformer_block": "matplotlib",
    "njit_pipeline": "matplotlib",
    "jax_gradient": "jax",
    "torch_autograd": "torch",
}
_runnable = [name for name, needed in RUNS.items() if importlib.util.find_spec(needed)]
# Not run: they start processes of their own, or need a GPU.
SHOWN = ["dask_cluster", "mpi_batch_norm", "fused_layer_norm"]
_order = [f"{name}.py" for name in [*RUNS, *SHOWN]]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": rf"/({'|'.join(_runnable)})\.py" if _runnable else r"(?!)",
    "image_scrapers": "gallery_pictures.save",
    "reset_modules": ("matplotlib", "gallery_pictures.style"),
    "within_subsection_order": FunctionSortKey(_order.index),
    "default_thumb_file": str(DOCS / "_static" / "favicon.svg"),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "write_computation_times": False,
    "min_reported_time": 10_000,
}

# What a reader sees

html_theme = "pydata_sphinx_theme"
html_title = "numnorm"
# The whole of MathJax, with the outlines of its fonts: a page asks the network for nothing.
_mathjax = importlib.util.find_spec("mathjax").submodule_search_locations[0]
html_static_path = ["_static", f"{_mathjax}/static/mathjax/es5/tex-svg.js"]
mathjax_path = "tex-svg.js"
html_css_files = ["numnorm.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_search_scorer = str(DOCS / "_extensions" / "search_scorer.js")
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "numnorm"},
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Pages without pages below them.
html_sidebars = {name: [] for name in ("index", "choosing", "recurrent", "numerics", "install")}


def setup(app):
    """Connect what is above to Sphinx."""
    app.connect("source-read", _to_pages)
    app.connect("include-read", _to_included_pages)
    app.connect("autodoc-skip-member", _skip)
