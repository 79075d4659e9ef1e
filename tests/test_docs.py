"""The words keep up with the code: commands, examples, links, targets, folders."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.main import COMMANDS, collsyn

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def page_name(path):
    """Name of a page as tests show it."""
    return path.relative_to(ROOT).as_posix()


def command_lines(text):
    """The `collsyn ...` lines of a text, a continued line joined, as lists of words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in re.findall(r"^\s*(?:\$ )?(collsyn .*)$", joined, re.MULTILINE):
        words = shlex.split(line, comments=True)
        stop = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")), None)
        yield words[1:stop]


def code_of(page):
    """Text of the fenced shell blocks of a page."""
    return "\n".join(re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.fixture
def parse(monkeypatch):
    """Parses the words of a command line down to its last subcommand, and runs nothing."""
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)
    return lambda words: collsyn.main(words, prog_name="collsyn", standalone_mode=False)


def test_the_first_screen_has_the_two_commands():
    first_screen = "\n".join(README.splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name):
    assert f"`collsyn {name}`" in README


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_of_a_command_are_accepted(name, run_cli, parse):
    lines = list(command_lines(run_cli(name, "--help").stdout))
    assert lines
    for words in lines:
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_command_lines_of_a_page_are_accepted(page, parse):
    for words in command_lines(code_of(page)):
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_of_a_page_exist(page):
    named = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert {first or second for first, second in named} <= TARGETS


def options_of(command, ctx):
    """Names of each option of a command and its subcommands, with the command that has it."""
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            yield from options_of(command.get_command(ctx, name), ctx)
    for option in command.params:
        if isinstance(option, click.Option):
            yield command.name, [*option.opts, *option.secondary_opts]


def test_every_option_is_on_a_page():
    pages = "\n".join(page.read_text() for page in PAGES)
    options = list(options_of(collsyn, click.Context(collsyn)))
    assert len(options) > 100
    for command, names in options:
        assert any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", pages) for name in names), (command, names)


def test_every_page_of_docs_is_in_its_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        name = page_name(page).removeprefix("docs/")
        assert not page_name(page).startswith("docs/") or name == "README.md" or f"]({name})" in index, name


def test_every_export_format_has_a_page():
    from collsyn.export.table import FORMATS

    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "formats").glob("*.md"))
    for name in FORMATS:
        assert f"--format {name}" in pages, name


def test_anchors_of_links_exist():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]*)\)", page.read_text()):
            linked = (page.parent / target if target else page).read_text()
            titles = re.findall(r"^#+ (.*)$", linked, re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, (page_name(page), target, anchor)


def test_make_help_lists_every_target():
    described = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert described == TARGETS


def test_architecture_fits_in_120_lines_and_names_every_folder():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 120
    for init in ROOT.glob("collsyn/*/__init__.py"):
        assert f"{init.parent.name}/" in text
    for folder in ("cli", "profiles", "configs", "tests", "scripts"):
        assert f"{folder}/" in text


def test_the_changelog_has_the_current_version():
    from collsyn import __version__

    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
