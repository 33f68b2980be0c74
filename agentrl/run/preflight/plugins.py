"""Calls every tool, the environment and the reward once, as a run would, before one is started.

A run calls tools with whatever a policy writes, thousands of times. The trial calls each once, with the smallest arguments that
its schema allows, in an episode named `check` with the columns of the first training row. A tool in good order may refuse
made-up arguments, so its answer is shown and not judged; no answer at all is refused. A tool that asks a worker of an extra
role is not called: these come with Ray. The environment answers one turn, which must not raise, since it gets any text of the
policy's.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.scoring import isolated_reward, score
from agentrl.config.schema.run import RewardSection, RunConfig
from agentrl.environments.loader import build_environment
from agentrl.errors import DataError, RolloutError, ToolError, UnexplainedError
from agentrl.judge.connection import ToolContext
from agentrl.models.tokenizer import light_tokenizer_class
from agentrl.rewards.base import Reward
from agentrl.rewards.loader import build_reward
from agentrl.rewards.math_answer import reference_answer
from agentrl.run.judges import driver_judge
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.run.preflight.sample_arguments import sample_arguments
from agentrl.run.prompt_sets import count_overlong, overlong_warnings
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.python_tool import PYTHON_TOOL
from agentrl.tools.worker_tool import WORKER_TOOL
from agentrl.types import Deadline, Prompt, ToolCall, ToolStatus, Turn

EPISODE_ID = "check"
_MAX_SHOWN = 120
_ANSWER_FORMS = ("{}", r"\boxed{{{}}}", "#### {}", r"<answer>\boxed{{{}}}</answer>", "<answer>{}</answer>")
"""Ways in which a right answer may be written; the first that scores is named."""


async def try_tools_and_reward(subject: CheckSubject, report: CheckReport) -> None:
    """Build, start and call every tool, the environment and the reward, and render every prompt with the tools.

    Raises:
        ConfigError, ToolError: one cannot be built or started, breaks its protocol, or a tool returns no result.
        RolloutError: the judge or what the reward needs is away.
        UnexplainedError: the reward or the environment raised an exception of its own.
    """
    config = subject.config
    prompt = subject.training[0].all()[0] if subject.training else subject.validation[0]
    # Without Ray there are no nodes; one judge here shows as much about the tools.
    judge = config.judge.model_copy(update={"placement": "driver"})
    async with driver_judge(subject.tools, config.reward, judge) as address:
        context = ToolContext(judge=address)
        await _try_tools(subject, context, prompt, report)
        reward = isolated_reward(build_reward(config.reward, context))
        await reward.start()
        async with contextlib.aclosing(reward):
            try:
                await _try_reward(config, context, reward, prompt, report)
            except UnexplainedError as error:
                if not subject.prompt_is_invented:
                    raise
                report.warn(f"{error}. The prompt of this check has no further columns; those of requests may")


async def _try_reward(
    config: RunConfig, context: ToolContext, reward: Reward, prompt: Prompt, report: CheckReport
) -> None:
    """Play a turn of the environment, if there is one, and score."""
    if config.agent_loop.environment is None:
        await score_answers(reward, config.reward, prompt, report)
    elif (turn := await _play_turn(config, context, prompt, report)) is not None:
        value = (await score(reward, config.reward, prompt, (turn,))).value
        report.note(f"reward `{config.reward.label}` on prompt `{prompt.prompt_id}`: that turn scores {value:g}")


async def _try_tools(subject: CheckSubject, context: ToolContext, prompt: Prompt, report: CheckReport) -> None:
    rollout = subject.config.rollout
    tools = [tool for tool in subject.tools if tool.class_name != WORKER_TOOL]
    if len(tools) < len(subject.tools):
        report.not_checked("tools that ask a worker of an extra role, which comes with Ray: not called")
    executor = ToolExecutor(build_tools(tools, context), timeout_s=rollout.tool_timeout_s)
    await executor.start()
    async with contextlib.aclosing(executor):
        _check_prompt_lengths(executor.schemas, subject, report)
        if not tools:
            report.note("tools: none here")
        episode = Episode(episode_id=EPISODE_ID, prompt_id=prompt.prompt_id, extra=prompt.extra)
        for tool, schema in zip(tools, executor.schemas, strict=True):
            arguments = {"code": "print(1)"} if tool.class_name == PYTHON_TOOL else sample_arguments(schema)
            if arguments is None:
                report.not_checked(f"a call of tool `{schema.name}`: no arguments could be made from its schema")
            else:
                await _call_tool(
                    executor, ToolCall(call_id="0", name=schema.name, arguments=arguments), episode, report
                )
        await executor.end_episode(episode)


def _check_prompt_lengths(schemas: Sequence[ToolSchema], subject: CheckSubject, report: CheckReport) -> None:
    prompts = [*(prompt for dataset in subject.training for prompt in dataset.all()), *subject.validation]
    model, data = subject.config.model, subject.config.data
    tokens = ChatTokens.of_model(
        model, [schema.as_template_dict() for schema in schemas], light_tokenizer_class(model.path)
    )
    for warning in overlong_warnings(count_overlong(tokens, prompts, data.max_prompt_tokens), data):
        report.warn(warning)


async def _call_tool(executor: ToolExecutor, call: ToolCall, episode: Episode, report: CheckReport) -> None:
    where = f"tool `{call.name}`: called with {_shown(call.arguments)}"
    try:
        [result] = await executor.execute([call], episode, deadline=Deadline.after(executor.timeout_s))
    except (DataError, RolloutError) as error:  # it may be due to these arguments
        report.warn(f"{where}: {error}; in a run that loses the trajectory")
        return
    if result.status is ToolStatus.NO_RESULT:
        raise ToolError(
            f"{where}: {result.text.removeprefix('failure: ')}. Let it return text or JSON for all arguments; the type hint of "
            "a function may allow None, as `-> str | None`, which the policy reads as `null`"
        )
    answered = f"{where}: `{result.status}` in {result.wall_time_s:.2g} s, {_shown(result.text)}"
    if result.cause:
        report.warn(f"{answered}; it raised {result.cause}")
    elif result.status is ToolStatus.TIMEOUT:
        report.warn(answered)
    else:
        report.note(answered)


async def _play_turn(config: RunConfig, context: ToolContext, prompt: Prompt, report: CheckReport) -> Turn | None:
    """Have the environment answer one turn, and return it; None if the prompt's data or a service does not allow one."""
    environment = build_environment(config.agent_loop, timeout_s=config.rollout.tool_timeout_s, context=context)
    assert environment is not None, "the config names one"
    where = f"environment `{config.agent_loop.environment}` on prompt `{prompt.prompt_id}`"
    episode = Episode(episode_id=EPISODE_ID, prompt_id=prompt.prompt_id, extra=prompt.extra)
    turn = Turn(text=_right_answers(prompt)[0] if isinstance(prompt.answer, str | int | float) else "1")
    await environment.start()
    async with contextlib.aclosing(environment):
        try:
            opening = await environment.begin(episode, prompt)
            deadline = Deadline.after(config.rollout.trajectory_timeout_s)
            if (observation := await environment.observe(episode, prompt, (turn,), deadline=deadline)) is None:
                report.warn(f"{where}: no answer before the trajectory's time limit, which ends it")
                return None
        except UnexplainedError:
            raise
        except (DataError, RolloutError) as error:
            report.warn(f"{where}: {error}; in a run that loses the trajectory")
            return None
        finally:
            await environment.end(episode)
    opened = "" if opening is None else f"opens with {_shown(opening)}, and "
    after = "ends the episode" if observation.done else "goes on"
    reward = "no reward" if observation.reward is None else f"reward {observation.reward:g}"
    report.note(f"{where}: {opened}answers {_shown(turn.text)} with {_shown(observation.text)} ({reward}), and {after}")
    return replace(turn, observation=observation.text, environment_reward=observation.reward)


