//! The list of all configuration keys. It serves the parser, the documentation, the suggestions for misspelt keys, and
//! the reload.
//!
//! The list only describes a key. Its table's file beside this one reads and checks it, and holds the default in force.

pub use control::report::TakesEffect;

/// A table of the file.
pub struct Table {
    /// Its name; empty for the top of the file.
    pub name: &'static str,
    /// Written `[[name]]`, any number of times.
    pub repeated: bool,
}

/// A key of a table.
pub struct Key {
    /// The table's name.
    pub table: &'static str,
    /// The key.
    pub name: &'static str,
    /// An example of its value.
    pub form: &'static str,
    /// Its default, as text. A test compares it with the default in force.
    pub default: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// Type of its value in TOML.
    pub shape: Shape,
    /// When a change of it in the file takes effect.
    pub takes_effect: TakesEffect,
}

/// Type of a key's value in TOML, for the JSON schema that editors and generators use.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Text: a name, a path, a size or time with its unit.
    Text,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A whole number, between the two bounds.
    Count(u32, u32),
    /// One of these whole numbers.
    Level(&'static [u32]),
    /// A number with or without decimals, up to this maximum.
    Number(u32),
    /// A list of texts.
    Texts,
    /// A table of texts.
    Labels,
    /// A table with these texts: required ones, then optional ones.
    Record(&'static [&'static str], &'static [&'static str]),
    /// A table with these required texts, optional texts and lists of texts; or a list of such tables.
    Records(&'static [&'static str], &'static [&'static str], &'static [&'static str]),
    /// One of these texts, or a whole number between the two bounds.
    ChoiceOrCount(&'static [&'static str], u32, u32),
    /// One of these texts, or a list of whole numbers.
    ChoiceOrCounts(&'static [&'static str]),
}

/// Any whole number that the parser accepts.
const COUNT: Shape = Shape::Count(0, u32::MAX);
const SHARES: Shape = Shape::ChoiceOrCount(&["low", "normal", "high"], 1, 100_000);

use TakesEffect::{Command, Reload, Renewal, Restart};

/// All tables.
pub const TABLES: &[Table] = &[
    table("", false),
    table("state", false),
    table("memory", false),
    table("flash", false),
    table("control", false),
    table("api", false),
    table("history", false),
    table("alerts", false),
    table("nbd", false),
    table("iscsi", false),
    table("vhost_user", false),
    table("array", true),
    table("datastore", true),
    table("volume", true),
    table("qos", true),
];

