"""`detectors.yaml`: regular expressions and predicates of the user, and what is refused."""

import sys
import time
from pathlib import Path

import pytest

from agentrl.detectors.base import Place, Source
from agentrl.detectors.scan import scan_files
from agentrl.detectors.shipped import SHIPPED
from agentrl.detectors.user_detectors import RegexDetector, load_detectors
from agentrl.errors import ConfigError
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Turn
from tests.detectors.episodes import PROMPT, answered, called, episode

MB = 1_000_000


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.path", [*sys.path])


def own(folder: Path, text: str, *, code: str = "", module: str = "wrong_detectors"):
    (folder / f"{module}.py").write_text(code)
    file = folder / "detectors.yaml"
    file.write_text(text)
    return load_detectors(file)[len(SHIPPED) :]


def test_a_regular_expression_finds_places_in_the_text_of_its_author():
    trajectory = episode(called("print(996 - 955)", "41 stamps"), answered("41"))
    assert RegexDetector("x", r"\d+ stamps", Source.TOOL).hits(trajectory, PROMPT) == [
        Place(turn=0, start=16, end=25, source=Source.TOOL, result=0)
    ]
    assert RegexDetector("x", r"\d+ stamps", Source.POLICY).hits(trajectory, PROMPT) == []
    assert RegexDetector("x", "boxed", Source.POLICY).hits(trajectory, PROMPT) == [Place(turn=1, start=9, end=14)]


def test_the_text_of_the_environment_is_searched_only_if_asked():
    trajectory = episode(Turn(text="7", observation="higher"))
    assert RegexDetector("x", "higher", Source.ENVIRONMENT).hits(trajectory, PROMPT)
    assert not RegexDetector("x", "higher", Source.POLICY).hits(trajectory, PROMPT)


def test_an_entry_of_each_kind_is_built(tmp_path: Path):
    code = """
def is_short(trajectory, prompt):
    return trajectory.num_response_tokens < 5

class Boxes:
    def hits(self, trajectory, prompt):
        return float(sum(turn.text.count("boxed") for turn in trajectory.turns))
"""
    text = """
- {name: box, regex: '\\\\boxed', meaning: it writes a box}
- {name: short, class_name: kinds.is_short}
- {name: boxes, class_name: kinds.Boxes}
"""
    detectors = own(tmp_path, text, code=code, module="kinds")
    trajectory = episode(answered("41"), num_tokens=3)
    assert [detector.hits(trajectory, PROMPT) for detector in detectors] == [
        [Place(turn=0, start=8, end=14)],
        True,
        1.0,
    ]
    assert [detector.meaning for detector in detectors] == ["it writes a box", "kinds.is_short", "kinds.Boxes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: a}", "must be a list"),
        ("- {name: a}", "give either `regex` or `class_name`"),
        ("- {name: a, regex: '('}", "is no regular expression"),
        ("- {name: a, regexp: a}", "`[0].regexp`"),
        ("- {name: a, regex: a, where: reward}", "`[0].where`"),
        ("- {name: a, class_name: wrong_detectors.absent}", "has no `absent`"),
        ("- {name: a, class_name: wrong_detectors.no_prompt}", "must take `(trajectory, prompt)`"),
        ("- {name: copied_answer, regex: a}", "two detectors are called `copied_answer`"),
        ("- {name: a", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError) as error:
        own(tmp_path, text, code="def no_prompt(trajectory): ...", module="wrong_detectors")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return prompt.extra['no such column']", "KeyError at raises_0.py:2"),
        ("raise SystemExit(3)", "SystemExit at raises_1.py:2"),
        ("trajectory.reward", "it returned None; return a bool, a number or a list"),
    ],
)
def test_a_predicate_that_fails_is_given_up_and_the_others_go_on(tmp_path: Path, line: str, message: str):
    module = message.partition(" at ")[2].partition(".py")[0] or "returns_none"
    detectors = own(
        tmp_path,
        f"- {{name: bad, class_name: {module}.bad}}\n- {{name: box, regex: boxed}}",
        code=f"def bad(trajectory, prompt):\n    {line}\n",
        module=module,
    )
    store = TrajectoryStore(tmp_path)
    files = [store.append(step, [episode(answered("41"))], prompts=[PROMPT]) for step in (1, 2)]
    first, second = scan_files(files, detectors)
    assert message in first.problems["bad"]
    assert second.problems == first.problems
    assert (first.values["box"], second.values["box"]) == ([1.0], [1.0])


def test_a_regular_expression_that_takes_exponential_time_is_given_up(tmp_path: Path):
    slow = RegexDetector("slow", r"(a|a)*$", Source.POLICY)
    hopeless = episode(Turn(text="a" * 60 + "b"), name="1-p-1")
    store = TrajectoryStore(tmp_path)
    files = [store.append(step, [hopeless] * 3, prompts=[PROMPT]) for step in range(1, 9)]
    started_s = time.process_time()
    scans = scan_files(files, [slow])
    assert time.process_time() - started_s < 5.0
    assert "took more than 1.0 s" in scans[-1].problems["slow"]
    assert scans[-1].problems["slow"].startswith("1-p-1: ")


def test_a_search_takes_at_most_ten_milliseconds_of_cpu_per_megabyte():
    """docs/detectors.md has the figures: 0.5 ms, where the bar is 2.5 ms."""
    sentence = "The shop has 996 stamps and sells 955 of them, so I subtract and get the number that is left. "
    trajectory = episode(Turn(text=sentence * (MB // len(sentence))))
    detector = RegexDetector("x", r"(?i)i apologi[sz]e", Source.POLICY)
    times = []
    for _ in range(5):
        started_s = time.process_time()
        assert detector.hits(trajectory, PROMPT) == []
        times.append(time.process_time() - started_s)
    assert min(times) < 0.010
