// Colour scheme: light, dark, or the system's. Charts are canvases and redraw on a change.

type Choice = 'auto' | 'light' | 'dark';
const STORAGE_KEY = 'hotset-colours';

function stored(): Choice {
  const choice = localStorage.getItem(STORAGE_KEY);
  return choice === 'light' || choice === 'dark' ? choice : 'auto';
}

class Theme {
  private chosen = $state<Choice>(stored());
  private systemIsDark = $state(false);
  isDark = $derived(this.chosen === 'dark' || (this.chosen === 'auto' && this.systemIsDark));

  constructor() {
    const system = window.matchMedia('(prefers-color-scheme: dark)');
    this.systemIsDark = system.matches;
    system.addEventListener('change', () => (this.systemIsDark = system.matches));
    this.apply();
  }

  get choice() {
    return this.chosen;
  }

  set choice(choice: Choice) {
    this.chosen = choice;
    localStorage.setItem(STORAGE_KEY, choice);
    this.apply();
  }

  private apply() {
    if (this.chosen === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.chosen;
  }
}

export const theme = new Theme();

/** A colour of the style sheet in the current scheme, for a canvas. */
export function colour(name: string): string {
  const probe = document.createElement('i');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
