"""What says how to cite, report and release: it agrees with the package, and readers find it."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import numnorm

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# Each file, and the page of the site that shows or links it.
FILES = {
    "CITATION.cff": "../CITATION.cff",
    "SECURITY.md": "security",
    "CODE_OF_CONDUCT.md": "code_of_conduct",
    "docs/releasing.md": "releasing",
    "docs/paper.md": "paper",
}


def text_of(name):
    return (ROOT / name).read_text("utf-8")


def constant(source, name):
    """The value of a constant of a file that is not imported here."""
    (value,) = [
        node.value
        for node in ast.parse(text_of(source)).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return ast.literal_eval(value)


def test_versions_agree():
    heading = r"^## \[(\d[^]]*)\](?: - (\d{4}-\d\d-\d\d))?$"
    version, date = re.search(heading, text_of("CHANGELOG.md"), re.MULTILINE).groups("")
    citation = yaml.safe_load(text_of("CITATION.cff"))
    recipe = yaml.safe_load(text_of("conda.recipe/recipe.yaml"))
    assert str(citation["version"]) == numnorm.__version__ == version
    assert str(citation.get("date-released", "")) == date
    assert recipe["context"]["version"] == numnorm.__version__


def test_citation_agrees_with_the_package():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert {"message", "title"} <= set(citation)


def test_recipe_agrees_with_the_package():
    recipe = yaml.safe_load(text_of("conda.recipe/recipe.yaml"))
    oldest = recipe["context"]["python_min"]
    needed = [re.sub(r"(?=>=)", " ", name) for name in PROJECT["dependencies"]]
    python, *others = recipe["requirements"]["run"]
    assert (python, f">={oldest}") == ("python >=${{ python_min }}", PROJECT["requires-python"])
    assert sorted(others) == sorted(needed)
    (script,) = recipe["build"]["python"]["entry_points"]
    assert script == " = ".join(*PROJECT["scripts"].items())


def test_classifiers_name_the_versions_of_python_that_are_tested():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == constant("noxfile.py", "PYTHONS")
    assert f">={named[0]}" == PROJECT["requires-python"]
    assert all(name in text_of("docs/install.md") for name in named)


def test_hosted_runners_have_the_oldest_and_the_newest_python():
    jobs = yaml.safe_load(text_of(".github/workflows/checks.yml"))["jobs"]
    pythons = constant("noxfile.py", "PYTHONS")
    assert jobs["tests"]["strategy"]["matrix"]["python"] == [pythons[0], pythons[-1]]
    for job in ("tests", "installed"):
        systems = jobs[job]["strategy"]["matrix"]["os"]
        assert systems == ["ubuntu-latest", "macos-latest", "windows-latest"]


def test_only_what_the_session_release_built_is_published_and_runs_nothing_else():
    workflow = yaml.safe_load(text_of(".github/workflows/release.yml"))
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "python -m nox -s release" in [step.get("run") for step in build["steps"]]
    assert "id-token" not in {*workflow["permissions"], *build["permissions"]}
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in publish["steps"])


@pytest.mark.parametrize("name", FILES)
def test_file_is_linked_from_the_readme_and_on_the_site(name):
    assert (ROOT / name).is_file()
    assert f"({name})" in text_of("README.md").partition("\n## More\n")[2]
    page, project = FILES[name], text_of("docs/project.md")
    if page.startswith("../"):
        assert f"({page})" in project
    else:
        tree = project.partition("```{toctree}")[2]
        assert f"\n{page}\n" in tree and f"({page}.md)" in project


def anchors(text):
    """The anchors that a code host gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short_and_its_links_lead_somewhere():
    text = text_of("README.md")
    assert len(text.splitlines()) < 250
    links = {link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
    assert "CONTRIBUTING.md#the-checks" in links
    for link in links:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists(), link
        assert not anchor or anchor in anchors(text_of(file or "README.md")), link


def test_the_page_of_a_package_index_has_no_links_into_the_repository():
    hooks = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["metadata"]["hooks"]
    (rule,) = hooks["fancy-pypi-readme"]["substitutions"]
    page, count = re.subn(rule["pattern"], rule["replacement"], text_of("README.md"))
    assert count > 30
    for link in re.findall(r"\]\(([^)\s]+)\)", page):
        assert link.startswith(("https://", "#")), link
    assert "docs/install.md has the extras" in page  # the text of a link stays


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_ask_for_the_doctor(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= set(form)
    asked = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert "python -m numnorm doctor" in asked["doctor"]["attributes"]["label"]
    for part in asked.values():
        assert part["type"] in ("textarea", "checkboxes") and part["attributes"]["label"]


def test_there_are_forms_for_bugs_and_wishes():
    assert [path.stem for path in FORMS] == ["bug", "feature"]
