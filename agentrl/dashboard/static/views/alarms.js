// Signs in the curves that a run needs attention.

import { number } from "../format.js";

const WINDOW = 10;
const FAILING_CALLS = 0.5;
const LOST_SHARE = 0.05;
const MISMATCH = 0.05;
const MISMATCH_GROWTH = 10;
const ENTROPY_SHARE = 0.02;
const FINITE = ["actor/loss", "actor/grad_norm", "actor/entropy"];

/** Metrics that the alarms read. */
export const WATCHED = [...FINITE, "rollout/reward_mean", "rollout/tool_success_rate", "actor/rollout_kl", "rollout/infra_errors", "rollout/data_errors", "rollout/trajectories"];

/** Return what is wrong as texts; `series` has the values of `WATCHED` by name, null where there is none. */
export function alarms(steps, series) {
  const found = [];
  const column = (name) => series[name] ?? [];
  const lastStep = steps.at(-1);
  for (const name of FINITE) {
    if (lastStep > 0 && column(name).length && column(name).at(-1) === null) found.push(`${name} is not finite at step ${lastStep}.`);
  }
  const rewards = recent(column("rollout/reward_mean"));
  if (rewards.length === WINDOW && Math.max(...rewards) === Math.min(...rewards)) {
    found.push(`The mean reward is ${number(rewards[0])} in each of the last ${WINDOW} steps.`);
  }
  const success = mean(recent(column("rollout/tool_success_rate")));
  if (success !== null && success < FAILING_CALLS) found.push(`Only ${Math.round(100 * success)}% of tool calls succeed over the last steps.`);
  const entropy = present(column("actor/entropy"));
  if (entropy.length > WINDOW && mean(entropy.slice(-WINDOW)) < ENTROPY_SHARE * entropy[0]) {
    found.push(`The entropy has collapsed from ${number(entropy[0])} to ${number(entropy.at(-1))}.`);
  }
  const mismatch = present(column("actor/rollout_kl"));
  const before = mean(mismatch.slice(0, WINDOW)), now = mean(mismatch.slice(-WINDOW));
  if (mismatch.length > WINDOW && now > MISMATCH && now > MISMATCH_GROWTH * Math.abs(before)) {
    found.push(`Engine and actor drift apart: KL ${number(before)} in the first steps, ${number(now)} in the last.`);
  }
  const lost = sum(recent(column("rollout/infra_errors"))) + sum(recent(column("rollout/data_errors")));
  const all = sum(recent(column("rollout/trajectories")));
  if (all && lost / all > LOST_SHARE) found.push(`${Math.round((100 * lost) / all)}% of the trajectories of the last steps are lost to failures.`);
  return found;
}

function present(column) {
  return column.filter((value) => value !== null);
}

function recent(column) {
  return present(column).slice(-WINDOW);
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function mean(values) {
  return values.length ? sum(values) / values.length : null;
}
