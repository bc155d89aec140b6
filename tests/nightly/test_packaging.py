"""Wheel and sdist: what is in them, and that the wheel works with no repository around it."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import sca_search
from sca_search.system.machine import versions

ROOT = Path(__file__).parents[2]
STUDY = ("--trials", "1", "--refits", "0", "--epochs", "1", "--dense-epochs", "2", "--threads", "1", "--name", "a")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist of this tree; the wheel is built from the sdist, as an index's users would."""
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder, "sdist")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build(folder / sdist.name.removesuffix(".tar.gz"), folder, "wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel, sdist


def build(source: Path, out: Path, target: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone; what it depends on is borrowed from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(built[0])], check=True, capture_output=True)
    site = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    # Behind the environment's own folder, and without the .pth files there, one of which may point to a checkout.
    Path(site.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_version_has_one_source(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == sca_search.__version__ == versions()["sca-search"]
    assert importlib.metadata.version("sca-search") == sca_search.__version__


def test_wheel_has_the_package_with_kernels_template_and_types_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = names_in_wheel(built[0])
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sca_search").rglob("*") if path.is_file()}
    template = {f"sca_search/dashboard/template/{path.name}" for path in (ROOT / "dashboards" / "template").iterdir()}
    recipes = {f"sca_search/paper/recipes/{path.name}" for path in (ROOT / "studies" / "paper").iterdir()}
    wanted = {name for name in package if "__pycache__" not in name} | template | recipes
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert "sca_search/py.typed" in names
    assert any(name.startswith("sca_search/export/c/kernels/") and name.endswith(".c") for name in names)


def test_sdist_has_what_builds_and_tests_and_nothing_else(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    tops = {"/".join(name.split("/")[:1]) for name in names}
    assert tops - {".gitignore"} == {
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "dashboards",
        "docs",
        "pyproject.toml",
        "sca_search",
        "studies",
        "tests",
    }
    assert not [
        name for name in names if "__pycache__" in name or (name.endswith((".pyc", ".html")) and "template" not in name)
    ]
    assert "tests/conftest.py" in names
    assert "dashboards/template/page.html" in names


def test_installed_wheel_searches_exports_and_draws_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    work = tmp_path / "work"
    work.mkdir()

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [installed / "bin" / program, *arguments],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = Path(run("python", "-c", "import sca_search; print(sca_search.__file__)").strip())
    assert where.is_relative_to(installed)
    assert run("sca-search", "--version") == f"sca-search {sca_search.__version__}\n"
    assert "Chosen: trial 0" in run("sca-search", *STUDY)
    run("sca-search", "export", "runs/a", "--format", "packed,c", "--out", "model", "--seconds", "1")
    assert (work / "model" / "c" / "model.c").is_file()
    assert (work / "model" / "model.safetensors").is_file()
    run("sca-search", "dashboard", "runs/a", "--out", "page.html", "--no-open")
    assert "plotly" in (work / "page.html").read_text()
    code = "import sca_search, numpy; print(sca_search.compile('model')(numpy.zeros((1, 8, 8), numpy.float32)).shape)"
    assert run("python", "-c", code) == "(10,)\n"
