// A reward as a coloured square: from the lowest to the highest of those that are shown.

import { h } from "./dom.js";
import { number } from "./format.js";

/** Class of a reward between two bounds. */
export function rewardClass(reward, [low, high]) {
  if (reward === null || reward === undefined) return "r-none";
  const share = high > low ? (reward - low) / (high - low) : reward > 0 ? 1 : 0;
  return `r${Math.round(10 * Math.max(0, Math.min(1, share)))}`;
}

/** Bounds for colours: 0 to 1, widened to the values. */
export function bounds(rewards) {
  let low = 0, high = 1;
  for (const reward of rewards) {
    if (reward === null) continue;
    if (reward < low) low = reward;
    if (reward > high) high = reward;
  }
  return [low, high];
}

export function square(reward, range, properties = {}) {
  const { tag = "i", ...rest } = properties;
  return h(`${tag}.square`, { class: rewardClass(reward, range), title: reward === null ? "no reward" : `reward ${number(reward)}`, ...rest });
}