/// All keys.
pub const KEYS: &[Key] = &[
    key(
        "",
        "cores",
        r#""auto" or [0, 1]"#,
        r#""auto""#,
        "The processor that serves data. `\"auto\"` leaves it to the system, a list pins the data thread to the first \
         one named; further ones are for a later version, which spreads the load.",
    )
    .shape(Shape::ChoiceOrCounts(&["auto"])),
    key(
        "state",
        "directory",
        r#""/var/lib/hotset""#,
        r#""/var/lib/hotset""#,
        "Where identities, what was not cleanly stopped, and changes made by command are kept. One daemon a directory.",
    ),
    key(
        "memory",
        "size",
        r#""4 GiB""#,
        r#""1 GiB""#,
        "All memory that caching may take, its index included; at least 16 MiB.",
    ),
    key(
        "memory",
        "keep_in",
        r#""auto", "none" or "/dev/shm""#,
        r#""auto""#,
        "Where the memory cache lies, so that it outlives the daemon: a directory in a file system in memory (tmpfs). \
         What was acknowledged and is not on the backing yet is then taken back by the next start after a crash or a \
         kill; a power cut takes it along. `\"auto\"`: `/dev/shm`, if there is room for `[memory] size`, else nowhere, \
         with a warning; `\"none\"`: nowhere. A directory that is named and has no room keeps the daemon from \
         starting, unless what a killed one left is there: that is taken back, without a new file, and the alert \
         `memory-not-kept` says so. Where it goes with the daemon, clients that connect after a kill find that their \
         [first flush fails](vhost-user.md#restarts-of-the-daemon).",
    ),
    key(
        "flash",
        "devices",
        r#"["/dev/nvme0n1", "/dev/nvme1n1"]"#,
        "required",
        "Two to eight devices, partitions or files. The first two carry what is dirty, mirrored, until one of them \
         fails and another takes over, so that a flush need not wait for the backing. Empty ones are taken at the \
         first start, others are refused.",
    )
    .shape(Shape::Texts),
    key(
        "flash",
        "size",
        r#""16 GiB""#,
        "none",
        "Create files among `devices` that do not exist, with this size, all of it allocated.",
    ),
    key(
        "flash",
        "allow_single_copy",
        "false",
        "false",
        "Acknowledge flushes from one copy, with one device or while one of two is out of service: the next failure \
         then loses what was flushed.",
    )
    .shape(Shape::Flag),
    key(
        "flash",
        "endurance_dwpd",
        "1",
        "1",
        "How often a day promotion may write the devices full, `0.3` for example; 0: no limit. A day's worth may be \
         written at once. What is dirty always goes to flash.",
    )
    .shape(Shape::Number(1000)),
    key(
        "flash",
        "scrub",
        r#""4 MiB""#,
        r#""4 MiB""#,
        "How much a second the background scrub reads of what is dirty on flash, all copies together, to find and \
         repair silent damage; `\"off\"`: none.",
    ),
    key(
        "flash",
        "congestion_threshold",
        r#""5ms" or "auto""#,
        r#""5ms""#,
        "Latency of the devices past which the shares of volumes count there, 100us to 10s; `\"auto\"`: found from \
         where throughput stops growing ([qos.md](qos.md)).",
    ),
    key(
        "control",
        "socket",
        r#""/run/hotset/control.sock""#,
        r#""/run/hotset/control.sock""#,
        "The Unix socket that the commands talk to.",
    ),
    key(
        "nbd",
        "listen",
        r#"["unix:/run/hotset/nbd.sock", "tcp:127.0.0.1:10809"]"#,
        r#"["unix:/run/hotset/nbd.sock"]"#,
        "Where NBD clients connect: `unix:PATH` or `tcp:HOST:PORT`.",
    )
    .shape(Shape::Texts),
    key(
        "nbd",
        "socket_owner",
        r#""libvirt-qemu""#,
        "whoever runs the daemon",
        "User that may connect to the Unix sockets of `listen`: their owner, or named in their access control list \
         where the daemon may not give them away.",
    ),
    key(
        "nbd",
        "socket_group",
        r#""hotset-volumes""#,
        "hotset-volumes where the daemon is a member of it, else the daemon's own",
        "Group that the Unix sockets of `listen` belong to. Whoever may connect may read and write volumes; the \
         control socket stays with the daemon's own group.",
    ),
    key("nbd", "socket_mode", r#""0660""#, r#""0660""#, "Permissions of the Unix sockets of `listen`, octal."),
    key(
        "nbd",
        "tls",
        r#""off", "allowed" or "required""#,
        r#""off""#,
        "Whether NBD clients may or must use TLS, on every address of `listen`.",
    )
    .shape(Shape::Choice(&["off", "allowed", "required"])),
    key(
        "nbd",
        "tls_certificate",
        r#""/etc/hotset/nbd.crt""#,
        "none",
        "The server's certificate chain, PEM; needed unless `tls` is off. A reload (SIGHUP) takes over what the files \
         hold then.",
    )
    .takes_effect(Renewal),
    key("nbd", "tls_key", r#""/etc/hotset/nbd.key""#, "none", "The key of `tls_certificate`, PEM.")
        .takes_effect(Renewal),
    key(
        "nbd",
        "tls_client_ca",
        r#""/etc/hotset/clients.crt""#,
        "none",
        "Ask clients for a certificate that one of these signed, PEM.",
    )
    .takes_effect(Renewal),
    key(
        "iscsi",
        "listen",
        r#"["10.0.0.5:3260"]"#,
        "required",
        "Where initiators connect: addresses, each a portal of the one target; the port is 3260 where none is given \
         ([iscsi.md](iscsi.md)).",
    )
    .shape(Shape::Texts),
    key(
        "iscsi",
        "target",
        r#""iqn.2026-11.io.hotset:lab""#,
        "required",
        "Name of the target; initiators know it by this, so that it should never change.",
    ),
    key(
        "iscsi",
        "announce",
        r#"["203.0.113.5:3260"]"#,
        "[]",
        "Addresses that discovery names, for initiators behind another network's doors. Without them each is told the \
         address that it connected to.",
    )
    .shape(Shape::Texts),
    key(
        "iscsi",
        "chap",
        r#"{ user = "esx", secret_file = "/etc/hotset/chap.secret" }"#,
        "none",
        "Initiators have to prove that they know the secret in that file; with `mutual_user` and `mutual_secret_file` \
         the target proves itself to them as well. A list of such tables, or `[[iscsi.chap]]`, has several users; \
         `initiators` binds one to names, which then prove themselves with it alone \
         ([iscsi.md](iscsi.md#who-may-see-it)).",
    )
    .shape(Shape::Records(&["user", "secret_file"], &["mutual_user", "mutual_secret_file"], &["initiators"])),
    key(
        "iscsi",
        "acl",
        r#"["iqn.1998-01.com.vmware:*"]"#,
        "[]",
        "Names of initiators that may log in; `*` stands for any text. An empty list: all may.",
    )
    .shape(Shape::Texts),
    key(
        "api",
        "listen",
        r#""127.0.0.1:7400""#,
        "none",
        "Address and port of the HTTP interface: REST, metrics, the stream ([api.md](api.md)). Without it there is \
         none.",
    ),
    key(
        "api",
        "names",
        r#"["cache.example"]"#,
        "[]",
        "Host names and addresses under which it may be asked for, besides loopback; a request under another one is \
         refused.",
    )
    .shape(Shape::Texts),
    key(
        "api",
        "metrics_volumes",
        "1000",
        "1000",
        "With more volumes than this `/metrics` tells sums alone, and how many volumes were left out.",
    )
    .shape(COUNT),
    key(
        "api",
        "tls_certificate",
        r#""/etc/hotset/api.crt""#,
        "none",
        "HTTP over TLS alone, with this certificate chain, PEM; needs `tls_key`. A reload (SIGHUP) takes over what the \
         files hold then.",
    )
    .takes_effect(Renewal),
    key("api", "tls_key", r#""/etc/hotset/api.key""#, "none", "The key of `tls_certificate`, PEM.")
        .takes_effect(Renewal),
    key(
        "history",
        "size",
        r#""1 GiB""#,
        r#""1 GiB""#,
        "What figures over time ([api.md](api.md#history)) may take in the state directory, in its folder `history`; \
         at least 32 MiB, or `\"0\"`: none are kept. Past it the finest go first.",
    ),
    key(
        "alerts",
        "dirty_age",
        r#""15min""#,
        r#""15min""#,
        "Dirty data that is older raises an alert ([alerts.md](alerts.md)).",
    ),
    key(
        "alerts",
        "endurance_until",
        r#""2030-12-31""#,
        "none",
        "A flash device that will have been written as much as it is rated for before this date raises an alert; it \
         takes `flash.endurance_dwpd`.",
    ),
    key(
        "alerts",
        "webhook",
        r#""http://127.0.0.1:9000/hook""#,
        "none",
        "Where alerts are sent when they are raised and cleared, as JSON in a POST ([alerts.md](alerts.md#webhook)); \
         `https://` for TLS.",
    ),
    key(
        "alerts",
        "webhook_ca",
        r#""/etc/hotset/receiver-ca.crt""#,
        "those that the system trusts",
        "Authorities that may have signed the certificate of an `https://` webhook, PEM.",
    ),
    key(
        "vhost_user",
        "directory",
        r#""/run/hotset/vhost""#,
        r#""/run/hotset/vhost""#,
        "Folder of the sockets at which virtual machines find their volumes, `NAME.sock` each \
         ([vhost-user.md](vhost-user.md)).",
    ),
    key(
        "vhost_user",
        "socket_owner",
        r#""libvirt-qemu""#,
        "whoever runs the daemon",
        "User that may connect to these sockets, as in `[nbd]`. Whoever may connect to one may read and write the \
         volume.",
    ),
    key(
        "vhost_user",
        "socket_group",
        r#""hotset-volumes""#,
        "hotset-volumes where the daemon is a member of it, else the daemon's own",
        "Group that these sockets belong to.",
    ),
    key("vhost_user", "socket_mode", r#""0660""#, r#""0660""#, "Permissions of these sockets, octal."),
    key(
        "array",
        "name",
        r#""shelf""#,
        "required",
        "Name of the modelled array: volumes lie on it with `backing = \"sim://NAME\"`, one after the other.",
    ),
    key("array", "raid", "0, 1, 5, 6 or 10", "5", "RAID level.").shape(Shape::Level(&[0, 1, 5, 6, 10])),
    key("array", "disks", "5", "5", "Spindles or devices in the array.").shape(COUNT),
    key("array", "disk", r#""sas15k", "sas10k", "nlsas" or "ssd""#, r#""sas15k""#, "What each disk is.")
        .shape(Shape::Choice(&["sas15k", "sas10k", "nlsas", "ssd"])),
    key(
        "array",
        "stripe",
        r#""64 KiB""#,
        r#""64 KiB""#,
        "Bytes of a stripe on one disk: a power of two from 4 KiB to 1 MiB.",
    ),
    key("datastore", "name", r#""sas-pool""#, "required", "Name that volumes refer to.").takes_effect(Reload),
    key(
        "datastore",
        "congestion_threshold",
        r#""30ms" or "auto""#,
        r#""auto""#,
        "Latency past which the shares of its volumes count, 100us to 10s; `\"auto\"`: found from where throughput \
         stops growing, and found anew as that changes ([qos.md](qos.md)).",
    )
    .takes_effect(Reload),
    key(
        "datastore",
        "write_cost",
        "4",
        "1",
        "Accesses that a small write costs its disks, where they do not say so themselves: 2 for RAID 1 and 10, 4 for \
         RAID 5, 6 for RAID 6; 1 to 16. Modelled arrays say it.",
    )
    .shape(Shape::Count(1, 16))
    .takes_effect(Reload),
    key("volume", "name", r#""web01""#, "required", "Name that clients see: the NBD export's. Never an identity.")
        .takes_effect(Reload),
    key(
        "volume",
        "backing",
        r#""/dev/sdb""#,
        "required",
        "Where the data lies: a path, `file://PATH`, `nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, \
         `sim://ARRAY` or `sim://raid5?disks=5&type=sas15k&size=100GiB`.",
    ),
    key(
        "volume",
        "size",
        r#""100 GiB""#,
        "the backing's",
        "Only where the backing has none of its own: a file that is to be created, a modelled array.",
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
        "With `write-back-volatile` alone: age at which a write is durable at the latest, while the backing takes as \
         much as is written.",
    ),
    key("volume", "datastore", r#""sas-pool""#, "none", "The `[[datastore]]` whose spindles it shares.")
        .takes_effect(Reload),
    key("volume", "labels", r#"{ vm = "web01" }"#, "{}", "`vm` and any other, for people and for metrics.")
        .shape(Shape::Labels)
        .takes_effect(Reload),
    key("volume", "read_only", "false", "false", "Refuse writes.").shape(Shape::Flag),
    key(
        "volume",
        "lun",
        "0",
        "given once",
        "Number of its LUN, 0 to 16383, where there is `[iscsi]`. Without it the volume is given one that no other has \
         had, and keeps it.",
    )
    .shape(Shape::Count(0, 16383)),
    key("volume", "flash", "true", "true", "Whether clean pages of the volume may be kept on flash.")
        .shape(Shape::Flag),
    key(
        "volume",
        "shares",
        r#""high" or 1500"#,
        r#""normal""#,
        "Weight beside the volumes of its datastore while that \
                                                                 is congested, and on flash: `low` (500), `normal` \
                                                                 (1000), `high` (2000), or 1 to 100000 \
                                                                 ([qos.md](qos.md)).",
    )
    .shape(SHARES)
    .takes_effect(Command),
    key(
        "volume",
        "limit_iops",
        "500",
        "0",
        "Requests a second at most, hits included; one longer than 128 KiB counts \
                                             once for each 128 KiB that it begins. 0: no \
                                             limit.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "limit_bytes",
        r#""20 MB""#,
        r#""0""#,
        "Bytes a second at most, hits included, from 64 KiB on; 0: no limit.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "burst_iops",
        "1000",
        "0",
        "Requests that may come at once above `limit_iops`, saved up while fewer came.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "burst_bytes",
        r#""100 MB""#,
        r#""0""#,
        "Bytes that may come at once above `limit_bytes`, saved up while fewer came.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "reservation_iops",
        "300",
        "0",
        "Requests of 4 KiB a second that its datastore does for it before \
                                                   others get by shares; no more than `limit_iops`. Needs a \
                                                   `datastore`, which may refuse what it has not shown it can \
                                                   do.",
    )
    .shape(COUNT)
    .takes_effect(Command),
    key(
        "volume",
        "memory_min",
        r#""512 MiB" or "10%""#,
        r#""0""#,
        "As long as the volume has no more of the memory than this, none of it goes for another volume's. Percent are \
         of `[memory] size`, of which a part is the cache's index.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "memory_max",
        r#""1 GiB", "50%" or "none""#,
        r#""none""#,
        "The volume has no more of the memory than this, or 256 KiB; half of it may be dirty.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "flash_min",
        r#""20 GiB" or "10%""#,
        r#""0""#,
        "As long as the volume's clean pages on flash take no more than this, none of them goes for another volume's. \
         Percent are of what the devices can hold.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "flash_max",
        r#""100 GiB", "50%" or "none""#,
        r#""none""#,
        "When the volume's clean pages on flash take this much, a new one takes the place of one of its own.",
    )
    .takes_effect(Command),
    key(
        "volume",
        "acl",
        r#"["iqn.1998-01.com.vmware:*"]"#,
        "[]",
        "Initiators that its LUN is there for, of those that may log in; `*` stands for any text. An empty list: all \
         of them.",
    )
    .shape(Shape::Texts)
    .takes_effect(Reload),
    key(
        "volume",
        "declared_lost",
        "false",
        "false",
        "Its backing will not come back: initiators are told that the LUN is gone for good (PDL), and give up its \
         paths. While it is merely away they are told to wait.",
    )
    .shape(Shape::Flag)
    .takes_effect(Command),
    key(
        "qos",
        "match",
        r#"{ vm = "sql*" }"#,
        "required",
        "Volumes that this is for: all of these labels have to fit, where `*` stands for any text and `?` for one \
         character. `name` is the volume's name. Where several fit, the last one that gives a key counts; a volume's \
         own key comes before all of them.",
    )
    .shape(Shape::Labels)
    .takes_effect(Reload),
    key("qos", "shares", r#""high" or 1500"#, "not given", "As `shares` of a volume.")
        .shape(SHARES)
        .takes_effect(Reload),
    key("qos", "limit_iops", "500", "not given", "As `limit_iops` of a volume.").shape(COUNT).takes_effect(Reload),
    key("qos", "limit_bytes", r#""20 MB""#, "not given", "As `limit_bytes` of a volume.").takes_effect(Reload),
    key("qos", "burst_iops", "1000", "not given", "As `burst_iops` of a volume.").shape(COUNT).takes_effect(Reload),
    key("qos", "burst_bytes", r#""100 MB""#, "not given", "As `burst_bytes` of a volume.").takes_effect(Reload),
    key("qos", "reservation_iops", "300", "not given", "As `reservation_iops` of a volume.")
        .shape(COUNT)
        .takes_effect(Reload),
];

const fn table(name: &'static str, repeated: bool) -> Table {
    Table { name, repeated }
}

const fn key(
    table: &'static str,
    name: &'static str,
    form: &'static str,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key { table, name, form, default, doc, shape: Shape::Text, takes_effect: Restart }
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
pub fn takes_restart(table: &str, name: &str) -> bool {
    find_key(table, name).is_none_or(|key| key.takes_effect == Restart)
}

/// The key of that name, if there is one.
pub fn find_key(table: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.table == table && key.name == name)
}

/// The table of that name, if there is one.
pub fn find_table(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name && !name.is_empty())
}

/// A table's notation: `[memory]`, `[[volume]]`, `the top of the file`.
pub fn show_table(name: &str) -> String {
    match find_table(name) {
        Some(table) if table.repeated => format!("[[{name}]]"),
        Some(_) => format!("[{name}]"),
        None => "the top of the file".to_owned(),
    }
}

/// The known name that is most similar to `wrong`, if any is similar enough.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + wrong.chars().count().min(name.chars().count()) / 4).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_belongs_to_a_known_table_and_is_named_once() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(TABLES.iter().any(|table| table.name == key.table), "{}", key.name);
            let twin = KEYS[..at].iter().any(|other| other.table == key.table && other.name == key.name);
            assert!(!twin, "{}.{} is listed twice", key.table, key.name);
        }
    }

    #[test]
    fn misspelt_key_gets_a_suggestion_and_nonsense_gets_none() {
        let known = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("polcy", known()), Some("policy"));
        assert_eq!(nearest("baking", known()), Some("backing"));
        assert_eq!(nearest("colour", known()), None);
    }
}
