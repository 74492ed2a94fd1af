// What tests of the page do with a browser.

/** The page in a browser of its own, which has to run without an error. */
export async function openPage({ daemon, browser, t }, view = '', options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  t?.after(() => context.close());
  const page = await context.newPage();
  page.errors = [];
  page.on('pageerror', (error) => page.errors.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') page.errors.push(message.text());
  });
  await page.goto(daemon.url + view);
  return page;
}

export const badge = (page, kind) => page.waitForSelector(`[data-badge=${kind}]`, { timeout: 15_000 });

/** What a tab behind another is told; Playwright's own stay visible. */
export const setVisible = (page, isVisible) =>
  page.evaluate(
    (state) => {
      Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    },
    isVisible ? 'visible' : 'hidden',
  );
