"""mini-swe-agent (`pip install mini-swe-agent`), whose one tool is a shell: `python mini_swe.py QUESTION`."""

import os
import sys

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

TASK = "{{task}} Print COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT and, below it, the answer."

model = LitellmModel(
    model_name="openai/policy",
    model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"]},
    cost_tracking="ignore_errors",
)
agent = DefaultAgent(
    model, LocalEnvironment(), system_template="You use a shell.", instance_template=TASK, step_limit=4
)

if __name__ == "__main__":
    print(agent.run(sys.argv[1])["submission"])
