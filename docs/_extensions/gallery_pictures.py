"""Pictures of the gallery: those that an example draws, for light and for dark.

The first of them is also shown below the first paragraph, so that a page begins with what it shows.
"""

from pathlib import Path

from docutils import nodes
from picture_directive import COLORS, COMMON, INKED, INKS, saved
from pictures import runs

STYLE = COMMON | dict.fromkeys(INKED, INKS["light"]) | {"figure.constrained_layout.use": True}


def style(gallery_conf, name):
    """Let Matplotlib draw as on the other pages; called before each example."""
    import matplotlib

    colors = matplotlib.cycler(color=COLORS["light"])
    matplotlib.rcParams.update(STYLE | {"axes.prop_cycle": colors})


def save(block, block_vars, gallery_conf):
    """Save the open figures twice, and return the directives that show them."""
    from matplotlib import pyplot

    directives = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        path = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
        figure.savefig(path, format="svg", metadata={"Date": None})
        dark = path.with_stem(f"{path.stem}_dark")
        dark.write_text(darkened(path.read_text("utf-8")), "utf-8")
        for theme, file in (("light", path), ("dark", dark)):
            uri = "/" + file.relative_to(gallery_conf["src_dir"]).as_posix()
            options = f"   :alt: {described(figure)}\n   :class: only-{theme}"
            directives.append(f".. image:: {uri}\n{options}\n")
    pyplot.close("all")
    return "\n".join(directives)


def described(figure):
    """Return what the figure shows: its label, or the titles and labels of its axes."""
    if figure.get_label():
        return figure.get_label()
    words = [axes.get_title() or axes.get_ylabel() for axes in figure.axes]
    return ", ".join(dict.fromkeys(" ".join(word.split()) for word in words if word))


def darkened(svg):
    """Return the picture with the colors for a dark background."""
    pairs = zip([INKS["light"], *COLORS["light"]], [INKS["dark"], *COLORS["dark"]], strict=True)
    for light, dark in pairs:
        svg = svg.replace(light.lower(), dark.lower())
    return svg


def show_first(app, doctree):
    """Show the first picture of an example, light and dark, below the first paragraph, too."""
    folder, _, name = app.env.docname.rpartition("/")
    if folder != app.config.sphinx_gallery_conf["gallery_dirs"]:
        return
    first = [f"sphx_glr_{name}_001{theme}.svg" for theme in ("", "_dark")]
    images = [
        image.deepcopy()
        for image in doctree.findall(nodes.image)
        if image["uri"].rpartition("/")[2] in first
    ]
    for section in doctree.findall(nodes.section):
        after = section.first_child_matching_class(nodes.paragraph) + 1
        section[after:after] = images
        return


def draw_runs(app):
    """Draw the pictures of the pages that are not run, before the gallery takes its thumbnails."""
    for name in runs.NAMES:
        saved(app.srcdir, "runs", name, "light")


def setup(app):
    """Connect what changes the pages of the gallery."""
    app.connect("builder-inited", draw_runs, priority=1)
    app.connect("doctree-read", show_first)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
