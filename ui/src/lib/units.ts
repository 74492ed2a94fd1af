// Formatting of numbers with units.

const round = (value: number) => {
  if (Number.isInteger(value)) return String(value);
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
};

/** `12,345` or `1.23 million`. */
export function count(value: number): string {
  if (value >= 1e9) return `${round(value / 1e9)} billion`;
  if (value >= 1e6) return `${round(value / 1e6)} million`;
  return Math.round(value).toLocaleString('en');
}

/** `1 volume`, `2 volumes`. */
export const plural = (value: number, noun: string) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;

export const rate = (value: number) => `${value > 0 && value < 10 ? value.toFixed(1) : count(value)}/s`;

export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) [value, power] = [value / 1024, power + 1];
  return `${power === 0 ? value.toFixed(0) : round(value)} ${units[power]}`;
}

/** Capacity as it is printed on a drive: `480 GB`, `1.92 TB`. */
export const capacity = (value: number) => (value < 1e12 ? `${round(value / 1e9)} GB` : `${round(value / 1e12)} TB`);

/** Parses a size such as `1.5 GiB` or `4096`; null if invalid. */
export function bytesOf(text: string): number | null {
  const [, value, unit = 'B'] = /^\s*(\d+(?:\.\d+)?)\s*([KMGTP]?i?B)?\s*$/i.exec(text) ?? [];
  const power = ['b', 'kib', 'mib', 'gib', 'tib', 'pib'].indexOf(unit.toLowerCase());
  return value === undefined || power < 0 ? null : Math.round(Number(value) * 1024 ** power);
}

export const bytesRate = (value: number) => `${bytes(value)}/s`;

/** Formats microseconds. */
export function time(us: number | null): string {
  if (us === null) return '–';
  if (us < 1e3) return `${round(us)} µs`;
  if (us < 1e6) return `${round(us / 1e3)} ms`;
  return duration(us / 1e6);
}

/** Bounds of the latency histogram in microseconds. */
const LATENCY_US_MIN = 16.384;
const LATENCY_US_MAX = 34_359_738.368;

/** Formats a latency of client requests in microseconds. */
export function latency(us: number | null): string {
  if (us !== null && us <= LATENCY_US_MIN) return '< 16 µs';
  return us !== null && us >= LATENCY_US_MAX ? '> 34 s' : time(us);
}

/** Formats seconds. */
export function duration(seconds: number): string {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** Formats a whole number of seconds, minutes, hours or days. */
export function wholeDuration(seconds: number): string {
  const largest = [
    { unit: 'd', seconds: 86_400 },
    { unit: 'h', seconds: 3_600 },
    { unit: 'min', seconds: 60 },
  ].find((unit) => seconds % unit.seconds === 0);
  return largest ? `${seconds / largest.seconds} ${largest.unit}` : `${seconds} s`;
}

export function percent(ratio: number | null): string {
  if (ratio === null) return '–';
  if (ratio > 0 && ratio < 0.005) return '< 1 %';
  return `${(ratio * 100).toFixed(ratio > 0.995 && ratio < 1 ? 1 : 0)} %`;
}
