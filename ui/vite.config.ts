// How the page is built, and shown while it is changed.

import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';
import { keys } from './keys.ts';

// `npm run dev` shows the page of this folder with the figures of a daemon that runs.
const daemon = process.env.HOTSET_API ?? 'http://127.0.0.1:7400';

export default defineConfig({
  // Relative, so that a proxy may serve the page under a path.
  base: './',
  plugins: [svelte(), keys()],
  build: { target: 'es2022', emptyOutDir: false, assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  worker: { format: 'es' },
  server: { proxy: { '/api': daemon, '/login': daemon } },
});
