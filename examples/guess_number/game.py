"""The game: the policy guesses a number, and the environment says whether the hidden number is higher or lower."""

from agentrl.environments.base import Environment, Observation
from agentrl.tools.base import Episode
from agentrl.types import Deadline, Prompt, Turn


class GuessNumber(Environment):
    """Answers each guess. It keeps no state: the hidden number is the row's answer."""

    async def observe(
        self, episode: Episode, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline
    ) -> Observation:
        """Reward the right number with 1, and any other text with `penalty`."""
        text, hidden = turns[-1].text.strip(), int(str(prompt.answer))
        if not text.isdecimal():
            return Observation(text="a number, please", reward=self.config["penalty"])
        if int(text) == hidden:
            return Observation(text="right", reward=1.0, done=True)
        return Observation(text="higher" if hidden > int(text) else "lower", reward=self.config["penalty"])
