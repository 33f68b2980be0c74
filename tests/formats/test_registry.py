import re
import subprocess
import sys

import pytest

from agentrl.errors import ConfigError
from agentrl.formats.arguments import Parameters
from agentrl.formats.base import CallFormat, RawCall, read_calls
from agentrl.formats.registry import FORMATS, format_named


class ArrowFormat(CallFormat):
    """`-> name(argument)` on a line of its own."""

    name = "arrow"
    opening = re.compile(r"^-> (?P<name>\w+)\((?P<text>.*)\)$", re.MULTILINE)

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        return [RawCall(name=opening["name"], arguments={"text": opening["text"]})], opening.end()


def test_a_format_of_the_users_own_is_named_by_its_class_path():
    grammar = format_named(f"{__name__}.ArrowFormat", key="model.tool_format")
    [call] = read_calls(grammar, "I look.\n-> search(rivers)\n", {}, id_prefix="0").calls
    assert (call.name, call.arguments) == ("search", {"text": "rivers"})


def test_every_format_is_found_by_its_name():
    assert {name: format_named(name, key="model.tool_format").name for name in FORMATS} == {
        name: name for name in FORMATS
    }


def test_a_class_that_is_no_format_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match=r"model\.tool_format: `json\.JSONDecoder` is no subclass of .*`hermes`, "):
        format_named("json.JSONDecoder", key="model.tool_format")


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match=r"`model\.tool_format` is `hermess`"):
        format_named("hermess", key="model.tool_format")


def test_escapes_that_python_does_not_know_leave_no_warning_on_the_console():
    code = (
        "from agentrl.formats.registry import format_named\n"
        "from agentrl.formats.base import read_calls\n"
        r"text = '[write(text=\"\\alpha \\ beta\")]'" + "\n"
        "[call] = read_calls(format_named('pythonic', key=''), text, {'write': {}}, id_prefix='').calls\n"
        "print(call.arguments['text'])\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("\alpha \\ beta\n", "")
