// Numbers for people.

/** Bytes: 1.5 MiB. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = count;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${short(value)} ${units[at]}`;
}

/** A count: 1.5 M. */
export function count(number) {
  const units = ["", " k", " M", " G", " T", " P"];
  let at = 0;
  let value = number;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${short(value)}${units[at]}`;
}

/** Microseconds: 3.2 µs, 1.4 ms. */
export function micros(us) {
  return us < 1000 ? `${short(us)} µs` : `${short(us / 1000)} ms`;
}

/** Three digits at most. */
export function short(value) {
  if (value === 0 || value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toPrecision(value < 1 ? 2 : 3).replace(/\.?0+$/, "");
}

/** A time in seconds, for people: in the largest unit of which there are two. */
export function duration(seconds) {
  const [size, unit] = [[86400, "days"], [3600, "hours"], [60, "minutes"]].find(([least]) => seconds >= 2 * least) ?? [1, "seconds"];
  return `${Math.round(seconds / size)} ${unit}`;
}
