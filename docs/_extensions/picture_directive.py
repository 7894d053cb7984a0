"""The directive `picture`: a picture that Matplotlib draws for this page, for light and for dark.

``{picture} norms.layer`` calls the function `layer` of `docs/pictures/norms.py`, which returns a
figure. The option `alt` says what is to be seen, and the content is the caption.
"""

import importlib
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

COMMON = {
    "font.size": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "svg.hashsalt": "numnorm",  # the same file every time
}
INKS = {"light": "#222832", "dark": "#ced6dd"}
INKED = ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"]
# Blue, red, green, purple and grey, after Okabe and Ito: told apart with any colour vision.
COLORS = {
    "light": ["#0072B2", "#D55E00", "#009E73", "#B5578A", "#8A8A8A"],
    "dark": ["#56B4E9", "#EB8544", "#2DBE94", "#DFA0C5", "#8A8A8A"],
}


class Picture(SphinxDirective):
    """Draws a picture twice, and shows the one for the reader's theme."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"alt": directives.unchanged_required}

    def run(self):
        """Return a figure with both pictures."""
        name, *arguments = self.arguments[0].split()
        module, function = name.rsplit(".", 1)
        pictures = importlib.import_module(f"pictures.{module}")
        self.env.note_dependency(pictures.__file__)
        # The theme hides a caption beside a hidden picture, so pictures have a parent of their own.
        both = nodes.container()
        for theme in INKS:
            path = saved(self.env.srcdir, module, function, theme, arguments)
            both += nodes.image(uri=path, alt=self.options["alt"], classes=[f"only-{theme}"])
        figure = nodes.figure("", both)
        if self.content:
            caption = nodes.Element()
            self.state.nested_parse(self.content, self.content_offset, caption)
            figure += nodes.caption("", "", *caption[0].children)
        return [figure]


def saved(source, module, function, theme, arguments=()):
    """Draw a picture for a theme in the folder `generated/pictures`, and return its path there."""
    import matplotlib

    path = f"/generated/pictures/{'-'.join([f'{module}.{function}', *arguments, theme])}.svg"
    file = Path(source, path[1:])
    file.parent.mkdir(parents=True, exist_ok=True)
    style = COMMON | dict.fromkeys(INKED, INKS[theme])
    style["axes.prop_cycle"] = matplotlib.cycler(color=COLORS[theme])
    draw = getattr(importlib.import_module(f"pictures.{module}"), function)
    with matplotlib.rc_context(style):
        draw(*arguments).savefig(file, format="svg", metadata={"Date": None})
    return path


def setup(app):
    """Register the directive."""
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
