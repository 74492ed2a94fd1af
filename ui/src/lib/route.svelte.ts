// The address: `#/volumes?sort=name&down=1`. It holds everything that a link restores.

/** Parameters that links to other views keep. */
const KEPT_KEYS = ['range', 'zoom'];

class Route {
  private hash = $state(window.location.hash);
  private url = $derived(new URL(this.hash.slice(1) || '/', 'http://page'));

  segments = $derived(this.url.pathname.split('/').filter(Boolean).map(decodeURIComponent));
  query = $derived(this.url.searchParams);
  /** Query of a link to another view with the same time range. */
  keptQuery = $derived.by(() => {
    const kept = new URLSearchParams([...this.query].filter(([key]) => KEPT_KEYS.includes(key))).toString();
    return kept === '' ? '' : `?${kept}`;
  });

  constructor() {
    window.addEventListener('hashchange', () => (this.hash = window.location.hash));
  }

  /**
   * Changes query parameters; an empty value removes one.
   * With `isStep` the browser's back button returns to the previous state.
   */
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

/** Address of a volume, or of a section of its page. */
export const linkTo = (name: string, section = '') =>
  `#/volumes/${encodeURIComponent(name)}${section === '' ? '' : `/${section}`}`;

/** Address of a pool. */
export const poolLink = (name: string) => `#/pools?of=${encodeURIComponent(name)}`;
