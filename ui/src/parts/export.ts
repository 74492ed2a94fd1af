// Export of chart data as CSV and PNG.

import { colour } from '../lib/theme.svelte';

/** A column with one value per time. */
export interface Column {
  name: string;
  values: (number | null)[];
}

const quote = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** One line per time with at least one value; missing values are empty. */
export function csvOf(times: number[], columns: Column[]): string {
  const lines = [['time', 'at_unix_seconds', ...columns.map(({ name }) => quote(name))].join(',')];
  for (const [index, seconds] of times.entries()) {
    const values = columns.map(({ values }) => values[index] ?? null);
    if (values.every((value) => value === null)) continue;
    lines.push([new Date(seconds * 1e3).toISOString(), seconds, ...values.map((value) => value ?? '')].join(','));
  }
  return `${lines.join('\n')}\n`;
}

/** A PNG of the chart with its title above and its legend below. */
export function pngOf(
  chart: HTMLCanvasElement,
  title: string,
  legend: { text: string; colour: string }[],
): Promise<Blob> {
  const scale = devicePixelRatio;
  const [above, below, margin] = [34 * scale, 26 * scale, 12 * scale];
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [chart.width + 2 * margin, chart.height + above + below];
  const context = canvas.getContext('2d')!;
  context.fillStyle = colour('surface');
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = colour('ink');
  context.font = `600 ${14 * scale}px system-ui, sans-serif`;
  context.fillText(title, margin, 22 * scale);
  context.drawImage(chart, margin, above);
  context.font = `${12 * scale}px system-ui, sans-serif`;
  let left = margin;
  for (const { text, colour: name } of legend) {
    const top = above + chart.height + 5 * scale;
    context.fillStyle = colour(name);
    context.fillRect(left, top, 12 * scale, 12 * scale);
    context.fillStyle = colour('ink');
    context.fillText(text, left + 16 * scale, top + 11 * scale);
    left += context.measureText(text).width + 36 * scale;
  }
  return new Promise((resolve, reject) => {
    canvas.toBlob(
      (blob) => (blob === null ? reject(new Error('the browser created no image')) : resolve(blob)),
      'image/png',
    );
  });
}

/** The curl command that requests `path`. */
export function curlOf(path: string): string {
  // An apostrophe would end the quoted argument of the shell.
  const address = new URL(`api/v1/${path}`, document.baseURI.split('#')[0]).href.replaceAll("'", '%27');
  const isLocal = ['localhost', '127.0.0.1', '[::1]'].includes(window.location.hostname);
  return `curl -s ${isLocal ? '' : '-H "Authorization: Bearer $TOKEN" '}'${address}'`;
}

/** Offers the content as a download. */
export function save(content: Blob, name: string) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The download has started by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
