// Where the page is: `#/volumes?sort=name&down=1`. All that a link has to bring back stands there.

class Route {
  private hash = $state(window.location.hash);
  private url = $derived(new URL(this.hash.slice(1) || '/', 'http://page'));

  parts = $derived(this.url.pathname.split('/').filter(Boolean).map(decodeURIComponent));
  query = $derived(this.url.searchParams);

  constructor() {
    window.addEventListener('hashchange', () => (this.hash = window.location.hash));
  }

  /** Changes what stands behind the question mark; empty takes it out. No step back leads to each letter of a filter. */
  set(changes: Record<string, string>) {
    const query = new URLSearchParams(this.query);
    for (const [key, value] of Object.entries(changes)) {
      if (value === '') query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString();
    history.replaceState(null, '', `#${this.url.pathname}${text === '' ? '' : `?${text}`}`);
    this.hash = window.location.hash;
  }
}

export const route = new Route();

export const linkTo = (name: string) => `#/volumes/${encodeURIComponent(name)}`;
