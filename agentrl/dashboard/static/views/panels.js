// The curves of the overview: which metrics share a panel.

import { number, seconds } from "../format.js";

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`);

export const PANELS = [
  { title: "Reward", series: [
    { name: "rollout/reward_mean", label: "training", color: "--c2" },
    { name: "validation/accuracy", label: "validation accuracy", color: "--c1" }] },
  { title: "Loss", series: [
    { name: "sft/loss", label: "training", color: "--c2" }, { name: "validation/loss", label: "validation", color: "--c1" }] },
  { title: "Tool use", format: percent, series: [
    { name: "rollout/tool_success_rate", label: "calls that succeed", color: "--c3" },
    { name: "rollout/tool_call_share", label: "trajectories that call", color: "--c5" }] },
  { title: "Response tokens", series: [
    { name: "rollout/response_tokens_mean", label: "mean", color: "--c1" },
    { name: "rollout/response_tokens_max", label: "longest", color: "--c7" }] },
  { title: "Turns", series: [
    { name: "rollout/turns_mean", label: "turns", color: "--c1" }, { name: "rollout/tool_calls_mean", label: "calls", color: "--c3" }] },
  { title: "Ended by", format: percent, series: [
    { name: "rollout/truncated_share", label: "length", color: "--c2" }, { name: "rollout/max_turns_share", label: "turns", color: "--c5" },
    { name: "rollout/timeout_share", label: "time", color: "--c4" }] },
  { title: "Entropy", series: [{ name: "actor/entropy", label: "actor", color: "--c6" }] },
  { title: "Mismatch of engine and actor", series: [
    { name: "actor/rollout_kl", label: "KL", color: "--c4" },
    { name: "actor/rollout_logprob_diff_mean", label: "log-probability", color: "--c7" }] },
  { title: "KL to the reference", series: [{ name: "actor/kl_reference", label: "KL", color: "--c4" }] },
  { title: "Gradient norm", series: [{ name: "actor/grad_norm", label: "actor", color: "--c1" }] },
  { title: "Step time", name: "time", stacked: true, format: seconds, series: [] },
  { title: "Update throughput", format: (value) => `${number(value)}`, series: [{ name: "actor/tokens_per_s", label: "tokens per second", color: "--c3" }] },
  { title: "Trajectory time", format: seconds, series: [
    { name: "rollout/wall_time_s_mean", label: "mean", color: "--c1" }, { name: "rollout/wall_time_s_p95", label: "p95", color: "--c7" }] },
  { title: "Judge queue", format: seconds, series: [
    { name: "judge/queue_wait_s_mean", label: "mean", color: "--c1" }, { name: "judge/queue_wait_s_p95", label: "p95", color: "--c7" }] },
];

const PARTS = [
  ["rollout", "--c2"], ["update", "--c1"], ["weight_sync", "--c3"], ["validation", "--c5"], ["checkpoint_blocking", "--c4"],
];

/** Parts of a step that follow one another. A run that rolls out ahead only waits for what is left of a rollout. */
export function timeParts(latest) {
  const waits = "time/rollout_wait_s" in latest;
  return PARTS.map(([part, color]) => {
    const name = part === "rollout" && waits ? "time/rollout_wait_s" : `time/${part}_s`;
    const label = part === "rollout" && waits ? "wait for rollout" : ({ weight_sync: "sync", checkpoint_blocking: "save" })[part] ?? part;
    return { name, label, color };
  });
}
