// Export of chart data as CSV and PNG.

import { colour } from '../lib/theme.svelte';

/** A column with one value per time. */
export interface Column {
  name: string;
  values: (number | null)[];
}

const quoted = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** One line per time with at least one value; missing values are empty. */
export function csvOf(at: number[], columns: Column[]): string {
  const lines = [['time', 'at_unix_seconds', ...columns.map(({ name }) => quoted(name))].join(',')];
  for (const [index, seconds] of at.entries()) {
    const values = columns.map(({ values }) => values[index] ?? null);
    if (values.every((value) => value === null)) continue;
    lines.push([new Date(seconds * 1e3).toISOString(), seconds, ...values.map((value) => value ?? '')].join(','));
  }
  return `${lines.join('\n')}\n`;
}

/** The chart with its title above and its legend below. */
export function pictureOf(
  chart: HTMLCanvasElement,
  title: string,
  legend: { text: string; colour: string }[],
): Promise<Blob> {
  const scale = devicePixelRatio;
  const [above, below, margin] = [34 * scale, 26 * scale, 12 * scale];
  const picture = document.createElement('canvas');
  [picture.width, picture.height] = [chart.width + 2 * margin, chart.height + above + below];
  const pen = picture.getContext('2d')!;
  pen.fillStyle = colour('surface');
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.fillStyle = colour('ink');
  pen.font = `600 ${14 * scale}px system-ui, sans-serif`;
  pen.fillText(title, margin, 22 * scale);
  pen.drawImage(chart, margin, above);
  pen.font = `${12 * scale}px system-ui, sans-serif`;
  let left = margin;
  for (const { text, colour: name } of legend) {
    const top = above + chart.height + 5 * scale;
    pen.fillStyle = colour(name);
    pen.fillRect(left, top, 12 * scale, 12 * scale);
    pen.fillStyle = colour('ink');
    pen.fillText(text, left + 16 * scale, top + 11 * scale);
    left += pen.measureText(text).width + 36 * scale;
  }
  return new Promise((done, failed) => {
    picture.toBlob(
      (blob) => (blob === null ? failed(new Error('the browser created no image')) : done(blob)),
      'image/png',
    );
  });
}

/** The curl command that requests `path`. */
export function curlOf(path: string): string {
  // A quote would end the shell's string.
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