async def score_answers(reward: Reward, section: RewardSection, prompt: Prompt, report: CheckReport) -> None:
    """Score an empty answer to one prompt, then its reference answer in every form until one scores more."""
    where = f"reward `{section.label}` on prompt `{prompt.prompt_id}`"

    async def scored(text: str) -> float:
        return (await score(reward, section, prompt, (Turn(text=text),))).value

    try:
        empty = await scored("")
        if isinstance(prompt.answer, list | dict) or prompt.answer in (None, ""):
            why = "the prompt has no reference answer that is text or a number"
            report.note(f"{where}: an empty answer scores {empty:g}; {why}")
            report.not_checked(f"what the reward gives for a right answer: {why}")
            return
        for text in _right_answers(prompt):
            if (value := await scored(text)) > empty:
                report.note(f"{where}: {_shown(text)} scores {value:g}, an empty answer {empty:g}")
                return
    except UnexplainedError:
        raise
    except DataError as error:
        report.warn(f"{where}: {error}; in a run that loses the trajectory")
        return
    forms = ", ".join(f"`{form.format('ANSWER')}`" for form in _ANSWER_FORMS)
    report.warn(
        f"{where}: its reference answer {_shown(prompt.answer)} scores no more than an empty one ({empty:g}), written as "
        f"{forms}. Compare the form that the prompts ask for with the one that the reward reads"
    )


def _right_answers(prompt: Prompt) -> list[str]:
    """Return the reference answer in every form, then that of a whole solution (`... #### 72`), as the math reward reads it."""
    answers = [str(prompt.answer)]
    with contextlib.suppress(DataError):
        answers.append(reference_answer(prompt))
    return [form.format(answer) for answer in dict.fromkeys(answers) for form in _ANSWER_FORMS]


def _shown(value: object) -> str:
    line = value.strip().replace("\n", "\\n") if isinstance(value, str) else repr(value)
    return f"`{line[:_MAX_SHOWN]}{' ...' if len(line) > _MAX_SHOWN else ''}`"
