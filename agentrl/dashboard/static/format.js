// Numbers and times as people read them.

const INTEGER = new Intl.NumberFormat("en-US");

/** 12,345 · 1.2M · 0.918 · 2.7e-9; a dash for a value that does not exist. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9) return `${(value / 1e9).toPrecision(digits)}G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(digits)}M`;
  if (size >= 1e4) return INTEGER.format(Math.round(value));
  if (Number.isInteger(value)) return INTEGER.format(value);
  if (size >= 100) return value.toFixed(1);
  if (size < 1e-3) return value.toExponential(1);
  return value.toPrecision(digits);
}

/** Label of an axis: as `number`, without trailing zeros. */
export function tick(value) {
  const text = number(value);
  return /^-?\d*\.\d+$/.test(text) ? text.replace(/\.?0+$/, "") : text;
}

/** Number with a fixed number of decimals, for columns. */
export function fixed(value, decimals) {
  return value === null || value === undefined ? "–" : value.toFixed(decimals);
}

export function count(value) {
  return value === null || value === undefined ? "–" : INTEGER.format(value);
}

/** 0.5 ms · 12 ms · 1.50 s · 2 min 05 s · 3 h 10 min */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 5e-5) return "0 s";
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${value.toFixed(2)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

/** step_000012 -> "step 12", validation_000010 -> "validation 10" */
export function stepName(file) {
  const [kind, digits] = file.split("_");
  return `${kind} ${Number(digits)}`;
}

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
