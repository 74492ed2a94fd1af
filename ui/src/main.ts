// Where the page begins: the stream is followed, and the frame put into its place.

import { mount } from 'svelte';
import App from './App.svelte';
import { live } from './feed/live.svelte';
import './style.css';
import './charts.css';

const target = document.getElementById('app');
if (target === null) throw new Error('the page has no place for the application');
live.begin();
mount(App, { target });
