// Generated from crates/api/openapi.json by `npm run types`.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
  schemas: {
    /** @description A page of advice: volumes by name. */
    AdvicePage: {
      /** @description Assumptions. */
      assumptions: components['schemas']['AssumptionsReport'];
      /** @description Value of `after` for the next page; null on the last page. */
      next: string | null;
      /** @description Advice by volume. */
      volumes: components['schemas']['VolumeAdvice'][];
    };
    /** @description The acknowledgement of an active alert; it ends with the alert. */
    AlertAcknowledgement: {
      /** @description Time, in milliseconds since 1970. */
      at_unix_ms: number;
      /** @description The user or the token. */
      by: string;
    };
    /**
     * @description A channel by which alerts reach administrators.
     * @enum {string}
     */
    AlertChannel: 'webhook' | 'mail';
    /**
     * @description Kinds of alerts.
     * @enum {string}
     */
    AlertKind:
      | 'volume-refused'
      | 'core-silent'
      | 'flash-data-lost'
      | 'no-copy'
      | 'flash-unused'
      | 'flash-degraded'
      | 'drive-failing'
      | 'backing-lost'
      | 'destage-failing'
      | 'backing-errors'
      | 'backing-hung'
      | 'flash-hung'
      | 'certificate-expired'
      | 'state-disk'
      | 'pool-full'
      | 'memory-not-kept'
      | 'unflushed-writes-lost'
      | 'single-copy'
      | 'policy-reduced'
      | 'dirty-too-old'
      | 'backing-slow'
      | 'datastore-congested'
      | 'endurance'
      | 'flash-unclaimed'
      | 'flash-unlisted'
      | 'pool-nearly-full'
      | 'certificate-expires'
      | 'login-refused'
      | 'fleet-host-silent'
      | 'history-disk'
      | 'events-disk'
      | 'webhook-failing'
      | 'mail-failing'
      | 'other'
      | 'pool-filling'
      | 'cache-paused'
      | 'volatile-writes'
      | 'pages-dropped'
      | 'fleet-versions-mixed'
      | 'metrics-left-out';
    /** @description An active alert. */
    AlertReport: {
      acknowledged: components['schemas']['AlertAcknowledgement'] | null;
      /** @description Cause. */
      cause: string;
      /** @description Effect. */
      effect: string;
      /** @description Identifier for commands: the kind, and after a colon the subject if there is one. */
      id: string;
      /** @description Kind. */
      kind: components['schemas']['AlertKind'];
      /** @description Remedy. */
      remedy: string;
      /** @description Severity. */
      severity: components['schemas']['Severity'];
      silenced: components['schemas']['SilenceReport'] | null;
      /** @description Start, in milliseconds since 1970. */
      since_unix_ms: number;
      /** @description The volume, device or part of the daemon concerned; null for the whole daemon. */
      subject: string | null;
    };
    /** @description Assumptions of advice in display units. */
    AssumptionsReport: {
      /**
       * @description Latency of the array: as requested, and then for all volumes; otherwise the default for volumes without a
       *     measured one.
       */
      array_latency_us: number;
      /** @description Latency of flash. */
      flash_latency_us: number;
      /** @description Latency of memory. */
      memory_latency_us: number;
      /** @description Requests per second of one disk. */
      spindle_requests_per_s: number;
    };
    /** @description Requests to a backing of one operation and cause. */
    BackingRequests: {
      /** @description Their bytes. */
      bytes: number;
      /** @description `client-read`, `destage`, `readahead` or `promotion`. */
      cause: string;
      /** @description Latencies at the backing; absent on the stream. */
      latency?: components['schemas']['Counts'];
      /** @description `read`, `write`, `zero` or `flush`. */
      op: string;
      /** @description Requests. */
      requests: number;
    };
    /** @description A certificate chain. */
    CertificateReport: {
      /** @description Earliest expiry in the chain, in seconds since 1970; null if unknown. */
      ends_unix_seconds: number | null;
      /** @description Its file. */
      file: string;
      /** @description Its table in the configuration: `api` or `nbd`. */
      table: string;
    };
    /** @description Result of a test of one channel. */
    ChannelTestReport: {
      /** @description The channel. */
      channel: components['schemas']['AlertChannel'];
      /** @description The receiver's answer, or why there was none; null if the receiver accepted the message. */
      error: string | null;
      /** @description Destination, without secrets. */
      to: string;
    };
    /** @description All configuration keys of this version of Hotset. */
    ConfigurationReport: {
      /** @description Path of the configuration file. */
      file: string;
      /** @description All keys, in the order of the documentation. */
      keys: components['schemas']['KeyReport'][];
    };
    /** @description Volumes, connections and memory of one data core. */
    CoreReport: {
      /** @description Connections that it serves. */
      connections: number;
      /** @description Its number, from 0. */
      core: number;
      /** @description Bytes of index and policy. */
      index_bytes: number;
      /** @description Size of its pool. */
      pool_bytes: number;
      /** @description Bytes in use. */
      pool_used_bytes: number;
      /** @description Volumes that it serves. */
      volumes: number;
    };
    /**
     * @description Latencies of one kind of request, in buckets that add up over volumes and time. Empty buckets may be left out: a
     *     bucket begins at the bound of the entry before it.
     */
    Counts: {
      /** @description Requests that were counted. */
      all: number;
      /** @description By growing latency. The first bound is the shortest measured latency. */
      below: components['schemas']['CountsBelow'][];
      /** @description Sum of their latencies. */
      sum_us: number;
    };
    /** @description Requests that took less than a time. */
    CountsBelow: {
      /** @description How many took less. */
      count: number;
      /** @description The time. */
      us: number;
    };
    /** @description One curve. */
    Curve: {
      /** @description Accessed blocks or pages; older accesses count less. */
      accesses: number;
      /** @description By growing size, 64 at most. */
      points: components['schemas']['Point'][];
      /** @description Bytes of a block or page. */
      unit_bytes: number;
      /** @description Bytes of the recently accessed blocks or pages. */
      working_set_bytes: number;
    };
    /**
     * @description Phase of the daemon's life that an event reports.
     * @enum {string}
     */
    DaemonPhase: 'running' | 'ended';
    /**
     * @description A datastore: its state, and sums over its volumes since the daemon started. The name is empty for volumes without a
     *     datastore, whose congestion is unknown.
     */
    Datastore: components['schemas']['DatastoreReport'] & components['schemas']['Totals'];
    /** @description State of a datastore: congestion, during which shares count, and the use of each volume. */
    DatastoreReport: {
      /** @description Recent small disk accesses per second. */
      accesses_per_second: number;
      /** @description True while latency is past the threshold: volumes above their entitlement wait for the others. */
      congested: boolean;
      /** @description Time of congestion since the start. */
      congested_seconds_total: number;
      /** @description Number of congestion episodes. */
      congestion_episodes: number;
      /** @description Recent congestion episodes, the newest last. */
      episodes: components['schemas']['EpisodeReport'][];
      /** @description True for the flash devices, which all volumes share, instead of a `[[datastore]]`. */
      is_flash: boolean;
      /** @description Mean latency of recent requests. */
      latency_ms: number;
      /** @description Use by each volume, by name. */
      members: components['schemas']['MemberReport'][];
      /** @description Its name. */
      name: string;
      /** @description Accesses per second during congestion; absent before the first congestion. */
      shown_accesses_per_second?: number | null;
      /** @description True if the threshold was determined by measurement (`auto`). */
      threshold_found: boolean;
      /** @description Congestion threshold. */
      threshold_ms: number;
      /** @description Small accesses in flight. */
      under_way: number;
      /** @description Limit of small accesses in flight during congestion; absent otherwise. */
      window?: number | null;
    };
    /** @description State of the delivery of alerts to one receiver. */
    DeliveryHealth: {
      /** @description Delivered messages. */
      delivered: number;
      /** @description Dropped messages. */
      dropped: number;
      /** @description Error of the last attempt; null if it succeeded. */
      failed: string | null;
      /** @description Failed attempts. */
      failures: number;
      /** @description Destination, without secrets. */
      to: string;
      /** @description Waiting messages. */
      waiting: number;
    };
    /** @description A device to drain. */
    DrainedDevice: {
      /** @description Return it to service instead. */
      cancel?: boolean;
      /** @description Its path, or the number of its group. */
      device: string;
    };
    /** @description A drive's own health log, read by `smartctl` every five minutes. Values that a drive does not report are absent. */
    DriveReport: {
      /** @description The whole drive that contains the device. */
      drive: string;
      /** @description Uncorrected media errors over its life. */
      media_errors: number | null;
      /** @description Its model. */
      model: string;
      /** @description When the log was last read, in seconds since 1970; 0 before the first reading. */
      read_unix_seconds: number;
      /** @description Remaining part of the spare blocks. */
      spare_ratio: number | null;
      /** @description Part of the spare blocks below which the drive warns. */
      spare_threshold_ratio: number | null;
      /** @description Degrees Celsius. */
      temperature_celsius: number | null;
      /** @description Error of the last reading; empty if it succeeded. */
      unread: string;
      /** @description Warnings of the drive. */
      warnings: string[];
      /** @description Used part of the rated life; above 1 past its end. */
      wear_used_ratio: number | null;
    };
    /** @description A job that has ended. */
    EndedJobReport: {
      /** @description End, in milliseconds since 1970. */
      ended_unix_ms: number;
      /** @description Identifier. */
      id: string;
      /** @description Kind. */
      kind: components['schemas']['JobKind'];
      /** @description Outcome. */
      outcome: components['schemas']['JobOutcome'];
      /** @description Reason of a failure or cancellation; else empty. */
      reason: string;
      /** @description The volume or device concerned. */
      subject: string;
    };
    /** @description Value of one volume, datastore or array. */
    EntryReport: {
      /** @description Name of the volume, datastore or array. */
      name: string;
      /** @description Source of the value. */
      source: components['schemas']['KeySource'];
      /** @description Value in force. */
      value: string;
    };
    /** @description A congestion episode of a datastore. */
    EpisodeReport: {
      /** @description Second since 1970 in which it began. */
      began_unix_seconds: number;
      /** @description The volume whose use was furthest above its entitlement when it began. */
      caused_by: string;
      /** @description Volumes that were active then, sixteen at most. */
      contenders: string[];
      /** @description Second in which it ended; absent while it lasts. */
      ended_unix_seconds?: number | null;
    };
    /**
     * @description Kinds of events.
     * @enum {string}
     */
    EventKind: 'change' | 'state' | 'policy' | 'limit' | 'device' | 'alert' | 'daemon';
    /** @description An entry of the event log. */
    EventReport: {
      /** @description Actor: `user NAME`, `token NAME from ADDRESS` or `configuration reload`; null without one. */
      actor: string | null;
      /** @description When, in milliseconds since 1970. */
      at_unix_ms: number;
      /** @description Kind. */
      kind: components['schemas']['EventKind'];
      /** @description Its number. Numbers grow, across restarts too. */
      number: number;
      phase?: components['schemas']['DaemonPhase'] | null;
      /** @description The volume or device concerned, if any. */
      subject: string | null;
      /** @description Description. */
      text: string;
    };
    /** @description State of the event log. */
    EventsHealth: {
      /** @description Why nothing can be written now. */
      failed: string | null;
      /** @description Events since the start that a restart loses, because they could not be written to disk in time. */
      lost: number;
      /** @description Number of the newest event; 0 before there is one. */
      newest: number;
    };
    /** @description Events, the newest first. */
    EventsPage: {
      /** @description The requested number of events, or all that are left. */
      events: components['schemas']['EventReport'][];
      /** @description Value of `before` for the next page; null on the last page. */
      next: number | null;
    };
    /** @description A number, or a text as in the configuration. */
    Figure: number | string;
    /** @description One figure over time. */
    FigureReport: {
      /** @description `counter` for increments, `level` for values at a point in time. */
      kind: string;
      /** @description Maximum over the recorded seconds. */
      max: number[];
      /** @description Mean over the recorded seconds. */
      mean: number[];
      /** @description Minimum over the recorded seconds. */
      min: number[];
      /** @description Sum of a counter's increments in each step; empty for a level. */
      sum?: number[];
      /** @description Unit; of a counter, mean, minimum and maximum are per second. */
      unit: string;
    };
    /** @description A device of the flash cache. */
    FlashDeviceReport: {
      /** @description Its path; empty if it is absent and its path is not known. */
      device: string;
      drive: components['schemas']['DriveReport'] | null;
      /** @description Days until the rated writes are used up at the mean rate so far; null in the first hour. */
      endurance_left_days: number | null;
      /** @description Used part of its rated writes (`endurance_dwpd` a day for five years); null without a rating. */
      endurance_used_ratio: number | null;
      /** @description Bytes of the map journal written to it since the start. */
      journal_bytes: number;
      /** @description Bytes of the log written to it since the start. */
      log_bytes: number;
      /** @description Number of the device that takes over the log if this one is removed; null if none does. */
      log_successor: number | null;
      /** @description Its number in the store, from 0. */
      number: number;
      /** @description Clean pages on it. */
      pages: number;
      /**
       * @description Clean pages that its removal drops: those for which the other devices have no room, or, if another device takes
       *     over the log, all pages of both.
       */
      pages_lost_if_removed: number;
      /** @description Bytes of pages written to it since the start. */
      promotion_bytes: number;
      /** @description Reason why it is not in service. */
      reason: string;
      /** @description `log` if it also carries the log of dirty data, `pages` if it holds only clean pages. */
      role: string;
      /** @description Its size; 0 while it is absent. */
      size_bytes: number;
      /** @description `in-service`, `lost` or `stale`. */
      state: string;
      /** @description Age of the oldest request that it has not answered, in milliseconds; 0: it has answered all. */
      unanswered_ms: number;
      /** @description Bytes written to it across all restarts. */
      written: components['schemas']['WrittenReport'];
    };
    /** @description A change of the flash devices in progress. */
    FlashJobReport: {
      /** @description The device, by path or number. */
      device: string;
      /** @description Bytes copied. */
      done_bytes: number;
      /** @description Kind; never `flush`. */
      kind: components['schemas']['JobKind'];
      /** @description Estimated remaining time; null if unknown. */
      left_seconds: number | null;
      /** @description True while it is paused until `flash resume`. */
      paused: boolean;
      /** @description Bytes in total. */
      total_bytes: number;
    };
    /** @description The flash cache: dirty-data log and clean pages. */
    FlashReport: {
      /** @description Configured devices that are not in use, with reasons. */
      absent: string[];
      /** @description Present problems. */
      alerts: string[];
      /** @description Configured to work with a single copy. */
      allow_single_copy: boolean;
      /** @description Copies of the log: devices in service that carry it. */
      copies: number;
      /** @description Its devices. */
      devices: components['schemas']['FlashDeviceReport'][];
      /** @description Bytes of dirty data in the log. */
      dirty_bytes: number;
      /** @description Why the health of the drives could not be read; null if it was, or has not been tried. */
      drive_health_error: string | null;
      /** @description Segments of the log that are free. */
      free_segments: number;
      /** @description Paths of the configured devices that did not answer when the daemon started. */
      hung: string[];
      /** @description True while the log is in use: flushes are acknowledged once their data is in it. */
      in_use: boolean;
      /** @description The log lies on an image, whose cluster keeps the copies: one device carries it. */
      is_log_on_image: boolean;
      job: components['schemas']['FlashJobReport'] | null;
      /** @description Lost blocks found by reads: they cannot be read until they are written again. */
      lost: components['schemas']['LostBlockReport'][];
      /** @description Clean pages. */
      pages: components['schemas']['PagesReport'];
      /** @description Code of the refusal (`docs/admin/refusals.md`), if the cache is refused. */
      refusal?: string | null;
      /** @description Findings of the scrub. */
      scrub: components['schemas']['ScrubReport'];
      /** @description Segments of the log. */
      segments: number;
      /** @description True if the core of the log did not answer in time: the figures are those of its last answer. */
      silent: boolean;
      /** @description Identity of the store, 32 hexadecimal digits; empty if it is not in use. */
      store: string;
      /** @description Volumes with data in the log that are not served. */
      unclaimed: number;
      /** @description Volumes with dirty data in the log. */
      volumes: string[];
      /** @description Bytes written to all devices per byte of user data since the start; null without user data. */
      write_amplification: number | null;
    };
    /** @description A volume's use of the flash cache. */
    FlashUse: {
      /** @description Blocks that could not be read from flash, or failed verification. */
      bad_blocks: number;
      /** @description Readable bytes of these pages. */
      cached_bytes: number;
      /** @description True once its pages from before the start are verified; until then reads use the backing. */
      checked: boolean;
      /** @description Bytes of these that were read from log records of data that was already destaged. */
      kept_read_bytes: number;
      /** @description Memory of the index of log records, in bytes. */
      log_index_bytes: number;
      /** @description Bytes of dirty content written to the log, one copy counted. */
      logged_bytes: number;
      /** @description Most flash: a size, a percentage, or `none`. */
      max: string;
      /** @description Guaranteed flash: a size or percentage. */
      min: string;
      /** @description Cache misses by reason. */
      not_hit: {
        [key: string]: number;
      };
      /** @description Used pages that were not promoted, by reason. */
      not_promoted: {
        [key: string]: number;
      };
      /** @description Its pages on flash. */
      pages: number;
      /** @description Reason why the last incomplete pinned page could not be promoted; empty while it is being promoted. */
      pin_waits: string;
      /** @description Pinned pages. */
      pinned_pages: number;
      /** @description Pinned pages that are complete on flash. */
      pinned_whole_pages: number;
      /** @description Bytes of content written by promotion. */
      promoted_bytes: number;
      /** @description Bytes read from flash. */
      read_bytes: number;
    };
    /** @description A host of the fleet, with the volumes of its configuration that several hosts can have. */
    FleetHostReport: {
      /** @description The address at which it listens for other hosts; empty if this host has no link to others. */
      address?: string;
      /** @description The reason why it has not answered. */
      error?: string | null;
      /** @description Its name. */
      host: string;
      /** @description Version of its daemon; empty if it has not answered. */
      version?: string;
      /** @description Its volumes. */
      volumes?: components['schemas']['FleetVolumeReport'][];
    };
    /** @description Another host of the fleet, as its last answers show it. It is asked every 15 seconds. */
    FleetPeerReport: {
      /** @description The reason why it has not answered the last request; null if it has. */
      error: string | null;
      /** @description Its name. */
      host: string;
      /** @description Time since its last answer, or since it is asked. */
      silent_ms: number;
      /** @description Version of its daemon at the last answer; empty before the first one. */
      version: string;
    };
    /** @description The ownership. */
    FleetReport: {
      /** @description Name of this host. */
      host: string;
      /** @description This host owns it. */
      is_owner: boolean;
      /** @description The host that owns the image; empty while that is not known. */
      owner: string;
      /** @description A client has the image open; only on standby. */
      owner_has_image_open?: boolean | null;
      /** @description Number of the ownership among those of the image; 0 while that is not known. */
      ownership: number;
      /** @description The owner has given the image up: the host that may claim it, or `any`. */
      released_to?: string | null;
      /** @description The policy of the configuration and of commands; the one in effect is the volume's `policy`. */
      requested_policy: string;
      /** @description `command` or `automatic`. */
      take_over: string;
      /** @description Absence of the owner before an automatic take-over. */
      take_over_after_seconds: number;
      /** @description The name of that data, for `--give-up`; only of another host. */
      undestaged_data?: string | null;
      /** @description The host that may have flushed data which the image lacks. */
      undestaged_host?: string | null;
    };
    /** @description A volume and its ownership. */
    FleetVolumeReport: {
      /** @description Its ownership. */
      fleet: components['schemas']['FleetReport'];
      /** @description Its image. */
      image: string;
      /** @description The policy in effect on this host. */
      policy: string;
      /** @description Its state on this host. */
      state: components['schemas']['VolumeState'];
      /** @description The volume. */
      volume: string;
    };
    /** @description Options of a flush. */
    Flush: {
      /** @description Answer when the flush is done; otherwise with its job, once it has started. */
      wait: boolean;
    };
    /** @description Recent accesses to each part of a volume. */
    HeatReport: {
      /** @description Seconds for which rows are kept. */
      keep_seconds: number;
      /** @description Bytes of a part. */
      part_bytes: number;
      /** @description Minutes with accesses, the oldest first. */
      rows: components['schemas']['HeatRow'][];
      /** @description The volume's size. */
      size_bytes: number;
      /** @description Seconds of a row. */
      step_seconds: number;
    };
    /** @description A row: each request is counted in the part where it begins. */
    HeatRow: {
      /** @description When it begins, in seconds since 1970. */
      at_unix_seconds: number;
      /** @description Reads of each part, by address. */
      reads: number[];
      /** @description Writes of each. */
      writes: number[];
    };
    /** @description State of the history file. */
    HistoryHealth: {
      /** @description Present size of the file. */
      bytes: number;
      /** @description Why nothing can be written now. */
      failed?: string | null;
      /** @description Maximum size of the file. */
      limit_bytes: number;
      /** @description Rows dropped since the start because they could not be written in time. */
      lost_rows: number;
      /** @description Resolutions with their retention, the finest first. */
      tiers: components['schemas']['TierReport'][];
    };
    /**
     * @description Figures over time of a volume, of a datastore, or of all volumes. Every column is as long as `at_unix_seconds`;
     *     unknown steps are null.
     */
    HistoryReport: {
      /** @description When each step begins. */
      at_unix_seconds: number[];
      /** @description Seconds of each step for which data was recorded. */
      covered_seconds: number[];
      /** @description The datastore, empty for volumes without one; absent for other histories. */
      datastore?: string | null;
      /** @description Begin of the range, in seconds since 1970. */
      from_unix_seconds: number;
      /** @description Latencies of `read` and `write`. */
      latency: {
        [key: string]: components['schemas']['LatencyFigures'];
      };
      /** @description The pool; absent for other histories. */
      pool?: string | null;
      /** @description Figures by name. */
      series: {
        [key: string]: components['schemas']['FigureReport'];
      };
      /** @description Seconds between two entries: the requested step, or the finest that is still kept for that time. */
      step_seconds: number;
      /** @description Finest resolution of minima and maxima in the data, in seconds. */
      tier_seconds: number;
      /** @description End of the range. */
      to_unix_seconds: number;
      /** @description The volume; absent for other histories. */
      volume?: string | null;
    };
    /** @description A device full of data. */
    ImportedDevice: {
      /** @description Import a device that carries a signature of md, LVM, ZFS, LUKS or another storage stack. */
      force?: boolean;
      /** @description The device, partition or file. */
      path: string;
      /** @description Name of the tier. */
      tier: string;
      /** @description Name of the new volume. */
      volume: string;
    };
    /** @description Options of an invalidation. */
    Invalidation: {
      /** @description The volume's name once more: discard dirty data instead of refusing. */
      discard_dirty?: string | null;
    };
    /** @description The target. */
    IscsiReport: {
      /** @description Connections since the start. */
      connections: number;
      /** @description Connections that ended before their login: refused, malformed, lost, or too slow. */
      failed_logins: number;
      /** @description Present connections that are not logged in. */
      half_open: number;
      /** @description Addresses at which it listens. */
      portals: string[];
      /** @description Logins refused within the last minute, by initiator and reason, sixteen at most. */
      refused_logins: components['schemas']['RefusedLoginReport'][];
      /** @description Sessions. */
      sessions: components['schemas']['IscsiSessionReport'][];
      /** @description Its name. */
      target: string;
    };
    /** @description An initiator's session. */
    IscsiSessionReport: {
      /** @description Commands that were aborted. */
      aborted: number;
      /** @description The initiator's alias; may be empty. */
      alias: string;
      /** @description True if the initiator has authenticated itself. */
      authenticated: boolean;
      /** @description Commands so far. */
      commands: number;
      /** @description Data are followed by a checksum. */
      data_digest: boolean;
      /** @description True for a discovery session. */
      discovery: boolean;
      /** @description Headers are followed by a checksum. */
      header_digest: boolean;
      /** @description The initiator's name. */
      initiator: string;
      /** @description The portal that it connected to. */
      portal: string;
      /** @description Bytes read. */
      read_bytes: number;
      /** @description Its number (TSIH). */
      session: number;
      /** @description The slowest commands of the last hour that had to wait, the slowest first, eight at most. */
      slowest: components['schemas']['SlowCommandReport'][];
      /** @description Commands in flight. */
      under_way: number;
      /** @description Bytes written. */
      write_bytes: number;
    };
    /**
     * @description Kind of a job.
     * @enum {string}
     */
    JobKind: 'flush' | 'add' | 'remove' | 'replace' | 'take-over' | 'drain';
    /**
     * @description Outcome of a job.
     * @enum {string}
     */
    JobOutcome: 'done' | 'failed' | 'called-off';
    /** @description A job in progress. */
    JobReport: {
      /** @description Bytes done; of a flush, the decrease of dirty data since its start. */
      done_bytes: number;
      /** @description Identifier, for `job cancel`. */
      id: string;
      /** @description Kind. */
      kind: components['schemas']['JobKind'];
      /** @description Estimated remaining time; null if unknown. */
      left_seconds: number | null;
      /** @description True while it is paused. */
      paused: boolean;
      /** @description The volume or device concerned. */
      subject: string;
      /** @description Bytes in total. */
      total_bytes: number;
    };
    /** @description A key. Values are written as in the file, without quotes, brackets and secrets. */
    KeyReport: {
      /** @description Default value. */
      default: string;
      /** @description Values of a repeated table that differ from the default, by the name of the volume, datastore or array. */
      entries: components['schemas']['EntryReport'][];
      /** @description Name of the key. */
      key: string;
      /** @description Source of the value. */
      source: components['schemas']['KeySource'];
      /** @description Table of the key; empty at the top level. */
      table: string;
      /** @description When a change of the key in the file takes effect. */
      takes_effect: components['schemas']['TakesEffect'];
      /** @description Value in force; null for a repeated table. */
      value: string | null;
    };
    /**
     * @description Where a value comes from.
     * @enum {string}
     */
    KeySource: 'default' | 'file' | 'command';
    /**
     * @description Latency histograms of client requests. The total is what clients see: service time and held time together. Held time
     *     is the wait for the volume's limit and for requests of other volumes.
     */
    LatencyCountsReport: {
      /** @description Total of reads. */
      read: components['schemas']['Counts'];
      /** @description Held time of reads; absent if no read was held. */
      read_held?: components['schemas']['Counts'];
      /** @description Service time of reads; absent if no read was held, then it equals the total. */
      read_service?: components['schemas']['Counts'];
      /** @description Total of writes. */
      write: components['schemas']['Counts'];
      /** @description Held time of writes; absent if no write was held. */
      write_held?: components['schemas']['Counts'];
      /** @description Service time of writes; absent if no write was held, then it equals the total. */
      write_service?: components['schemas']['Counts'];
    };
    /** @description Latencies over time, of the histograms of all requests of each step. */
    LatencyFigures: {
      /** @description Upper ends of the histogram's buckets; the last one has none. */
      bounds_us: number[];
      /** @description Requests. */
      count: number[];
      /** @description For each step the requests of each bucket. They add up, over steps and over volumes. */
      counts: number[][];
      /** @description Mean in microseconds; null without requests, as the next three. */
      mean_us: (number | null)[];
      /** @description Median. */
      p50_us: (number | null)[];
      /** @description 99.9th percentile. */
      p999_us: (number | null)[];
      /** @description 99th percentile. */
      p99_us: (number | null)[];
    };
    /**
     * @description Latency of a volume's requests since the start, in microseconds: what clients see. A value of at most 16.384 is a
     *     bound: shorter latencies are not measured.
     */
    LatencyReport: {
      /** @description Of reads. */
      read: components['schemas']['Quantiles'];
      read_held?: components['schemas']['Quantiles'] | null;
      read_service?: components['schemas']['Quantiles'] | null;
      /** @description Of writes. */
      write: components['schemas']['Quantiles'];
      write_held?: components['schemas']['Quantiles'] | null;
      write_service?: components['schemas']['Quantiles'] | null;
    };
    /** @description The principal that is logged in now. */
    LoggedIn: {
      /** @description The token's name. */
      name: string;
      role: components['schemas']['Role'];
    };
    /** @description A token to log in with. */
    Login: {
      token: string;
    };
    /** @description A dirty block without a good copy on any flash device. */
    LostBlockReport: {
      /** @description Byte offset of the 4 KiB block. */
      at_bytes: number;
      /** @description Its identity, 16 hexadecimal digits. */
      incarnation: string;
      /** @description The volume; empty while it is not served. */
      volume: string;
    };
    /** @description Adjacent lost blocks of a volume. */
    LostRange: {
      /** @description First byte. */
      at_bytes: number;
      /** @description Bytes. */
      length_bytes: number;
    };
    /** @description A volume's use of a datastore. */
    MemberReport: {
      /** @description Its accesses since the start, in small accesses. */
      accesses: number;
      /** @description Entitled part of the datastore beside the volumes that are active now. */
      entitled_ratio: number;
      /** @description Reserved requests of 4 KiB per second. */
      reservation_iops: number;
      /** @description Its weight. */
      shares: number;
      /** @description Its part of the accesses of the last second. */
      used_ratio: number;
      /** @description The volume. */
      volume: string;
      /** @description Sum of their waits. */
      waited_us: number;
      /** @description Requests waiting now. */
      waiting: number;
      /** @description Requests that waited for an I/O slot. */
      waits: number;
    };
    /** @description A volume's quota of memory. */
    MemoryUse: {
      /** @description Most memory: a size, a percentage, or `none`. */
      max: string;
      /** @description Guaranteed memory: a size or percentage. */
      min: string;
      /** @description Target by the volumes' miss-ratio curves; absent while the replacement policy alone divides memory. */
      target_bytes?: number | null;
    };
    /** @description A volume's two curves. */
    MissRatioCurve: {
      /** @description Of flash, in pages of 64 KiB. */
      flash: components['schemas']['Curve'];
      /** @description Of memory, in blocks of 4 KiB. */
      memory: components['schemas']['Curve'];
      /** @description Time since the volume was attached. */
      observed_ms: number;
    };
    /** @description Options of a move. */
    Move: {
      /** @description The host that may claim the image; without it any. */
      to?: string | null;
    };
    /** @description A clone to create. */
    NewClone: {
      /** @description Name of the new volume. */
      volume: string;
    };
    /** @description A device to add. */
    NewDevice: {
      /** @description Destroy what it holds. */
      force?: boolean;
      /** @description The device, partition or file. */
      path: string;
      /** @description The device that it replaces: its path or its number. Without it the device is added. */
      replace?: string | null;
    };
    /** @description A device to add to a pool. */
    NewPoolDevice: {
      /** @description Destroy what it holds. */
      force?: boolean;
      /** @description The device, partition or file. */
      path: string;
      /** @description Name of the tier. */
      tier: string;
    };
    /** @description A silence to be added. */
    NewSilence: {
      /** @description The reason, up to 200 bytes. */
      reason?: string | null;
      /** @description Duration in seconds: 1 to 2,592,000 (30 days). */
      seconds: number;
    };
    /** @description A snapshot to take. */
    NewSnapshot: {
      /** @description Its name. */
      name: string;
    };
    /** @description A token to create. */
    NewToken: {
      /** @description Up to 64 letters, digits and - _ . @ */
      name: string;
      role: components['schemas']['Role'];
    };
    /** @description A volume to add. */
    NewVolume: {
      /** @description A path or a URI, as in the configuration. */
      backing: string;
      name: string;
      policy?: string | null;
      /** @description Only for a new volume on a pool: `thin` or `thick`; without it `thin`. */
      provisioning?: string | null;
      read_only?: boolean;
      /** @description Only for a backing without a size of its own. */
      size_bytes?: number | null;
      /**
       * @description Only for a new volume on a pool: `auto`, `start-high`, `highest`, `lowest` or the name of a tier; without it
       *     `auto`.
       */
      tier_policy?: string | null;
    };
    /** @description A change made by command that differs from the file. */
    OverrideReport: {
      /** @description Value in the file. */
      file: string;
      /** @description The key. */
      key: string;
      /** @description Value in force. */
      value: string;
      /** @description The volume. */
      volume: string;
    };
    /** @description Clean pages on flash. */
    PagesReport: {
      /** @description Dirty regions of 4 MiB: a crash would make their pages suspect. */
      dirty_regions: number;
      /** @description Reason why all pages from before the start were dropped. */
      dropped: string | null;
      /** @description Bytes that promotion may write now within the devices' endurance; null without a limit. */
      endurance_left_bytes: number | null;
      /** @description Evicted pages. */
      evictions: number;
      /** @description True once the map was read. */
      loaded: boolean;
      /** @description Memory for the map. */
      memory_bytes: number;
      /** @description Pages present. */
      pages: number;
      /** @description One in this many eligible promotions is carried out; adapts to the gain of recent promotions. */
      promote_one_in: number;
      /** @description Capacity in pages. */
      slots: number;
      /** @description Suspect pages: compared with the backing before use. */
      suspect: number;
      /**
       * @description Pages of 64 KiB for which the devices have further room, and the map of clean pages, sized when the store was
       *     created, has none.
       */
      unmapped_slots: number;
      /** @description Bytes that can be read from them. */
      valid_bytes: number;
    };
    /** @description A point of a curve. */
    Point: {
      /** @description Miss ratio of an LRU cache of that size. */
      miss_ratio: number;
      /** @description The size of a cache. */
      size_bytes: number;
    };
    /** @description The slices of a volume of a pool, in at most 2,048 cells. */
    PoolCellsReport: {
      /** @description Bytes of a cell; the last one may have fewer. */
      cell_bytes: number;
      /** @description Bytes of the allocated slices of each cell in each tier, in the order of the tiers. */
      tier_bytes: number[][];
      /** @description Names of the tiers, the fastest first. */
      tiers: string[];
      /** @description Disk time of each cell for each hour: what the expected requests would cost on the slowest tier. */
      us_per_hour: number[];
    };
    /** @description The class of a tier's devices, which tells what a move between tiers is worth. */
    PoolClassReport: {
      /** @description Rate of sequential reads. */
      bytes_per_second: number;
      /** @description True if it was measured when the pool was opened. */
      measured: boolean;
      /** @description `nvme`, `ssd`, `15k`, `10k` or `nl-sas`: the configured class, or the one most like the measured reads. */
      name: string;
      /** @description Random reads that a device serves at once. */
      parallel: number;
      /** @description Time of a random read of 4 KiB. */
      read_us: number;
    };
    /** @description Share of the load that the hottest slices carry. */
    PoolCurveReport: {
      /** @description Their part of the disk time of all slices, in millionths. */
      load_ppm: number;
      /** @description The hottest slices, in millionths of all allocated slices. */
      slices_ppm: number;
    };
    /** @description The drain of a device. */
    PoolDrainReport: {
      /** @description Bytes moved since its start, or since the start of the daemon. */
      done_bytes: number;
      /** @description Estimated remaining time; null if unknown. */
      left_seconds: number | null;
      /** @description True while moves of the pool are paused. */
      paused: boolean;
      /** @description The reason why slices stay for now; null if none does. */
      problem: string | null;
      /** @description Bytes that were on the device then. */
      total_bytes: number;
    };
    /** @description A group of a pool: one device. */
    PoolGroupReport: {
      /** @description True if it carries a copy of the pool's metadata. */
      carries_metadata: boolean;
      /** @description Its device; the last known name if it is absent. */
      device: string;
      drain: components['schemas']['PoolDrainReport'] | null;
      /** @description Bytes of these that no volume uses. */
      free_bytes: number;
      /** @description Utilisation by the requests since the last relocation, in millionths; null while it takes no slices. */
      load_ppm: number | null;
      /** @description Its number. */
      number: number;
      /** @description Bytes that volumes can use. */
      size_bytes: number;
      /** @description `in-service`, `draining`, `removed` or `absent`. */
      state: string;
    };
    /** @description Slices of similar load: the disk time that their requests would cost on the slowest tier. */
    PoolHeatReport: {
      /** @description Least disk time of a slice for each hour. */
      from_ms_per_hour: number;
      /** @description Disk time of all of them for each hour. */
      ms_per_hour: number;
      /** @description Bytes of the slices in each tier. */
      tier_bytes: number[];
    };
    /** @description Load of a device of a pool. */
    PoolLoadReport: {
      /** @description The device. */
      device: string;
      /** @description Utilisation by the expected load of its slices, from which the plan follows, in millionths. */
      expected_ppm: number;
      /** @description Utilisation by the requests since the last relocation, in millionths. */
      measured_ppm: number;
      /** @description Number of its group. */
      number: number;
    };
    /** @description A range of a volume on an absent device. */
    PoolLostRangeReport: {
      /** @description The device. */
      device: string;
      /** @description Length. */
      length_bytes: number;
      /** @description Number of the device's group. */
      number: number;
      /** @description First byte in the volume. */
      offset_bytes: number;
    };
    /** @description The ranges of volumes on absent devices of a pool: requests to them fail. */
    PoolLostReport: {
      /** @description Bytes of all ranges. */
      bytes: number;
      /** @description Name of the pool. */
      pool: string;
      /** @description The volumes that have such ranges. */
      volumes: components['schemas']['PoolLostVolumeReport'][];
    };
    /** @description The ranges of one volume on absent devices. */
    PoolLostVolumeReport: {
      /** @description Bytes of its ranges. */
      bytes: number;
      /** @description Its name. */
      name: string;
      /** @description The first of them; those of all volumes are at most 1,000. */
      ranges: components['schemas']['PoolLostRangeReport'][];
      /** @description Number of its ranges. */
      total_ranges: number;
    };
    /**
     * @description Reason of a move.
     * @enum {string}
     */
    PoolMoveReason: 'promote' | 'make-room' | 'policy' | 'reserve' | 'balance';
    /** @description A planned move of a slice. */
    PoolMoveReport: {
      /** @description Disk time of the copy. */
      copy_ms: number;
      /** @description Expected time until it ends: from now, or in a plan from the start of its first move. */
      eta_seconds: number;
      /** @description Number of the group that holds it. */
      from: number;
      /** @description First byte of the slice. */
      offset_bytes: number;
      /** @description Time in which it earns its copies; null for moves by policy or for a reserve. */
      payback_seconds: number | null;
      /** @description Reason. */
      reason: components['schemas']['PoolMoveReason'];
      /** @description Disk time that the move saves each hour; negative if the slice gets slower. */
      saved_ms_per_hour: number;
      /** @description Number of the group that it moves to. */
      to: number;
      /** @description The volume. */
      volume: string;
    };
    /** @description The moves that a pool would make now. */
    PoolPlanReport: {
      /** @description Bytes to copy. */
      bytes: number;
      /** @description Disk time of the copies. */
      copy_ms: number;
      /** @description Share of the load that the hottest slices carry. */
      curve: components['schemas']['PoolCurveReport'][];
      /** @description Slices by their load. */
      heat: components['schemas']['PoolHeatReport'][];
      /** @description Load of the devices. */
      loads: components['schemas']['PoolLoadReport'][];
      /** @description The first of them, at most 1,000, in their order. */
      moves: components['schemas']['PoolMoveReport'][];
      /** @description Name of the pool. */
      pool: string;
      /** @description Disk time that the moves save each hour; negative where policies move slices to slower tiers. */
      saved_ms_per_hour: number;
      /** @description Time to copy them at the rate that is expected now. */
      seconds: number;
      /** @description Names of the tiers, the fastest first. */
      tiers: string[];
      /** @description Number of moves. */
      total_moves: number;
    };
    /**
     * @description Time at which a volume takes its space.
     * @enum {string}
     */
    PoolProvisioning: 'thin' | 'thick';
    /** @description The moves of a pool that have not ended. */
    PoolQueueReport: {
      /** @description Expected time until the last one ends. */
      left_seconds: number;
      /** @description Moves in progress. */
      moving: components['schemas']['PoolMoveReport'][];
      /** @description Number of all moves that have not begun. */
      total_waiting: number;
      /** @description The next moves in their order, at most 1,000. */
      waiting: components['schemas']['PoolMoveReport'][];
    };
    /** @description Moves of a pool's slices between tiers. Counters begin at the start of the daemon. */
    PoolRelocationReport: {
      /** @description Moves of it that have ended. */
      ended_moves: number;
      /** @description Moves that failed; their slices stay. */
      failed_moves: number;
      /** @description Bytes of these slices. */
      moved_bytes: number;
      /** @description Slices moved, drains of devices included. */
      moves: number;
      /** @description Time until the next plan; null while slices move, and where none is due. */
      next_plan_seconds: number | null;
      /** @description Moves of the present plan, or of the last one. */
      planned_moves: number;
      /** @description `rate` of the configuration. */
      rate: string;
      /** @description Planned moves of slices that had been freed or moved by then, and cancelled moves. */
      skipped_moves: number;
      /** @description State. */
      state: components['schemas']['PoolRelocationState'];
      /** @description `relocation` of the configuration. */
      times: string;
    };
    /**
     * @description State of the moves of a pool's slices.
     * @enum {string}
     */
    PoolRelocationState: 'off' | 'paused' | 'waiting' | 'idle' | 'moving';
    /** @description An open pool. */
    PoolReport: {
      /** @description Bytes of these that no volume uses. */
      free_bytes: number;
      /**
       * @description When it will be full by the trend of the last week, in seconds since 1970; null while it does not fill up, and
       *     with less than a day of history.
       */
      full_at_unix_seconds: number | null;
      /** @description Its name. */
      name: string;
      /** @description Moves of its slices between tiers. */
      relocation: components['schemas']['PoolRelocationReport'];
      /** @description Bytes of all groups in service that volumes can use. */
      size_bytes: number;
      /** @description Bytes of a slice. */
      slice_bytes: number;
      /** @description Its tiers, the fastest first. */
      tiers: components['schemas']['PoolTierReport'][];
      /** @description Its volumes. The status leaves them out. */
      volumes: components['schemas']['PoolVolumeReport'][];
    };
    /** @description A tier of a pool. */
    PoolTierReport: {
      /** @description Class of its devices. */
      class: components['schemas']['PoolClassReport'];
      /** @description Its groups. */
      groups: components['schemas']['PoolGroupReport'][];
      /** @description Its name. */
      name: string;
    };
    /** @description Properties of a volume in its pool. */
    PoolVolumeChange: {
      /** @description `auto`, `start-high`, `highest`, `lowest`, or the name of a tier. */
      tier_policy: string;
    };
    /** @description A volume of a pool, which may be served under the same name. */
    PoolVolumeReport: {
      /** @description Bytes of it on devices that are absent. */
      lost_bytes: number;
      /** @description Its name. */
      name: string;
      /** @description Time of allocation. */
      provisioning: components['schemas']['PoolProvisioning'];
      /** @description Its size. */
      size_bytes: number;
      /** @description Bytes of its slices in each tier, in the order of the tiers. */
      tier_bytes: number[];
      /** @description Placement of its slices: `auto`, `start-high`, `highest`, `lowest`, or the name of a tier. */
      tier_policy: string;
    };
    /** @description An error answer. */
    Problem: {
      /** @description The failure, its place and the remedy. */
      detail: string;
      /** @description The status. */
      status: number;
      /** @description The status in words. */
      title: string;
      /** @description Always `about:blank`: the status alone identifies the kind. */
      type: string;
    };
    /** @description A recommended purchase with its effect. */
    PurchaseAdvice: {
      /** @description Expected fraction of reads served whole from memory and flash. */
      hit_ratio: number;
      /** @description Expected fraction of reads served whole from memory and flash without the purchase, once both are filled. */
      hit_ratio_before: number;
      /** @description Expected mean latency of a read without it. */
      latency_before_us: number;
      /** @description Expected mean latency of a read. */
      latency_us: number;
      /** @description Array reads saved per second, at most the array's present reads; null without a known rate. */
      saved_reads_per_s: number | null;
      /** @description Array disks saved with them; null without a known rate. */
      saved_spindles: number | null;
      /**
       * @description Capacity of the SSD that is to take the place of all flash devices, or size of the memory to add; 0 for a change
       *     of a quota alone.
       */
      size_bytes: number;
    };
    /** @description Shares, limits and reservation of a volume, with the waits that they caused. */
    QosUse: {
      /** @description Bytes of a burst above the limit. */
      burst_bytes: number;
      /** @description Requests of a burst above the limit. */
      burst_iops: number;
      /** @description Limit of bytes per second; 0: none. */
      limit_bytes: number;
      /** @description Limit of client requests per second; 0: none. */
      limit_iops: number;
      /** @description Sum of their waits. */
      limit_waited_us: number;
      /** @description Client requests delayed by its limit. */
      limit_waits: number;
      /** @description Reserved requests of 4 KiB per second in its datastore; 0: none. */
      reservation_iops: number;
      /** @description Sum of their waits. */
      share_waited_us: number;
      /** @description Requests to its datastore or to flash that waited for requests of other volumes. */
      share_waits: number;
      /** @description Its weight beside other volumes on flash, and in its datastore during congestion. */
      shares: number;
    };
    /** @description Quantiles of one kind of request, in microseconds. */
    Quantiles: {
      /** @description Median. */
      p50: number;
      /** @description 99th percentile. */
      p99: number;
      /** @description 99.9th percentile. */
      p999: number;
    };
    /** @description Quota of a volume in one kind of cache. */
    QuotaAdvice: {
      /** @description Bytes that the present cache may hold of the volume; null for a percentage of a cache that does not exist. */
      limit_bytes: number | null;
      raise: components['schemas']['PurchaseAdvice'] | null;
      /** @description The setting that limits the volume: `memory_max`, `flash_max`, or `flash`, which disables flash for the volume. */
      setting: string;
      /** @description Its value in force: a size, a percentage, or `false`. */
      value: string;
    };
    /** @description A range of a volume. Every 64 KiB page that it touches counts whole. */
    Range: {
      /** @description First byte; without it the volume's first. */
      from_bytes?: number;
      /** @description The byte after the last; without it the volume's end. */
      to_bytes?: number | null;
    };
    /** @description Refused logins of one initiator for one reason. */
    RefusedLoginReport: {
      /** @description Time since the last refusal. */
      ago_ms: number;
      /** @description Refusals. */
      count: number;
      /** @description The name that the initiator claims; empty if it sent none. */
      initiator: string;
      /** @description The reason. */
      reason: string;
    };
    /** @description A device to replace. */
    ReplacedDevice: {
      /** @description The path of the device that leaves, or the number of its group. */
      device: string;
      /** @description Destroy what the new device holds. */
      force?: boolean;
      /** @description The device that leaves is absent: give up what it holds. */
      lost?: boolean;
      /** @description The new device; optional with `lost`. */
      path?: string | null;
    };
    /** @description Options of a resize. */
    Resize: {
      /** @description The volume's name once more: discard dirty data past the new end instead of refusing. */
      discard_dirty?: string | null;
      /** @description The new size, a multiple of 512, for a backing that can be grown or cut; without it the backing's present size. */
      size_bytes?: number | null;
    };
    /** @description The result of a revocation. */
    Revocation: {
      /**
       * @description This request was sent with the revoked token, or by a session of it, which has ended: the client needs another
       *     token.
       */
      own_access_ended: boolean;
      /** @description The result, in sentences. */
      said: string[];
    };
    /**
     * @description Permissions of a token; each role includes those before it.
     * @enum {string}
     */
    Role: 'read' | 'operate' | 'administer';
    /** @description Options of a roll back. */
    RollbackOptions: {
      /** @description Disconnect the clients of the volume. */
      force?: boolean;
    };
    /** @description The outcome, in sentences. */
    Said: {
      /** @description The sentences. */
      said: string[];
    };
    /** @description Findings of the log's scrub since the start. */
    ScrubReport: {
      /** @description Blocks with a bad copy. */
      found: number;
      /** @description Blocks without a good copy. */
      lost: number;
      /** @description Bytes read. */
      read_bytes: number;
      /** @description Copies that were repaired. */
      repaired: number;
      /** @description Completed scrub passes. */
      rounds: number;
    };
    /** @description Settings that can be changed while a volume is served. An absent one stays as it is. */
    Settings: {
      burst_bytes?: components['schemas']['Figure'] | null;
      burst_iops?: components['schemas']['Figure'] | null;
      /** @description Declares the backing lost: the target reports the LUN as permanently gone to iSCSI initiators. */
      declared_lost?: boolean | null;
      /** @description A size, percent or `none`. */
      flash_max?: string | null;
      /** @description A size or percent of flash that is reserved for it. */
      flash_min?: string | null;
      limit_bytes?: components['schemas']['Figure'] | null;
      limit_iops?: components['schemas']['Figure'] | null;
      /** @description A size, percent or `none`. */
      memory_max?: string | null;
      /** @description A size or percent of memory that is reserved for it. */
      memory_min?: string | null;
      /** @description `write-back`, `write-through`, `write-around`, `none` or `write-back-volatile`. */
      policy?: string | null;
      reservation_iops?: components['schemas']['Figure'] | null;
      shares?: components['schemas']['Figure'] | null;
    };
    /**
     * @description Severity.
     * @enum {string}
     */
    Severity: 'critical' | 'warning' | 'info';
    /** @description Gain by one kind of cache, memory or flash: one side of the advice. */
    SideAdvice: {
      /** @description Size past which the gain is below average: the size worth buying. Null for an even curve. */
      knee_bytes: number | null;
      purchase: components['schemas']['PurchaseAdvice'] | null;
      quota: components['schemas']['QuotaAdvice'] | null;
      /** @description Steps by growing size. */
      steps: components['schemas']['StepAdvice'][];
      today?: components['schemas']['TodayAdvice'] | null;
    };
    /** @description A silence: until its end, no channel gets messages about an alert of that kind and subject. */
    SilenceReport: {
      /** @description The user or the token that silenced it. */
      by: string;
      /** @description The identifier of the alert, active or not. */
      id: string;
      /** @description The reason that was given. */
      reason: string | null;
      /** @description End, in milliseconds since 1970. */
      until_unix_ms: number;
    };
    /** @description A slow command of a session. */
    SlowCommandReport: {
      /** @description Time since it ended. */
      ago_ms: number;
      /** @description Its name in the standards. */
      command: string;
      /** @description The LUN that it addressed. */
      lun: number | null;
      /** @description Time that it took. */
      took_us: number;
    };
    /** @description One of the slowest requests of the last hour. */
    SlowReport: {
      /** @description Time since its end. */
      ago_ms: number;
      /** @description `read`, `write`, `flush` or `zero`. */
      asked: string;
      /** @description Bytes. */
      length_bytes: number;
      /** @description First byte. */
      offset_bytes: number;
      /**
       * @description The step in which it waited longest: `gate`, `limit`, `shares`, `throttle`, `flash`, `joined`, `backing`,
       *     `destage` or `log`.
       */
      step: string;
      /** @description Its duration. */
      took_us: number;
      /** @description Time spent in that step. */
      waited_us: number;
    };
    /** @description A snapshot of a volume. */
    SnapshotReport: {
      /** @description Bytes of its slices, shared ones included. */
      allocated_bytes: number;
      /** @description Time of its creation, in seconds since 1970. */
      created_unix_seconds: number;
      /** @description Its name. */
      name: string;
      /** @description Bytes of the slices that nothing else shares: its deletion frees them. */
      own_bytes: number;
      /** @description Size of the volume at that time. */
      size_bytes: number;
    };
    /** @description The snapshots of a volume. */
    SnapshotsReport: {
      /** @description Its pool. */
      pool: string;
      /** @description Its snapshots, the oldest first. */
      snapshots: components['schemas']['SnapshotReport'][];
      /** @description The volume. */
      volume: string;
    };
    /** @description Bytes read by clients, by source. */
    SourceBytes: {
      /** @description From the array. */
      backing: number;
      /** @description From flash. */
      flash: number;
      /** @description From memory. */
      memory: number;
      /** @description From memory, read ahead from the array for a first read. */
      prefetched: number;
    };
    /** @description Status of the daemon. */
    StatusReport: {
      /** @description Active alerts as of the last second, the most severe first. */
      active_alerts: components['schemas']['AlertReport'][];
      /** @description Present problems. */
      alerts: string[];
      /** @description Address of the HTTP interface; empty without one. */
      api: string;
      /** @description Server certificates. */
      certificates: components['schemas']['CertificateReport'][];
      /** @description Configuration file. */
      configuration: string;
      /** @description Data cores. */
      cores: components['schemas']['CoreReport'][];
      /** @description Datastores and flash: congestion, and the use of each volume. */
      datastores: components['schemas']['DatastoreReport'][];
      /** @description Jobs that ended in the last half minute, the oldest first. */
      ended_jobs: components['schemas']['EndedJobReport'][];
      /** @description State of the event log. */
      events: components['schemas']['EventsHealth'];
      flash: components['schemas']['FlashReport'] | null;
      /** @description The flash devices in force, if commands have changed the list of the file; absent otherwise. */
      flash_devices_by_command?: string[] | null;
      /** @description The other hosts of the fleet; none without a link to them. */
      fleet_hosts: components['schemas']['FleetPeerReport'][];
      history: components['schemas']['HistoryHealth'] | null;
      iscsi: components['schemas']['IscsiReport'] | null;
      /** @description Jobs in progress. */
      jobs: components['schemas']['JobReport'][];
      /** @description Addresses for clients. */
      listen: string[];
      mail: components['schemas']['DeliveryHealth'] | null;
      /** @description Configured memory. */
      memory_bytes: number;
      /** @description Reason why configured persisted memory is not in use; null otherwise. */
      memory_not_kept: string | null;
      /** @description Changes made by command that differ from the file. */
      overrides: components['schemas']['OverrideReport'][];
      /** @description Process identifier. */
      pid: number;
      /** @description Open pools, without their volumes. */
      pools: components['schemas']['PoolReport'][];
      /** @description Present problems whose alert is not active yet: it is raised within a second, or after its delay. */
      problems_without_alert: string[];
      /** @description Silences in force, also of alerts that are not active. */
      silences: components['schemas']['SilenceReport'][];
      /** @description True while it is starting: volumes that it has not attached yet are not listed. */
      starting: boolean;
      /** @description State directory; absent in reports of older versions. */
      state_directory: string | null;
      /** @description Error of writing the state directory; null without one. */
      state_failed: string | null;
      /** @description True while it is stopping. */
      stopping: boolean;
      /** @description Uptime in milliseconds, for rates of the counters. */
      uptime_ms: number;
      /** @description Time since it started. */
      uptime_seconds: number;
      /** @description Version of Hotset. */
      version: string;
      /** @description Volumes. */
      volumes: components['schemas']['VolumeReport'][];
      webhook: components['schemas']['DeliveryHealth'] | null;
    };
    /** @description A cache size with its effect. */
    StepAdvice: {
      /** @description Hit ratio of requests. */
      hit_ratio: number;
      /** @description Mean latency of a request. */
      latency_us: number;
      /** @description Miss ratio of an LRU cache. */
      lru_miss_ratio: number;
      /** @description Miss ratio of blocks or pages. */
      miss_ratio: number;
      /**
       * @description Array disks saved by this step's hits. For a volume in service, only hits within its quota, and beyond those of
       *     its present memory and flash, count. Null without a known read rate.
       */
      saved_spindles: number | null;
      /** @description The cache's size. */
      size_bytes: number;
    };
    /** @description Options of a take-over. */
    TakeOver: {
      /** @description The owner's host is known to be off: the end of its lease is not waited for. */
      fenced?: boolean;
      /** @description The host that has to be the owner; without it whoever is. */
      from?: string | null;
      /** @description The name of the undestaged data of another host that may be lost. */
      give_up?: string | null;
    };
    /** @description The host that volumes are taken over from. */
    TakeOverHost: {
      /** @description It is known to be off: the end of its lease is not waited for. */
      fenced?: boolean;
      /** @description The host. */
      host: string;
    };
    /**
     * @description When a change of a key in the file takes effect.
     * @enum {string}
     */
    TakesEffect: 'restart' | 'reload' | 'renewal' | 'command';
    /** @description A resolution. */
    TierReport: {
      /** @description Configured retention in seconds. */
      keep_seconds: number;
      /** @description Present retention in seconds, if a full file shortens it. */
      shortened_seconds?: number | null;
      /** @description Seconds of a point. */
      step_seconds: number;
    };
    /** @description Present size and hit ratio of a cache. */
    TodayAdvice: {
      /** @description Hit ratio of reads. */
      hit_ratio: number;
      /** @description Its size. */
      size_bytes: number;
    };
    /** @description A new token, with its secret, which is shown only once. */
    TokenCreated: {
      /** @description Its name. */
      name: string;
      /** @description Role. */
      role: components['schemas']['Role'];
      /** @description The secret, for `Authorization: Bearer …`. */
      token: string;
    };
    /** @description A token, without its secret. */
    TokenReport: {
      /** @description Creation, in seconds since 1970. */
      created_unix_seconds: number;
      /** @description Its name. */
      name: string;
      /** @description Role. */
      role: components['schemas']['Role'];
    };
    /** @description Sums over several volumes. */
    Totals: {
      /** @description Requests that backings failed, without their repetitions. */
      backing_errors: number;
      /** @description Bytes read from backings. */
      backing_read_bytes: number;
      /** @description Reads of backings. */
      backing_reads: number;
      /** @description Requests to backings by operation and cause, with their latencies. */
      backing_requests: components['schemas']['BackingRequests'][];
      /** @description Bytes written to backings. */
      backing_write_bytes: number;
      /** @description Writes to backings. */
      backing_writes: number;
      /** @description Age of the oldest dirty block of all. */
      dirty_age_ms: number;
      /** @description Dirty data. */
      dirty_bytes: number;
      /** @description Requests that failed. */
      errors: number;
      /** @description Reads served whole from caches, flash taking part. */
      flash_hits: number;
      /** @description Flush requests. */
      flushes: number;
      /** @description Latency histograms. */
      latency_counts: components['schemas']['LatencyCountsReport'];
      /** @description Blocks held in memory. */
      memory_bytes: number;
      /** @description Reads served whole from memory. */
      memory_hits: number;
      /** @description Reads served not at all from a cache. */
      misses: number;
      /** @description Reads served in part from a cache. */
      partial_hits: number;
      /** @description Reads served whole from memory, for which the array was read ahead. */
      prefetched_hits: number;
      /** @description Bytes read. */
      read_bytes: number;
      /** @description Read requests. */
      reads: number;
      /** @description Bytes read by clients, by source. */
      source_bytes: components['schemas']['SourceBytes'];
      /** @description Number of volumes. */
      volumes: number;
      /** @description Bytes written. */
      write_bytes: number;
      /** @description Write requests. */
      writes: number;
      /** @description Zero and discard requests. */
      zeroes: number;
    };
    /** @description A volume's identity for initiators. */
    UnitReport: {
      /** @description True if its backing was declared lost: the target reports the LUN as permanently gone. */
      declared_lost: boolean;
      /** @description The number of its LUN. */
      lun: number;
      /** @description Its NAA designator and serial number, 32 hexadecimal digits. */
      naa: string;
    };
    /** @description Gain of a volume by more memory and by more flash, each alone. */
    VolumeAdvice: {
      /** @description Whether it was measured at the volume's backing; otherwise assumed. */
      array_latency_measured: boolean;
      /** @description Latency of the array. */
      array_latency_us: number;
      /**
       * @description Reliability of the recommended purchases: `high` after a day in service, `medium` after an hour, `low` before.
       *     Without a recommendation `few-accesses`, or `deviation` if the measured hit ratio deviates from the curve.
       */
      confidence: string;
      /** @description Advice on flash. */
      flash: components['schemas']['SideAdvice'];
      /** @description Bytes of recently used data. */
      footprint_bytes: number;
      /** @description Measured fraction of reads served whole from memory and flash; 0 for a trace. */
      hit_ratio: number;
      /** @description Mean latency of a read at that hit ratio, with the latencies of memory, flash and array below. */
      latency_us: number;
      /** @description Advice on memory. */
      memory: components['schemas']['SideAdvice'];
      /** @description Reason for missing advice; null if there is advice. */
      nothing: string | null;
      /** @description Mean read rate since the volume was attached. */
      reads_per_s: number | null;
      /** @description Requests since the volume was attached. */
      requests: number;
      /** @description Mean request rate since the volume was attached. */
      requests_per_s: number | null;
      /** @description Its name. */
      volume: string;
    };
    /** @description Everything about a volume. */
    VolumeReport: {
      /** @description Present problems. */
      alerts: string[];
      /** @description Its backing. */
      backing: string;
      /** @description Requests that failed at the backing, without their repetitions. */
      backing_errors: number;
      /** @description Flushes of the backing. */
      backing_flushes: number;
      /** @description Identity that the backing reports; empty while the volume is refused. */
      backing_identity: string;
      /** @description Bytes read from the backing. */
      backing_read_bytes: number;
      /** @description Reads of the backing. */
      backing_reads: number;
      /** @description Requests to the backing by operation and cause. */
      backing_requests: components['schemas']['BackingRequests'][];
      /** @description Age of the oldest unanswered request to the backing; 0: none. */
      backing_unanswered_ms: number;
      /** @description Bytes written to the backing. */
      backing_write_bytes: number;
      /** @description Writes to the backing. */
      backing_writes: number;
      /** @description The data core that serves it. */
      core: number;
      /** @description Its datastore; empty: none. */
      datastore: string;
      /** @description Age of the oldest dirty block. */
      dirty_age_ms: number;
      /** @description Dirty data. */
      dirty_bytes: number;
      /** @description Failed requests. */
      errors: number;
      /** @description Use of the flash cache. */
      flash: components['schemas']['FlashUse'];
      /** @description Dirty data in the flash log. */
      flash_dirty_bytes: number;
      /** @description Reads served whole from memory and flash. */
      flash_hits: number;
      /** @description Bytes of content written to flash since the start: promotions, and one copy of logged data. */
      flash_written_bytes: number;
      fleet?: components['schemas']['FleetReport'] | null;
      /** @description Flush requests. */
      flushes: number;
      /** @description Volume ID, 16 hexadecimal digits; empty while it is refused. */
      incarnation: string;
      /** @description Labels: `vm` and any others. */
      labels: {
        [key: string]: string;
      };
      /** @description Latency histograms. */
      latency_counts: components['schemas']['LatencyCountsReport'];
      /** @description Quantiles of latencies. */
      latency_us: components['schemas']['LatencyReport'];
      /** @description Smallest unit of the backing. */
      logical_block_bytes: number;
      /**
       * @description Lost dirty blocks: no flash device has a good copy, and reads fail until they are written again. A hundred
       *     ranges at most, in order.
       */
      lost: components['schemas']['LostRange'][];
      /** @description Bytes of all lost blocks. */
      lost_bytes: number;
      /** @description Quota of memory. */
      memory: components['schemas']['MemoryUse'];
      /** @description Bytes of blocks in memory. */
      memory_bytes: number;
      /** @description Reads served whole from memory, of blocks that were used before. */
      memory_hits: number;
      miss_ratio_curve?: components['schemas']['MissRatioCurve'] | null;
      /** @description Misses: reads served from the backing alone. */
      misses: number;
      /** @description Name that clients see. */
      name: string;
      /** @description Partial hits: reads served in part from a cache. */
      partial_hits: number;
      /** @description Atomic unit of the backing: a crash tears unflushed writes only at its multiples. */
      physical_block_bytes: number;
      /** @description Write policy. */
      policy: string;
      /** @description Reads served whole from memory, for which the array was read ahead: no array read was saved. */
      prefetched_hits: number;
      /** @description Pages promoted to flash. */
      promotions: number;
      /** @description Quality of service. */
      qos: components['schemas']['QosUse'];
      /** @description Bytes read. */
      read_bytes: number;
      /** @description Writes are refused. */
      read_only: boolean;
      /** @description Bytes read ahead. */
      readahead_bytes: number;
      /** @description Read requests. */
      reads: number;
      /** @description Code of the refusal (`docs/admin/refusals.md`), if the volume is refused. */
      refusal?: string | null;
      /**
       * @description The part of the bytes from memory and flash that another volume of the pool had in its cache, with the same
       *     stored content.
       */
      sibling_read_bytes: number;
      /** @description Size that clients see. */
      size_bytes: number;
      /** @description Bytes read by clients, by source. */
      source_bytes: components['schemas']['SourceBytes'];
      /** @description State. */
      state: components['schemas']['VolumeState'];
      /** @description Time that writes waited because dirty data was at its limit. */
      throttled_us: number;
      /** @description Bytes taken over from the memory of the host that owned the volume before. */
      transferred_bytes: number;
      unit?: components['schemas']['UnitReport'] | null;
      /** @description Bytes written. */
      write_bytes: number;
      /** @description Write requests. */
      writes: number;
      /** @description Data on the backing that is not flushed there. */
      written_bytes: number;
      /** @description Zero and discard requests. */
      zeroes: number;
    };
    /**
     * @description State of a volume.
     * @enum {string}
     */
    VolumeState: 'active' | 'paused' | 'frozen' | 'refused' | 'removing' | 'standby';
    /** @description A page of volumes, by name. */
    VolumesPage: {
      /** @description Value of `after` for the next page; null on the last one. */
      next: string | null;
      volumes: components['schemas']['VolumeReport'][];
    };
    /** @description Bytes written to a flash device across all restarts, by cause. */
    WrittenReport: {
      /** @description Bytes of the log: dirty data with headers. */
      dirty_bytes: number;
      /** @description Bytes of the map journal (which page is in which slot). */
      journal_bytes: number;
      /** @description Bytes of clean pages. */
      promotion_bytes: number;
      /** @description When counting began, in seconds since 1970. */
      since_unix_seconds: number;
    };
  };
  responses: never;
  parameters: never;
  requestBodies: never;
  headers: never;
  pathItems: never;
}
export type AdvicePage = components['schemas']['AdvicePage'];
export type AlertAcknowledgement = components['schemas']['AlertAcknowledgement'];
export type AlertChannel = components['schemas']['AlertChannel'];
export type AlertKind = components['schemas']['AlertKind'];
export type AlertReport = components['schemas']['AlertReport'];
export type AssumptionsReport = components['schemas']['AssumptionsReport'];
export type BackingRequests = components['schemas']['BackingRequests'];
export type CertificateReport = components['schemas']['CertificateReport'];
export type ChannelTestReport = components['schemas']['ChannelTestReport'];
export type ConfigurationReport = components['schemas']['ConfigurationReport'];
export type CoreReport = components['schemas']['CoreReport'];
export type Counts = components['schemas']['Counts'];
export type CountsBelow = components['schemas']['CountsBelow'];
export type Curve = components['schemas']['Curve'];
export type DaemonPhase = components['schemas']['DaemonPhase'];
export type Datastore = components['schemas']['Datastore'];
export type DatastoreReport = components['schemas']['DatastoreReport'];
export type DeliveryHealth = components['schemas']['DeliveryHealth'];
export type DrainedDevice = components['schemas']['DrainedDevice'];
export type DriveReport = components['schemas']['DriveReport'];
export type EndedJobReport = components['schemas']['EndedJobReport'];
export type EntryReport = components['schemas']['EntryReport'];
export type EpisodeReport = components['schemas']['EpisodeReport'];
export type EventKind = components['schemas']['EventKind'];
export type EventReport = components['schemas']['EventReport'];
export type EventsHealth = components['schemas']['EventsHealth'];
export type EventsPage = components['schemas']['EventsPage'];
export type Figure = components['schemas']['Figure'];
export type FigureReport = components['schemas']['FigureReport'];
export type FlashDeviceReport = components['schemas']['FlashDeviceReport'];
export type FlashJobReport = components['schemas']['FlashJobReport'];
export type FlashReport = components['schemas']['FlashReport'];
export type FlashUse = components['schemas']['FlashUse'];
export type FleetHostReport = components['schemas']['FleetHostReport'];
export type FleetPeerReport = components['schemas']['FleetPeerReport'];
export type FleetReport = components['schemas']['FleetReport'];
export type FleetVolumeReport = components['schemas']['FleetVolumeReport'];
export type Flush = components['schemas']['Flush'];
export type HeatReport = components['schemas']['HeatReport'];
export type HeatRow = components['schemas']['HeatRow'];
export type HistoryHealth = components['schemas']['HistoryHealth'];
export type HistoryReport = components['schemas']['HistoryReport'];
export type ImportedDevice = components['schemas']['ImportedDevice'];
export type Invalidation = components['schemas']['Invalidation'];
export type IscsiReport = components['schemas']['IscsiReport'];
export type IscsiSessionReport = components['schemas']['IscsiSessionReport'];
export type JobKind = components['schemas']['JobKind'];
export type JobOutcome = components['schemas']['JobOutcome'];
export type JobReport = components['schemas']['JobReport'];
export type KeyReport = components['schemas']['KeyReport'];
export type KeySource = components['schemas']['KeySource'];
export type LatencyCountsReport = components['schemas']['LatencyCountsReport'];
export type LatencyFigures = components['schemas']['LatencyFigures'];
export type LatencyReport = components['schemas']['LatencyReport'];
export type LoggedIn = components['schemas']['LoggedIn'];
export type Login = components['schemas']['Login'];
export type LostBlockReport = components['schemas']['LostBlockReport'];
export type LostRange = components['schemas']['LostRange'];
export type MemberReport = components['schemas']['MemberReport'];
export type MemoryUse = components['schemas']['MemoryUse'];
export type MissRatioCurve = components['schemas']['MissRatioCurve'];
export type Move = components['schemas']['Move'];
export type NewClone = components['schemas']['NewClone'];
export type NewDevice = components['schemas']['NewDevice'];
export type NewPoolDevice = components['schemas']['NewPoolDevice'];
export type NewSilence = components['schemas']['NewSilence'];
export type NewSnapshot = components['schemas']['NewSnapshot'];
export type NewToken = components['schemas']['NewToken'];
export type NewVolume = components['schemas']['NewVolume'];
export type OverrideReport = components['schemas']['OverrideReport'];
export type PagesReport = components['schemas']['PagesReport'];
export type Point = components['schemas']['Point'];
export type PoolCellsReport = components['schemas']['PoolCellsReport'];
export type PoolClassReport = components['schemas']['PoolClassReport'];
export type PoolCurveReport = components['schemas']['PoolCurveReport'];
export type PoolDrainReport = components['schemas']['PoolDrainReport'];
export type PoolGroupReport = components['schemas']['PoolGroupReport'];
export type PoolHeatReport = components['schemas']['PoolHeatReport'];
export type PoolLoadReport = components['schemas']['PoolLoadReport'];
export type PoolLostRangeReport = components['schemas']['PoolLostRangeReport'];
export type PoolLostReport = components['schemas']['PoolLostReport'];
export type PoolLostVolumeReport = components['schemas']['PoolLostVolumeReport'];
export type PoolMoveReason = components['schemas']['PoolMoveReason'];
export type PoolMoveReport = components['schemas']['PoolMoveReport'];
export type PoolPlanReport = components['schemas']['PoolPlanReport'];
export type PoolProvisioning = components['schemas']['PoolProvisioning'];
export type PoolQueueReport = components['schemas']['PoolQueueReport'];
export type PoolRelocationReport = components['schemas']['PoolRelocationReport'];
export type PoolRelocationState = components['schemas']['PoolRelocationState'];
export type PoolReport = components['schemas']['PoolReport'];
export type PoolTierReport = components['schemas']['PoolTierReport'];
export type PoolVolumeChange = components['schemas']['PoolVolumeChange'];
export type PoolVolumeReport = components['schemas']['PoolVolumeReport'];
export type Problem = components['schemas']['Problem'];
export type PurchaseAdvice = components['schemas']['PurchaseAdvice'];
export type QosUse = components['schemas']['QosUse'];
export type Quantiles = components['schemas']['Quantiles'];
export type QuotaAdvice = components['schemas']['QuotaAdvice'];
export type Range = components['schemas']['Range'];
export type RefusedLoginReport = components['schemas']['RefusedLoginReport'];
export type ReplacedDevice = components['schemas']['ReplacedDevice'];
export type Resize = components['schemas']['Resize'];
export type Revocation = components['schemas']['Revocation'];
export type Role = components['schemas']['Role'];
export type RollbackOptions = components['schemas']['RollbackOptions'];
export type Said = components['schemas']['Said'];
export type ScrubReport = components['schemas']['ScrubReport'];
export type Settings = components['schemas']['Settings'];
export type Severity = components['schemas']['Severity'];
export type SideAdvice = components['schemas']['SideAdvice'];
export type SilenceReport = components['schemas']['SilenceReport'];
export type SlowCommandReport = components['schemas']['SlowCommandReport'];
export type SlowReport = components['schemas']['SlowReport'];
export type SnapshotReport = components['schemas']['SnapshotReport'];
export type SnapshotsReport = components['schemas']['SnapshotsReport'];
export type SourceBytes = components['schemas']['SourceBytes'];
export type StatusReport = components['schemas']['StatusReport'];
export type StepAdvice = components['schemas']['StepAdvice'];
export type TakeOver = components['schemas']['TakeOver'];
export type TakeOverHost = components['schemas']['TakeOverHost'];
export type TakesEffect = components['schemas']['TakesEffect'];
export type TierReport = components['schemas']['TierReport'];
export type TodayAdvice = components['schemas']['TodayAdvice'];
export type TokenCreated = components['schemas']['TokenCreated'];
export type TokenReport = components['schemas']['TokenReport'];
export type Totals = components['schemas']['Totals'];
export type UnitReport = components['schemas']['UnitReport'];
export type VolumeAdvice = components['schemas']['VolumeAdvice'];
export type VolumeReport = components['schemas']['VolumeReport'];
export type VolumeState = components['schemas']['VolumeState'];
export type VolumesPage = components['schemas']['VolumesPage'];
export type WrittenReport = components['schemas']['WrittenReport'];
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
