from pathlib import Path

import jinja2
import pytest
import trl

from agentrl.agent_loop.chat_tokens import ChatTokens, load_tokenizer
from agentrl.tools.builder import build_tools
from agentrl.tools.loader import load_tool_file
from agentrl.types import Message
from examples.arithmetic import make_tokenizer
from examples.arithmetic.demonstrations import Strategy, demonstrate, prompt_messages
from examples.arithmetic.problems import distinct_problems
