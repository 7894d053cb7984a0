"""Pictures of the gallery: those that an example draws, for light and for dark."""

from pathlib import Path

from picture_directive import COLORS, COMMON, INKED, INKS

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
