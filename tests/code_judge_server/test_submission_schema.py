"""Valid submissions: one input or many, files by plain paths in strict base64."""

import pytest
from pydantic import ValidationError

from code_judge_server.schemas import Submission


@pytest.mark.parametrize("also", [{"stdin": "1"}, {"expected_output": ""}])
def test_test_cases_and_a_single_input_exclude_each_other(also: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="one or the other"):
        Submission.model_validate({"id": "a", "code": "", "tests": [{}], **also})


@pytest.mark.parametrize("checker", [{"kind": "program"}, {"kind": "exact", "code": "x"}])
def test_a_checker_has_code_exactly_if_it_is_a_program(checker: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="`code` is for the kind `program`"):
        Submission.model_validate({"id": "a", "code": "", "checker": checker})


@pytest.mark.parametrize("content", ["YQ", "YQ==\n", "Y!Q=", "\u00e4", "YQ==YQ=="])
def test_file_contents_are_strict_base64(content: str) -> None:
    with pytest.raises(ValidationError, match="standard base64"):
        Submission.model_validate({"id": "a", "code": "", "files": {"f": content}})


def test_long_contents_have_no_line_breaks() -> None:
    submission = Submission(id="a", code="", files={"f": b"x" * 1000})
    assert "\n" not in submission.model_dump(mode="json")["files"]["f"]
    assert Submission.model_validate_json(submission.model_dump_json()) == submission


@pytest.mark.parametrize(
    "path", ["", "/a", "a/../b", "./a", "a//b", "a/", "a\0", "x" * 256, "/".join("abcdefghijklmnopq")]
)
def test_paths_stay_in_the_folder(path: str) -> None:
    for field in ({"files": {path: ""}}, {"collect": [path]}):
        with pytest.raises(ValidationError):
            Submission.model_validate({"id": "a", "code": "", **field})


def test_a_file_cannot_be_the_folder_of_another() -> None:
    with pytest.raises(ValidationError, match="cannot be a file and the folder"):
        Submission.model_validate({"id": "a", "code": "", "files": {"a/b/c": "", "a": ""}})
