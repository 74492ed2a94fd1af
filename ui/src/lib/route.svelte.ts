// Where the page is: `#/volumes?sort=name&down=1`. All that a link has to bring back stands there.

/** What stays the same from one view to the next. */
const KEPT = ['range', 'zoom'];

class Route {
  private hash = $state(window.location.hash);
  private url = $derived(new URL(this.hash.slice(1) || '/', 'http://page'));

  parts = $derived(this.url.pathname.split('/').filter(Boolean).map(decodeURIComponent));
  query = $derived(this.url.searchParams);
  /** What to put behind the address of another view that shows the same time. */
  kept = $derived.by(() => {
    const kept = new URLSearchParams([...this.query].filter(([key]) => KEPT.includes(key))).toString();
    return kept === '' ? '' : `?${kept}`;
  });

  constructor() {
    window.addEventListener('hashchange', () => (this.hash = window.location.hash));
  }

  /** Changes what stands behind the question mark; empty takes it out. A step back of the browser leads to each `step`, but not to each letter of a filter. */
  set(changes: Record<string, string>, isStep = false) {
    const query = new URLSearchParams(this.query);
    for (const [key, value] of Object.entries(changes)) {
      if (value === '') query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString();
    const hash = `#${this.url.pathname}${text === '' ? '' : `?${text}`}`;
    if (isStep) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
    this.hash = window.location.hash;
  }
}

export const route = new Route();

export const linkTo = (name: string) => `#/volumes/${encodeURIComponent(name)}`;
