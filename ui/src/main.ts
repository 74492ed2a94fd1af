// Entry point: opens the feed and mounts the application.

import { mount } from 'svelte';
import App from './App.svelte';
import { live } from './feed/live.svelte';
import './style.css';
import './frame.css';
import './volume.css';
import './charts.css';
import './pools.css';
import './fleet.css';

const target = document.getElementById('app');
if (target === null) throw new Error('no element #app');
live.start();
mount(App, { target });
