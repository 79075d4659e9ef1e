"""`--plot`: what the files say, that they are the same each time, and what is refused."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from collsyn.check.simulate_plan import simulate_plan
from collsyn.errors import InputError
from collsyn.lower.lower import lower
from collsyn.model.plan_file import write_plan
from collsyn.model.schedule_file import write_schedule
from collsyn.pictures.bandwidth import Chart, Curve
from collsyn.pictures.bandwidth_picture import draw_bandwidth
from collsyn.pictures.link_picture import Panel, draw_links
from collsyn.pictures.link_use import schedule_use
from collsyn.portfolio.auto import best_schedule
from collsyn.synth.problem import Options, Problem
from collsyn.topology.resolve import load_topology
from tests.conftest import REPOSITORY
from tests.support.hand_plans import swap_plan
from tests.support.schedules import from_rows, ring_allgather

COMMANDS = (
    ("simulate", "ring.json"),
    ("bench", "ring.json"),
    ("topology", "show", "dgx1"),
    ("compare", "--collective", "allgather", "--topology", "full:3"),
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def schedule():
    return ring_allgather(4, 1)


@pytest.fixture
def files(tmp_path, monkeypatch, schedule):
    """A schedule and a plan, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_schedule(schedule, "ring.json")
    write_plan(swap_plan(), "plan.json")
    return tmp_path


def words(path):
    """All texts of an SVG."""
    return ["".join(element.itertext()).strip() for element in ElementTree.parse(path).iter(f"{SVG}text")]


def drawn(result, path):
    """The texts of a picture that a run has made."""
    assert result.code == 0, result.stderr
    assert f"wrote {path.name}" in result.stderr
    return words(path)


def test_a_schedule_and_its_plan_side_by_side(files, schedule, run_cli):
    texts = drawn(run_cli("simulate", "ring.json", "--plot", "links.svg"), files / "links.svg")
    plan_s = simulate_plan(lower(schedule), schedule.topology, schedule.size_bytes).finish_s
    assert "allgather of 1 MiB on ring 4, by hand" in texts
    assert {"schedule", "plan"} <= set(texts)
    for time_s in (schedule.finish_s, plan_s):
        assert any(text.startswith(f"{time_s * 1e6:.4g} µs, ") for text in texts)
    assert {"0 → 1", "1 → 0"} <= set(texts)


def test_a_plan_alone(files, run_cli):
    texts = drawn(run_cli("simulate", "plan.json", "--size", "1M", "--plot", "links.svg"), files / "links.svg")
    assert "plan" in texts
    assert "schedule" not in texts


def test_several_sizes_are_curves(files, run_cli):
    texts = drawn(run_cli("simulate", "ring.json", "--sizes", "1K:1M:4", "--plot", "curves.svg"), files / "curves.svg")
    assert {"allgather, 4 ranks", "schedule", "plan", "bound", "1K", "1M", "bus bandwidth, GB/s"} <= set(texts)


def test_many_links_are_folded(tmp_path, run_cli):
    topology = load_topology("torus:4x4")
    write_schedule(best_schedule(Problem("allgather", topology, 1 << 20), Options(), "ring"), tmp_path / "s.json")
    result = run_cli("simulate", "s.json", "--plot", "links.svg", cwd=tmp_path)
    texts = drawn(result, tmp_path / "links.svg")
    assert any("64 links, 2 of a kind a row" in text for text in texts)
    assert "64 links" in " ".join(texts)


def test_methods_are_compared(files, run_cli):
    problem = ("--collective", "allgather", "--topology", "full:3", "--methods", "ring,direct")
    result = run_cli("compare", *problem, "--sizes", "1K:4K", "--plot", "methods.svg")
    texts = drawn(result, files / "methods.svg")
    assert {"methods on full:3, overhead none", "allgather, 3 ranks", "ring", "direct", "bound"} <= set(texts)


