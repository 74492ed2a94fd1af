// Prepared reports of three hosts: alpha, which is asked; beta of another version; and gamma, which does not answer.

const volume = (host, name, fleet, rest = {}) => ({
  volume: name,
  image: `rbd:vms/${name}?ceph_user=${host}`,
  state: fleet.owner === host && !fleet.released_to ? 'active' : 'standby',
  policy: 'write-back',
  fleet: {
    host,
    is_owner: fleet.owner === host && !fleet.released_to,
    requested_policy: 'write-back',
    take_over: 'command',
    take_over_after_seconds: 60,
    ...fleet,
  },
  ...rest,
});

const data = { undestaged_host: 'gamma', undestaged_data: '5f2c61d09a7be413' };
const silence = 'host gamma (10.0.0.3:7401) has not answered within 5 s';

export const hosts = () => [
  {
    host: 'alpha',
    address: '10.0.0.1:7401',
    version: '0.1.0',
    volumes: [
      volume('alpha', 'web01', { owner: 'alpha', ownership: 4, undestaged_host: 'alpha' }),
      volume('alpha', 'web02', { owner: 'beta', ownership: 7, owner_has_image_open: true }),
      volume('alpha', 'db01', { owner: 'gamma', ownership: 12, owner_has_image_open: false, ...data }),
      volume('alpha', 'mail', { owner: 'alpha', ownership: 2, released_to: 'gamma' }),
    ],
  },
  {
    host: 'beta',
    address: '10.0.0.2:7401',
    version: '0.2.0',
    volumes: [
      volume('beta', 'web01', { owner: 'alpha', ownership: 4, undestaged_host: 'alpha', undestaged_data: 'a1' }),
      // Another name of the same image.
      { ...volume('beta', 'web02', { owner: 'beta', ownership: 7 }, { policy: 'write-through' }), volume: 'www2' },
      volume('beta', 'db01', { owner: '', ownership: 0, ...data }, { state: 'refused' }),
      volume('beta', 'backup', { owner: 'beta', ownership: 1 }),
    ],
  },
  { host: 'gamma', address: '10.0.0.3:7401', version: '', error: silence, volumes: [] },
];
