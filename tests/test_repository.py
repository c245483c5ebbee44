"""The repository holds together: nothing in it points outside, and what its files say of one another is so."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = {".py", ".md", ".toml", ".cff", ".yaml", ".json", ""}


def files():
    """Those that git knows, or would; without git, those that lie here."""
    try:
        words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        found = [ROOT / name for name in names]
    except (OSError, subprocess.CalledProcessError):
        found = [path for room in ("clipwise", "tests", "docs", "examples") for path in (ROOT / room).rglob("*")]
    return [path for path in found if path.suffix in TEXT and path.is_file() and path != Path(__file__)]


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a folder of a build machine", r"/(work|home|root|Users)/\w"),
        ("notes that are not in the repository", r"(?<![\w/.\"])(methods|design|style|audit)\.md\b(?!\))"),
        ("a section of such notes", r"\bA\.[124]\b|section [AFV]\b"),
    ],
)
def test_nothing_points_outside(what, pattern):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found, what + ":\n" + "\n".join(found)


def test_the_build_server_finds_data_beside_the_repository():
    """By a path that is relative to it, and only where nobody has said where data is."""
    script = (ROOT / ".ci" / "run").read_text()
    assert "../shared/data" in script
    assert '[ -z "${CLIPWISE_DATA:-}" ]' in script


def test_every_citation_is_in_the_bibliography():
    """`Somebody et al. 2021`, `One and Other (2018)`, `One, Other, Third, "Title" (2020)`: the first name and the year."""
    pattern = re.compile(
        r"([A-ZÀ-Ý][\w\-]+)(?:, [A-ZÀ-Ý]\w+)*(?: et al\.| and [A-ZÀ-Ý]\w+|, [A-ZÀ-Ý]\w+)(?:,? \"[^\"]{10,120}\"| \([A-Z]+)?,?\s\(?((?:19|20)\d\d)\b"
    )
    bibliography = (ROOT / "docs" / "references.md").read_text()
    entries = re.split(r"^- ", bibliography, flags=re.MULTILINE)
    cited = {}
    for path in files():
        if (
            path.suffix in {".py", ".md"}
            and path.parts[-2] != "tests"
            and path.name not in {"references.md", "claims.md"}
        ):
            for name, year in pattern.findall(" ".join(path.read_text(encoding="utf-8").split())):
                cited.setdefault((name, year), path.relative_to(ROOT).as_posix())
    assert len(cited) > 25
    missing = {
        who: where for who, where in cited.items() if not any(who[0] in entry and who[1] in entry for entry in entries)
    }
    assert not missing


def test_every_method_is_in_the_bibliography():
    from clipwise.clipping import METHODS

    bibliography = " ".join((ROOT / "docs" / "references.md").read_text().split())
    for name, method in METHODS.items():
        assert f"`{name}`" in bibliography, name
        if " et al., " in method.reference:
            title = method.reference.split(" et al., ")[1].split(",")[0]
            assert title in bibliography, title


def test_pre_commit_runs_what_the_build_server_runs():
    """Each line of `make test` before the tests, in their order."""
    import yaml

    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    made = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [" ".join([hook["entry"], *hook.get("args", [])]) for hook in local["hooks"]]
    assert hooks == [line for line in made if "pytest" not in line]
    assert all(not hook["pass_filenames"] for hook in local["hooks"])


def test_releases_agree():
    """The package is on its way to the release that the changelog has on top; what is cited is the last one."""
    import yaml

    import clipwise

    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    coming, last = titles[:2]
    assert coming == f"Unreleased {clipwise.__version__.removesuffix('.dev0')}"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert last == f"{citation['version']} ({citation['date-released']})"
    for text in re.split(r"^## .+$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        assert "### Privacy" in text