def test_bench_draws_what_it_measured(files, run_cli):
    arguments = ("--collective", "allreduce", "--method", "direct", "--topology", "full:2", "--launcher", "fork")
    sizes = ("-b", "4K", "-e", "16K", "-f", 4, "-n", 4)
    texts = drawn(run_cli("bench", *arguments, *sizes, "--plot", "bench.svg"), files / "bench.svg")
    assert {"collsyn bench on host ranks", "allreduce, 2 ranks", "collsyn", "direct", "bound", "4K", "16K"} <= set(
        texts
    )


def test_pictures_are_the_same_bytes_in_any_process_and_with_any_settings(files, run_cli, monkeypatch):
    import matplotlib

    command = ("simulate", "ring.json", "--plot")
    assert run_cli(*command, "a.svg").code == 0
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 20.0)
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", None)
    assert run_cli(*command, "b.svg").code == 0
    assert matplotlib.rcParams["font.size"] == 20
    environment = {"PYTHONHASHSEED": "7", "MPLBACKEND": "tkagg", "DISPLAY": ""}
    assert run_cli(*command, "c.svg", cwd=files, new_process=True, env=environment).code == 0
    first = (files / "a.svg").read_bytes()
    assert first == (files / "b.svg").read_bytes() == (files / "c.svg").read_bytes()
    assert not re.search(rb"<dc:date>|\d{4}-\d\d-\d\dT", first)
    assert len(first) < 60_000


def test_names_are_shown_as_they_are_and_cut_where_they_are_too_long(files):
    chart = Chart("allgather", 4, (Curve("simulated", "a_$1^2$ & <b>", (1024, 2048), (1.0, 2.0)),))
    draw_bandwidth("curves.svg", "x" * 100, [chart])
    texts = words(files / "curves.svg")
    assert "a_$1^2$ & <b>" in texts
    assert f"{'x' * 69}..." in texts


def test_png_by_its_suffix(files, run_cli):
    assert run_cli("simulate", "ring.json", "--plot", "links.PNG").code == 0
    assert (files / "links.PNG").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["links.pdf", "links", "links.svg.txt"])
def test_other_suffixes_are_refused_before_any_work(files, run_cli, command, name):
    result = run_cli(*command, "--plot", name)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"collsyn: error: {name}: is no picture that can be drawn; expected a name with .svg"
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_without_matplotlib_one_line_says_what_to_install(files, run_cli, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run_cli(*command, "--plot", "links.svg")
    assert (result.code, result.stdout) == (2, "")
    assert "pip install 'collsyn[plot]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (files / "links.svg").exists()


def test_what_cannot_be_drawn_leaves_no_file(files, run_cli, schedule):
    nothing = from_rows(schedule.collective, schedule.topology, [])
    with pytest.raises(InputError, match=r"links.svg: not drawn: nothing passes any link of ring 4"):
        draw_links("links.svg", "nothing", schedule.topology, [Panel("schedule", schedule_use(nothing), None)], 0.0)
    with pytest.raises(InputError, match=r"curves.svg: not drawn: nothing took any time"):
        draw_bandwidth("curves.svg", "nothing", [Chart("allgather", 4, ())])
    (files / "folder.svg").mkdir()
    result = run_cli("simulate", "ring.json", "--plot", "folder.svg")
    assert (result.code, result.stderr) == (2, "collsyn: error: folder.svg: cannot be written: is a directory\n")
    assert sorted(path.name for path in files.iterdir()) == ["folder.svg", "plan.json", "ring.json"]


def test_matplotlib_is_not_imported_unless_a_picture_is_asked_for(files):
    script = (
        "import sys\nfrom cli.main import main\n"
        "for words in (['--help'], ['simulate', '--help'], ['simulate', 'ring.json'], ['topology', 'show', 'dgx1']):\n"
        "    assert main(words) == 0\n"
        "assert not [name for name in sys.modules if name.startswith(('matplotlib', 'collsyn.pictures'))]\n"
    )
    environment = {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_pictures_of_the_pages_are_light_and_used():
    pictures = sorted((REPOSITORY / "docs/pictures").iterdir())
    pages = "".join(path.read_text() for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")))
    assert pictures
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag == f"{SVG}svg"
        assert picture.stat().st_size < 60_000
        assert f"pictures/{picture.name})" in pages
        assert f"$out/{picture.name}" in (REPOSITORY / "scripts/pictures.sh").read_text()
