//! The list of all configuration keys. It serves the parser, the documentation, the suggestions for misspelt keys, and
//! the reload.
//!
//! The list only describes the keys. The module of each table reads and checks its keys, and holds the defaults in
//! force.

pub use messages::report::TakesEffect;

pub use super::shape::Shape;
pub use super::tables::{TABLES, Table, find_table, show_table};

/// A key of a table.
pub struct Key {
    /// The table's name.
    pub table: &'static str,
    /// The key.
    pub name: &'static str,
    /// An example of its value.
    pub example: &'static str,
    /// Its default, as text. A test compares it with the default in force.
    pub default: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// Type of its value in TOML.
    pub shape: Shape,
    /// When a change of it in the file takes effect.
    pub takes_effect: TakesEffect,
}

/// Any whole number that the parser accepts.
const COUNT: Shape = Shape::Count(0, u32::MAX);
/// A weight by name or number.
const SHARES: Shape = Shape::ChoiceOrCount(&["low", "normal", "high"], 1, 100_000);

use TakesEffect::{Command, Reload, ReloadIfSet, Restart};

/// All keys.
pub const KEYS: &[Key] = &[
    key(
        "",
        "cores",
        r#""auto" or [0, 1]"#,
        r#""auto""#,
        "The CPU of the data thread. `\"auto\"` leaves the choice to the system; a list pins the data thread to the \
         first CPU in it. Further CPUs are reserved for a later version.",
    )
    .shape(Shape::ChoiceOrCounts(&["auto"])),
    key(
        "state",
        "directory",
        r#""/var/lib/hotset""#,
        r#""/var/lib/hotset""#,
        "Directory for identities, records of dirty data on flash, and settings changed by command. Each daemon needs \
         its own directory.",
    ),
    key("memory", "size", r#""4 GiB""#, r#""1 GiB""#, "Memory for caching, including its index; at least 16 MiB."),
    key(
        "memory",
        "keep_in",
        r#""auto", "none" or "/dev/shm""#,
        r#""auto""#,
        "Directory on tmpfs for persisted memory ([configuration.md](configuration.md#persisted-memory)): acknowledged \
         writes survive a crash or a kill of the daemon, but not a power cut. `\"auto\"`: `/dev/shm` if it has room \
         for `[memory] size`, otherwise as `\"none\"`, with a warning. `\"none\"`: memory is not persisted.",
    ),
    key(
        "flash",
        "devices",
        r#"["/dev/nvme0n1", "/dev/nvme1n1"]"#,
        "required",
        "Two to eight devices, partitions or files. The first two hold the mirrored dirty data, so that flushes need \
         not wait for the backing. If one of them fails, another device takes over. The first start uses empty \
         devices and refuses others. An image (`rbd:POOL/IMAGE`) holds the dirty data alone, and the other devices \
         clean pages ([rbd.md](rbd.md#the-flash-log-on-an-image)).",
    )
    .shape(Shape::Texts),
    key(
        "flash",
        "size",
        r#""16 GiB""#,
        "none",
        "Create missing files of `devices` with this size, fully allocated, unless a flash store has used them.",
    ),
    key(
        "flash",
        "allow_single_copy",
        "false",
        "false",
        "Acknowledge flushes with a single copy: with one device, or while one of two is out of service. The next \
         failure then loses flushed data.",
    )
    .shape(Shape::Flag),
    key(
        "flash",
        "endurance_dwpd",
        "1",
        "1",
        "Limit on promotion in drive writes per day, for example `0.3`; 0: no limit. One day's budget may be spent at \
         once. Writes of dirty data are not limited.",
    )
    .shape(Shape::Number(1000)),
    key(
        "flash",
        "scrub",
        r#""4 MiB""#,
        r#""4 MiB""#,
        "Read rate per second of the background scrub over all copies of dirty data on flash; it finds and repairs \
         silent corruption. `\"off\"`: no scrub.",
    ),
    key(
        "flash",
        "congestion_threshold",
        r#""5ms" or "auto""#,
        r#""5ms""#,
        "Latency of the devices above which they count as congested and shares are in force, 100us to 10s; \
         `\"auto\"`: the latency at which throughput stops growing ([qos.md](qos.md)).",
    ),
    key(
        "control",
        "socket",
        r#""/run/hotset/control.sock""#,
        r#""/run/hotset/control.sock""#,
        "Unix socket for the commands.",
    ),
    key(
        "nbd",
        "listen",
        r#"["unix:/run/hotset/nbd.sock", "tcp:127.0.0.1:10809"]"#,
        r#"["unix:/run/hotset/nbd.sock"]"#,
        "Listen addresses for NBD clients: `unix:PATH` or `tcp:HOST:PORT`.",
    )
    .shape(Shape::Texts),
    key(
        "nbd",
        "socket_owner",
        r#""libvirt-qemu""#,
        "the daemon's user",
        "User with access to the Unix sockets of `listen`: their owner, or an entry in their access control list if \
         the daemon may not change the owner.",
    ),
    key(
        "nbd",
        "socket_group",
        r#""hotset-volumes""#,
        "hotset-volumes if the daemon is a member of it, otherwise the daemon's group",
        "Group of the Unix sockets of `listen`. Users with access may read and write volumes. The control socket \
         keeps the daemon's own group.",
    ),
    key("nbd", "socket_mode", r#""0660""#, r#""0660""#, "Permissions of the Unix sockets of `listen`, octal."),
    key(
        "nbd",
        "tls",
        r#""off", "allowed" or "required""#,
        r#""off""#,
        "TLS for NBD clients on all addresses of `listen`: off, allowed or required.",
    )
    .shape(Shape::Choice(&["off", "allowed", "required"])),
    key(
        "nbd",
        "tls_certificate",
        r#""/etc/hotset/nbd.crt""#,
        "none",
        "Certificate chain of the server, PEM; required unless `tls` is off. A reload (SIGHUP) reads the file again.",
    )
    .takes_effect(ReloadIfSet),
    key("nbd", "tls_key", r#""/etc/hotset/nbd.key""#, "none", "Private key of `tls_certificate`, PEM.")
        .takes_effect(ReloadIfSet),
    key(
        "nbd",
        "tls_client_ca",
        r#""/etc/hotset/clients.crt""#,
        "none",
        "CA certificates, PEM. Clients must present a certificate that one of these CAs has signed.",
    )
    .takes_effect(ReloadIfSet),
    key(
        "iscsi",
        "listen",
        r#"["10.0.0.5:3260"]"#,
        "required",
        "Listen addresses for initiators; each is a portal of the target. The default port is 3260 \
         ([iscsi.md](iscsi.md)).",
    )
    .shape(Shape::Texts),
    key(
        "iscsi",
        "target",
        r#""iqn.2026-11.io.hotset:lab""#,
        "required",
        "Name of the target. Initiators identify the target by this name; it should never change.",
    ),
    key(
        "iscsi",
        "announce",
        r#"["203.0.113.5:3260"]"#,
        "[]",
        "Addresses reported by discovery, for initiators behind address translation. By default, discovery reports \
         the address of the connection.",
    )
    .shape(Shape::Texts),
    key(
        "iscsi",
        "chap",
        r#"{ user = "esx", secret_file = "/etc/hotset/chap.secret" }"#,
        "none",
        "CHAP: initiators authenticate with the secret in that file. With `mutual_user` and `mutual_secret_file`, the \
         target authenticates to the initiators, too. A list of such tables, or `[[iscsi.chap]]`, defines several \
         users; `initiators` binds a user to initiator names, which can then use this user only \
         ([iscsi.md](iscsi.md#access)).",
    )
    .shape(Shape::Records(&["user", "secret_file"], &["mutual_user", "mutual_secret_file"], &["initiators"])),
    key(
        "iscsi",
        "acl",
        r#"["iqn.1998-01.com.vmware:*"]"#,
        "[]",
        "Names of initiators that may log in; `*` matches any text. An empty list admits all initiators.",
    )
    .shape(Shape::Texts),
    key(
        "api",
        "listen",
        r#""[::1]:7400""#,
        r#""127.0.0.1:7400""#,
        "Address and port of the HTTP interface: web console, REST, metrics, event stream ([api.md](api.md)); \
         `none`: no HTTP interface.",
    ),
    key(
        "api",
        "names",
        r#"["cache.example"]"#,
        "[]",
        "Host names and addresses accepted in requests, besides loopback. Requests for other host names are refused.",
    )
    .shape(Shape::Texts),
    key(
        "api",
        "metrics_volumes",
        "1000",
        "1000",
        "Maximum number of volumes with their own time series in `/metrics`. Above it, `/metrics` contains only \
         sums and the number of volumes left out.",
    )
    .shape(COUNT),
    key(
        "api",
        "tls_certificate",
        r#""/etc/hotset/api.crt""#,
        "none",
        "Certificate chain for HTTPS, PEM; requires `tls_key`. With it, plain HTTP is off. A reload (SIGHUP) reads \
         the file again.",
    )
    .takes_effect(ReloadIfSet),
    key("api", "tls_key", r#""/etc/hotset/api.key""#, "none", "Private key of `tls_certificate`, PEM.")
        .takes_effect(ReloadIfSet),
    key(
        "history",
        "size",
        r#""1 GiB""#,
        r#""1 GiB""#,
        "Maximum size of the history ([api.md](api.md#history)) in the folder `history` of the state directory; at \
         least 32 MiB, or `\"0\"` for no history. When it is full, the finest resolution is dropped first.",
    ),
    key(
        "alerts",
        "dirty_age",
        r#""15min""#,
        r#""15min""#,
        "Age of dirty data above which an alert is raised ([alerts.md](alerts.md)). With `[flash]`, set more than \
         eight minutes.",
    ),
    key(
        "alerts",
        "endurance_until",
        r#""2030-12-31""#,
        "none",
        "Date until which the flash devices must last. A device whose rated endurance will be reached earlier raises \
         an alert. Requires `flash.endurance_dwpd`.",
    ),
    key(
        "alerts",
        "webhook",
        r#""http://127.0.0.1:9000/hook""#,
        "none",
        "URL for alerts: a POST with JSON when an alert is raised or cleared ([alerts.md](alerts.md#webhook)); \
         `https://` for TLS.",
    ),
    key(
        "alerts",
        "webhook_ca",
        r#""/etc/hotset/receiver-ca.crt""#,
        "the system's trusted CAs",
        "CA certificates, PEM. One of these CAs must have signed the certificate of an `https://` webhook.",
    ),
    key(
        "alerts",
        "mail_server",
        r#""mail.example.com""#,
        "none",
        "Mail server for alerts ([alerts.md](alerts.md#mail)): host, and a port unless it is the usual one of \
         `mail_tls`. Needs `mail_from` and `mail_to`.",
    ),
    key(
        "alerts",
        "mail_tls",
        r#""tls", "starttls" or "none""#,
        r#""tls""#,
        "Encryption: `tls` from the first byte (port 465), `starttls` after that command, which the server then has to \
         support (port 587), `none` (port 25), which permits no password.",
    )
    .shape(Shape::Choice(&["tls", "starttls", "none"])),
    key(
        "alerts",
        "mail_ca",
        r#""/etc/hotset/mail-ca.crt""#,
        "the system's trusted CAs",
        "CA certificates, PEM. One of these CAs must have signed the certificate of the mail server.",
    ),
    key("alerts", "mail_user", r#""hotset""#, "none", "User name at the mail server. Needs `mail_password_file`."),
    key(
        "alerts",
        "mail_password_file",
        r#""/etc/hotset/mail.secret""#,
        "none",
        "File with the user's password, one line. It is read for each message, so a new password needs no restart.",
    ),
    key("alerts", "mail_from", r#""hotset@example.com""#, "none", "Sender of mail: an address, or `Name <address>`."),
    key(
        "alerts",
        "mail_to",
        r#"["admin@example.com", "Storage <storage@example.com>"]"#,
        "none",
        "Recipients of mail, one to 16.",
    )
    .shape(Shape::Texts),
    key(
        "alerts",
        "mail_severity",
        r#""critical", "warning" or "info""#,
        r#""warning""#,
        "Lowest severity that is sent by mail. The webhook gets all alerts.",
    )
    .shape(Shape::Choice(&["critical", "warning", "info"])),
    key(
        "log",
        "level",
        r#""error", "warn", "info" or "debug""#,
        r#""info""#,
        "Lowest severity logged on standard error: `warn` adds warnings to errors, `info` adds changes, `debug` adds \
         requests from commands and the web console ([log.md](log.md)).",
    )
    .shape(Shape::Choice(&["error", "warn", "info", "debug"]))
    .takes_effect(Reload),
    key(
        "log",
        "filter",
        r#""flash=debug,iscsi=warn""#,
        "none",
        "Other levels for single subsystems, as in `RUST_LOG`: names from [log.md](log.md#subsystems), each with one \
         of the levels above or `off`.",
    )
    .takes_effect(Reload),
    key(
        "log",
        "format",
        r#""text" or "json""#,
        r#""text""#,
        "Plain text, or one JSON object per line, with fields for the volume, the device and the client.",
    )
    .shape(Shape::Choice(&["text", "json"])),
    key(
        "vhost_user",
        "directory",
        r#""/run/hotset/vhost""#,
        r#""/run/hotset/vhost""#,
        "Directory of the vhost-user sockets for virtual machines, one socket `NAME.sock` for each volume \
         ([vhost-user.md](vhost-user.md)).",
    ),
    key(
        "vhost_user",
        "socket_owner",
        r#""libvirt-qemu""#,
        "the daemon's user",
        "User with access to these sockets, as in `[nbd]`. Access to a socket means read and write access to its \
         volume.",
    ),
    key(
        "vhost_user",
        "socket_group",
        r#""hotset-volumes""#,
        "hotset-volumes if the daemon is a member of it, otherwise the daemon's group",
        "Group of these sockets.",
    ),
    key("vhost_user", "socket_mode", r#""0660""#, r#""0660""#, "Permissions of these sockets, octal."),
    key(
        "fleet",
        "host",
        r#""alpha""#,
        "the machine's host name",
        "Name of this host in messages and commands about volumes that several hosts have in their configuration \
         ([fleet.md](fleet.md)). Each of them has its own.",
    ),
    key(
        "fleet",
        "hosts",
        r#"["alpha=10.0.0.1:7401", "beta=10.0.0.2:7401"]"#,
        "none",
        "All hosts of the fleet, with the address at which each listens for the others; the same list on all of them. \
         It needs the three files below.",
    )
    .shape(Shape::Texts),
    key(
        "fleet",
        "tls_certificate",
        r#""/etc/hotset/fleet.crt""#,
        "none",
        "Certificate chain of this host, with its name as a DNS name; required with `hosts`. A reload reads it again.",
    )
    .takes_effect(ReloadIfSet),
    key("fleet", "tls_key", r#""/etc/hotset/fleet.key""#, "none", "Private key of `tls_certificate`, PEM.")
        .takes_effect(ReloadIfSet),
    key(
        "fleet",
        "tls_ca",
        r#""/etc/hotset/fleet-ca.crt""#,
        "none",
        "Certificate of the authority that signs those of all hosts. A host with another certificate is refused.",
    )
    .takes_effect(ReloadIfSet),
    key(
        "array",
        "name",
        r#""shelf""#,
        "required",
        "Name of the modelled array. Volumes are placed on it with `backing = \"sim://NAME\"`, one after the other.",
    ),
    key("array", "raid", "0, 1, 5, 6 or 10", "5", "RAID level.").shape(Shape::Level(&[0, 1, 5, 6, 10])),
    key("array", "disks", "5", "5", "Number of disks in the array.").shape(COUNT),
    key("array", "disk", r#""sas15k", "sas10k", "nlsas" or "ssd""#, r#""sas15k""#, "Type of the disks.")
        .shape(Shape::Choice(&["sas15k", "sas10k", "nlsas", "ssd"])),
    key(
        "array",
        "stripe",
        r#""64 KiB""#,
        r#""64 KiB""#,
        "Stripe unit on one disk: a power of two from 4 KiB to 1 MiB.",
    ),
    key(
        "pool",
        "name",
        r#""tank""#,
        "required",
        "Name of the pool. A volume with `backing = \"pool://NAME\"` is cut from it ([pools.md](pools.md)).",
    ),
    key(
        "pool",
        "slice",
        r#""4 MiB""#,
        r#""4 MiB""#,
        "Unit in which volumes take space from the pool and move between tiers, fixed when the pool is created: a \
         power of two from 256 KiB to 256 MiB.",
    ),
    key(
        "pool",
        "tier",
        r#"[{ name = "ssd", devices = ["/dev/sdb"] }, { name = "sas", devices = ["/dev/sdc", "/dev/sdd"] }]"#,
        "required",
        "The tiers, the fastest first, each also written as `[[pool.tier]]` below its `[[pool]]`: a name, and the \
         devices, partitions or files. A device is what RAID, LVM or a SAN presents: the pool itself has no redundancy \
         for data. Optional: the `class` of the devices, `nvme`, `ssd`, `15k`, `10k` or `nl-sas`; without it they are \
         measured whenever the pool is opened.",
    )
    .shape(Shape::Records(&["name"], &["class"], &["devices"])),
    key(
        "pool",
        "relocation",
        r#""continuous", "off" or "22:00-06:00""#,
        r#""continuous""#,
        "Times at which slices move to the tiers that suit their load: always, only by `hotset pool relocate`, or in \
         windows of local time such as `mon-fri 20:00-06:00, sat,sun 00:00-24:00`.",
    ),
    key(
        "pool",
        "rate",
        r#""low", "medium", "high" or "20 MiB/s""#,
        r#""medium""#,
        "Rate of these moves: 10, 30 or 60 % of the time in which their devices serve no client (at least 3 % of all \
         time), or bytes a second.",
    ),
    key("datastore", "name", r#""sas-pool""#, "required", "Name of the datastore, used by volumes.")
        .takes_effect(Reload),
    key(
        "datastore",
        "congestion_threshold",
        r#""30ms" or "auto""#,
        r#""auto""#,
        "Latency above which the datastore is congested and the shares of its volumes are in force, 100us to 10s; \
         `\"auto\"`: the latency at which throughput stops growing, determined continuously ([qos.md](qos.md)).",
    )
    .takes_effect(Reload),
    key(
        "datastore",
        "write_cost",
        "4",
        "1",
        "RAID write penalty: disk accesses per small write, for disks that do not report it. 2 for RAID 1 and 10, 4 \
         for RAID 5, 6 for RAID 6; 1 to 16. Modelled arrays report it.",
    )
    .shape(Shape::Count(1, 16))
    .takes_effect(Reload),
    key(
        "volume",
        "name",
        r#""web01""#,
        "required",
        "Name for clients: the NBD export name. It is never used as an \
                                                     identity.",
    )
    .takes_effect(Reload),
    key(
        "volume",
        "backing",
        r#""/dev/sdb""#,
        "required",
        "Location of the data: a path, `file://PATH`, `nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, \
         `rbd:POOL/IMAGE?ceph_user=USER`, \
         `pool://POOL`, `sim://ARRAY` or `sim://raid5?disks=5&type=sas15k&size=100GiB`.",
    ),
    key(
        "volume",
        "size",
        r#""100 GiB""#,
        "the backing's",
        "Size of the volume, only for a backing without a size of its own: a new file, a pool or a modelled array.",
    ),
    key(
        "volume",
        "policy",
        r#""write-back""#,
        r#""write-back""#,
        "`write-back`, `write-through`, `write-around`, `none` or `write-back-volatile`.",
    )
    .shape(Shape::Choice(&["write-back", "write-through", "write-around", "none", "write-back-volatile"]))
    .takes_effect(Command),
    key(
        "volume",
        "defer",
        r#""10s""#,
        r#""10s""#,
        "Only with `write-back-volatile`: maximum age of a write before it is durable, as long as the backing keeps \
         up with the writes.",
    ),
    key(
        "volume",
        "datastore",
        r#""sas-pool""#,
        "none",
        "The `[[datastore]]` of the volume: volumes of one datastore \
                                                         share the same disks.",
    )
    .takes_effect(Reload),
    key(
        "volume",
        "labels",
        r#"{ vm = "web01" }"#,
        "{}",
        "Labels, for example `vm`; shown in reports and added to \
                                                          metrics.",
    )
    .shape(Shape::Labels)
    .takes_effect(Reload),
    key(
        "volume",
        "tier_policy",
        r#""auto", "start-high", "highest", "lowest" or "ssd""#,
        r#""auto""#,
        "Only on a pool: the tiers on which new slices of the volume are placed, or the name of one tier. It counts \
         when the volume is created.",
    ),
    key(
        "volume",
        "provisioning",
        r#""thin" or "thick""#,
        r#""thin""#,
        "Only on a pool, when the volume is created: `thin` allocates a slice at its first write, `thick` all slices \
         at once.",
    )
    .shape(Shape::Choice(&["thin", "thick"])),
    key("volume", "read_only", "false", "false", "Refuse writes.").shape(Shape::Flag),
    key(
        "volume",
        "lun",
        "0",
        "assigned once",
        "Number of the LUN, 0 to 16383, with `[iscsi]`. Without this key, the volume gets a number that no other \
         volume has had, and keeps it.",
    )
    .shape(Shape::Count(0, 16383)),
    key("volume", "flash", "true", "true", "Cache clean pages of the volume on flash.").shape(Shape::Flag),
    key(
        "volume",
        "shares",
        r#""high" or 1500"#,
        r#""normal""#,
        "Weight of the volume in its datastore during congestion, and on flash: `low` (500), `normal` (1000), `high` \
         (2000), or 1 to 100000 ([qos.md](qos.md)).",
    )
    .shape(SHARES)
    .takes_effect(Command),
    key(
        "volume",
        "limit_iops",
        "500",
        "0",
        "Limit in requests per second, including hits. A request over 128 KiB counts once for each started 128 KiB. \
         0: no limit.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "limit_bytes",
        r#""20 MB""#,
        r#""0""#,
        "Limit in bytes per second, including hits, at least 64 KiB; 0: no limit.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "burst_iops",
        "1000",
        "0",
        "Burst above `limit_iops` in requests; the credit accumulates while the rate is below the limit.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "burst_bytes",
        r#""100 MB""#,
        r#""0""#,
        "Burst above `limit_bytes` in bytes; the credit accumulates while the rate is below the limit.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "reservation_iops",
        "300",
        "0",
        "Reservation in requests of 4 KiB per second, served before shares are applied; at most `limit_iops`. It \
         requires a `datastore`, which may refuse reservations above its measured capacity.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "memory_min",
        r#""512 MiB" or "10%""#,
        r#""0""#,
        "Guaranteed minimum of the memory cache: below it, other volumes cannot evict data of this volume. A \
         percentage refers to `[memory] size`, which includes the cache's index.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "memory_max",
        r#""1 GiB", "50%" or "none""#,
        r#""none""#,
        "Maximum of the memory cache for the volume, at least 256 KiB; up to half of it may be dirty.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "flash_min",
        r#""20 GiB" or "10%""#,
        r#""0""#,
        "Guaranteed minimum of the flash cache: below it, other volumes cannot evict clean pages of this volume. A \
         percentage refers to the capacity of the devices.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "flash_max",
        r#""100 GiB", "50%" or "none""#,
        r#""none""#,
        "Maximum of the flash cache for the volume. At the maximum, a new page replaces another page of the same \
         volume.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "acl",
        r#"["iqn.1998-01.com.vmware:*"]"#,
        "[]",
        "Initiators with access to the LUN, among those that may log in; `*` matches any text. An empty list admits \
         all of them.",
    )
    .shape(Shape::Texts)
    .takes_effect(Reload),
    key(
        "volume",
        "declared_lost",
        "false",
        "false",
        "The backing is permanently lost: initiators are told that the LUN is gone (permanent device loss, PDL) and \
         give up its paths. Without this key, initiators are told to wait.",
    )
    .shape(Shape::Flag)
    .takes_effect(Command),
    key(
        "volume",
        "take_over",
        r#""command" or "automatic""#,
        r#""command""#,
        "Only on an image of RBD that another host owns: this host takes it over by command alone, or by itself when \
         the owner was absent for `take_over_after` ([fleet.md](fleet.md)).",
    )
    .shape(Shape::Choice(&["command", "automatic"]))
    .takes_effect(Reload),
    key(
        "volume",
        "take_over_after",
        r#""60s""#,
        r#""60s""#,
        "Only with `take_over = \"automatic\"`: time for which no client had the image open, at least 30 s.",
    )
    .takes_effect(Reload),
    key(
        "qos",
        "match",
        r#"{ vm = "sql*" }"#,
        "required",
        "Volumes in the scope of the table: all labels must match, where `*` matches any text and `?` one character. \
         `name` matches the volume's name. If several tables match, the last one with a key applies; a key of the \
         volume itself takes precedence.",
    )
    .shape(Shape::Labels)
    .takes_effect(Reload),
    key("qos", "shares", r#""high" or 1500"#, "unset", "As `shares` of a volume.").shape(SHARES).takes_effect(Reload),
    key("qos", "limit_iops", "500", "unset", "As `limit_iops` of a volume.").shape(COUNT).takes_effect(Reload),
    key("qos", "limit_bytes", r#""20 MB""#, "unset", "As `limit_bytes` of a volume.").takes_effect(Reload),
    key("qos", "burst_iops", "1000", "unset", "As `burst_iops` of a volume.").shape(COUNT).takes_effect(Reload),
    key("qos", "burst_bytes", r#""100 MB""#, "unset", "As `burst_bytes` of a volume.").takes_effect(Reload),
    key("qos", "reservation_iops", "300", "unset", "As `reservation_iops` of a volume.")
        .shape(COUNT)
        .takes_effect(Reload),
];

const fn key(
    table: &'static str,
    name: &'static str,
    example: &'static str,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { table, name, example, default, doc, shape: Shape::Text, takes_effect: Restart }
}

impl Key {
    const fn shape(self, shape: Shape) -> Key {
        Key { shape, ..self }
    }

    const fn takes_effect(self, takes_effect: TakesEffect) -> Key {
        Key { takes_effect, ..self }
    }
}

/// Keys of a volume that commands can change while it is served.
pub fn set_by_command() -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(|key| key.table == "volume" && key.takes_effect == Command).map(|key| key.name)
}

/// True when a change of that key in the file needs a restart.
pub fn needs_restart(table: &str, name: &str) -> bool {
    find_key(table, name).is_none_or(|key| key.takes_effect == Restart)
}

/// The key of that name, if there is one.
pub fn find_key(table: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.table == table && key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_belongs_to_a_known_table_and_is_named_once() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(TABLES.iter().any(|table| table.name == key.table), "{}", key.name);
            let is_repeated = KEYS[..index].iter().any(|other| other.table == key.table && other.name == key.name);
            assert!(!is_repeated, "{}.{} is listed twice", key.table, key.name);
        }
    }
}
