//! Messages about invalid configurations, and values read from valid configurations.

use std::path::Path;

use config::{ApiConfig, BackingSpec, Config, Cores, TakeOverMode, TierChoice, parse_placement};
use engine::Threshold;
use events::{Encryption, Login};
use insta::assert_snapshot;
use messages::report::Severity;
use seam::Nanos;

fn problems_of(text: &str) -> String {
    Config::parse(Path::new("/etc/hotset/hotset.toml"), text).expect_err("the text is broken on purpose").to_string()
}

const VOLUME: &str = "[[volume]]\nname = \"a\"\nbacking = \"sim://raid5?size=1GiB\"\n";

#[test]
fn syntax_errors_are_located() {
    assert_snapshot!(problems_of("[memory]\nsize = 4 GiB\n"));
    assert_snapshot!(problems_of("[memory\nsize = \"4 GiB\"\n[[volume]\n"));
}

#[test]
fn unknown_key_error_names_the_nearest_known_key() {
    assert_snapshot!(problems_of(&format!("{VOLUME}polcy = \"none\"\n")));
    assert_snapshot!(problems_of("[memroy]\nsize = \"4 GiB\"\n"));
    assert_snapshot!(problems_of("[memory]\nlisten = []\nxyzzy = 1\n"));
    assert_snapshot!(problems_of("core = \"auto\"\n"));
}

#[test]
fn quality_of_service_that_contradicts_itself_is_refused() {
    assert_snapshot!(problems_of(&format!(
        "[flash]\ndevices = [\"/dev/f0\", \"/dev/f1\"]\ncongestion_threshold = \"1us\"\n\
         [[datastore]]\nname = \"x\"\ncongestion_threshold = 30\nwrite_cost = 17\n\
         {VOLUME}shares = \"most\"\nlimit_iops = 5\nlimit_bytes = \"20\"\nburst_bytes = \"1 MiB\"\nreservation_iops = \
         6\n"
    )));
    assert_snapshot!(problems_of(&format!(
        "[[qos]]\n[[qos]]\nmatch = {{}}\nshares = 0\n[[qos]]\nmatch = {{ vm = 5 }}\nlimit_iops = \"5\"\n\
         [[qos]]\nmatch = {{ name = \"a\" }}\nburst_iops = 5\n[[qos]]\nmatch = {{ name = \"?\" }}\nreservation_iops = \
         7\n\
         weight = 3\n{VOLUME}shares = 1.5\n"
    )));
}

#[test]
fn own_keys_take_precedence_over_those_of_the_last_matching_rule() {
    let text = r#"
[[datastore]]
name = "sas"
congestion_threshold = "30ms"
write_cost = 4
[[datastore]]
name = "nl"
[[qos]]
match = { vm = "sql*" }
shares = "high"
limit_iops = 1000
burst_iops = 500
[[qos]]
match = { vm = "sql0?", tier = "gold" }
shares = 3000
reservation_iops = 300
[[qos]]
match = { name = "b*" }
limit_bytes = "20 MB"
[[volume]]
name = "a"
backing = "sim://raid5?size=1GiB"
datastore = "sas"
labels = { vm = "sql01", tier = "gold" }
limit_iops = 400
[[volume]]
name = "b"
backing = "sim://raid5?size=1GiB"
labels = { vm = "sql01" }
limit_iops = 0
"#;
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    let datastores: Vec<_> =
        config.datastores.iter().map(|spec| (spec.name.as_str(), spec.threshold, spec.write_cost)).collect();
    let at_30_ms = Threshold::Latency(Nanos::from_millis(30));
    assert_eq!(datastores, [("sas", at_30_ms, 4), ("nl", Threshold::Auto, 1)]);
    let settings = |index: usize| {
        let volume = &config.volumes[index];
        let keys = config::volume_qos::KEYS.iter().map(|key| volume.setting(key));
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(settings(0), "3000 400 0 500 0 300");
    // A burst without a limit is accepted and has no effect.
    assert_eq!(settings(1), "high 0 20 MB 500 0 0");
    let rule_values = |index: usize| {
        let values = config.rule_values(&config.volumes[index]).into_iter();
        values.map(|value| format!("{}={}:{}", value.key, value.value, value.line)).collect::<Vec<_>>()
    };
    assert_eq!(rule_values(0), ["burst_iops=500:8", "reservation_iops=300:13", "shares=3000:13"]);
    assert_eq!(rule_values(1), ["burst_iops=500:8", "limit_bytes=20 MB:17", "shares=high:8"]);
}

#[test]
fn target_needs_a_name_and_portals_and_luns_are_unique() {
    assert_snapshot!(problems_of(&format!(
        "[iscsi]\nlisten = [\"10.0.0.5:x\", \"10.0.0.5\", \"10.0.0.5:3260\"]\ntarget = \"lab\"\nacl = [\"esx 1\"]\n\
         chap = {{ user = \"esx\" }}\n{VOLUME}lun = 3\n[[volume]]\nname = \"b\"\nbacking = \"sim://raid5?size=1GiB\"\n\
         lun = 3\n"
    )));
    assert_snapshot!(problems_of(&format!("[iscsi]\nlisten = []\n{VOLUME}lun = 20000\ndeclared_lost = 1\n")));
    let whole = "[iscsi]\nlisten = [\"10.0.0.5\", \"[2001:db8::5]:861\"]\ntarget = \"iqn.2026-11.io.hotset:lab\"\n\
                 announce = [\"203.0.113.5\"]\nacl = [\"iqn.1998-01.com.vmware:*\", \"*\"]\n\
                 chap = { user = \"esx\", secret_file = \"chap.secret\", mutual_user = \"us\", mutual_secret_file \
                 = \"/m\" }\n";
    let config =
        Config::parse(Path::new("/etc/hotset/hotset.toml"), &format!("{whole}{VOLUME}lun = 3\nacl = [\"iqn.a:b\"]\n"));
    let config = config.expect("the configuration is valid");
    assert_eq!((config.volumes[0].lun, config.volumes[0].acl.as_slice()), (Some(3), &["iqn.a:b".to_owned()][..]));
    let iscsi = config.iscsi.expect("it is present");
    let listen: Vec<String> = iscsi.listen.iter().map(ToString::to_string).collect();
    assert_eq!(
        (listen.join(" "), iscsi.announce.join(" ")),
        ("tcp:10.0.0.5:3260 tcp:[2001:db8::5]:861".into(), "203.0.113.5:3260".into())
    );
    let chap = iscsi.chap.into_iter().next().expect("it is present");
    assert_eq!(
        (chap.secret_file, chap.mutual),
        ("/etc/hotset/chap.secret".into(), Some(("us".to_owned(), "/m".into())))
    );
}

#[test]
fn alert_settings_are_validated() {
    let problems = problems_of(
        "[alerts]\ndirty_age = \"old\"\nendurance_until = \"2030-02-30\"\nwebhook = \"ftp://a/\"\nvolume = 11\n",
    );
    for word in [
        "\"old\" is not a time",
        "\"2030-02-30\" is not a date",
        "invalid address for alerts",
        "unknown key \"volume\"",
    ] {
        assert!(problems.contains(word), "{word}: {problems}");
    }
    let parsed = |text: &str| {
        Config::parse(Path::new("/etc/hotset/hotset.toml"), text).expect("the configuration is valid").alerts
    };
    let whole = "[alerts]\ndirty_age = \"1h\"\nendurance_until = \"2030-12-31\"\nwebhook = \"https://h:9/x\"\n\
                 webhook_ca = \"ca.crt\"\n";
    let alerts = parsed(&format!("{whole}{VOLUME}"));
    assert_eq!((alerts.dirty_age.as_secs(), alerts.endurance_until), (3_600, Some(1_924_905_600)));
    let webhook = alerts.webhook.map(|webhook| (webhook.address.to_string(), webhook.ca_file));
    assert_eq!(webhook, Some(("https://h:9/…".to_owned(), Some("/etc/hotset/ca.crt".into()))));
    assert_eq!(parsed(VOLUME), config::AlertsConfig::default());
}

#[test]
fn mail_keys_are_validated_together() {
    for (text, expected) in [
        ("mail_to = [\"a@b.example\"]", "mail_to has no effect without mail_server"),
        ("mail_server = \"m.example\"", "[alerts] without \"mail_from\""),
        ("mail_server = \"m.example\"\nmail_from = \"a@b.example\"", "[alerts] without \"mail_to\""),
        (
            "mail_server = \"smtp://m/\"\nmail_from = \"a@b.example\"\nmail_to = [\"a@b.example\"]",
            "is not a mail server",
        ),
        ("mail_server = \"m\"\nmail_from = \"a\"\nmail_to = [\"b\"]", "\"a\" is not a mail address"),
        ("mail_server = \"m\"\nmail_from = \"a@b.example\"\nmail_to = [\"b\"]", "\"b\" is not a mail address"),
        ("mail_server = \"m\"\nmail_from = \"a@b.example\"\nmail_to = []", "mail_to has 0 recipients"),
        ("mail_tls = \"ssl\"", "\"ssl\" is not an encryption of mail"),
        ("mail_severity = \"high\"", "\"high\" is not a severity"),
        ("mail_server = \"m\"\nmail_user = \"u\"", "mail_user without mail_password_file"),
        ("mail_server = \"m\"\nmail_password_file = \"p\"", "mail_password_file without mail_user"),
        (
            "mail_server = \"m\"\nmail_tls = \"none\"\nmail_user = \"u\"\nmail_password_file = \"p\"",
            "the password would be sent unencrypted",
        ),
    ] {
        let problems = problems_of(&format!("[alerts]\n{text}\n"));
        assert!(problems.contains(expected), "{expected}: {problems}");
    }
    let mail = |text: &str| {
        let addresses = "mail_from = \"Hotset <h@b.example>\"\nmail_to = [\"a@b.example\", \"c@b.example\"]";
        let text = format!("[alerts]\n{text}\n{addresses}\n{VOLUME}");
        let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &text).expect("the configuration is valid");
        config.alerts.mail.expect("mail is configured")
    };
    let plain = mail("mail_server = \"m.example\"");
    assert_eq!((plain.server.port, plain.server.encryption, plain.to.len()), (465, Encryption::Tls, 2));
    assert_eq!((plain.min_severity, plain.server.login.clone()), (Severity::Warning, None));
    let whole = mail(
        "mail_server = \"m.example\"\nmail_tls = \"starttls\"\nmail_user = \"u\"\nmail_password_file = \"p\"\n\
         mail_ca = \"ca.crt\"\nmail_severity = \"info\"",
    );
    let login = Login { user: "u".to_owned(), password_file: "/etc/hotset/p".into() };
    assert_eq!((whole.server.port, whole.server.login), (587, Some(login)));
    assert_eq!((whole.server.ca_file, whole.min_severity), (Some("/etc/hotset/ca.crt".into()), Severity::Info));
    assert_eq!(mail("mail_server = \"[::1]:2525\"\nmail_tls = \"none\"").server.port, 2525);
}

#[test]
fn history_size_is_zero_or_large_enough() {
    assert_snapshot!(problems_of("[history]\nsize = \"1 MiB\"\nkeep = 3\n"));
    let size =
        |text: &str| Config::parse(Path::new("/etc/hotset/hotset.toml"), text).map(|config| config.history.size_bytes);
    assert_eq!(size(VOLUME), Ok(1 << 30));
    assert_eq!(size(&format!("[history]\nsize = \"0\"\n{VOLUME}")), Ok(0));
}

#[test]
fn http_interface_has_an_address_and_plain_names() {
    assert_snapshot!(problems_of(
        "[api]\nlisten = \"7400\"\nnames = [\"a:80\", \"\", \"cache.example\", \"fd00::7\"]\n"
    ));
    let api = |text: &str| Config::parse(Path::new("/etc/hotset/hotset.toml"), text).map(|config| config.api);
    assert_eq!(api(VOLUME), Ok(ApiConfig::default()));
    let address = ApiConfig::default().listen.map(|address| address.to_string());
    assert_eq!(address.as_deref(), Some("127.0.0.1:7400"));
    assert_eq!(api(&format!("[api]\nlisten = \"none\"\n{VOLUME}")).map(|api| api.listen), Ok(None));
}

#[test]
fn console_url_is_known_with_a_name_and_a_port() {
    let url = |text: &str| {
        let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &format!("[api]\n{text}\n{VOLUME}"));
        config.expect("the configuration is valid").api.console_url()
    };
    assert_eq!(url(""), None);
    assert_eq!(url("listen = \"0.0.0.0:0\"\nnames = [\"cache.example\"]"), None);
    assert_eq!(url("listen = \"none\"\nnames = [\"cache.example\"]"), None);
    let known = url("listen = \"0.0.0.0:7400\"\nnames = [\"cache.example\", \"other\"]");
    assert_eq!(known.as_deref(), Some("http://cache.example:7400/"));
    assert_eq!(url("names = [\"fd00::7\"]").as_deref(), Some("http://[fd00::7]:7400/"));
}

#[test]
fn flash_devices_are_up_to_eight_different_ones() {
    assert_snapshot!(problems_of("[flash]\nallow_single_copy = true\n"));
    assert_snapshot!(problems_of(
        "[flash]\ndevices = [\"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\"]\n"
    ));
    assert_snapshot!(problems_of("[flash]\ndevices = [\"a\", \"/etc/hotset/a\"]\nsize = \"1000 B\"\n"));
    assert_snapshot!(problems_of("[flash]\ndevices = \"a\"\nsize = 7\nallow_single_copy = \"yes\"\ndevice = 1\n"));
}

#[test]
fn flash_quotas_are_sizes_or_percent_and_minimum_is_below_maximum() {
    let text = |min: &str, max: &str| format!("{VOLUME}flash_min = \"{min}\"\nflash_max = \"{max}\"\n");
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &text("12.5%", "20 GiB"))
        .expect("the configuration is valid");
    assert_eq!(config.volumes[0].setting("flash_min"), "12.5%");
    assert_eq!(config.volumes[0].setting("flash_max"), "20 GiB");
    let above = problems_of(&text("30%", "20%"));
    assert!(above.contains("flash_min 30% is above flash_max 20%"), "{above}");
    assert!(problems_of(&text("101%", "none")).contains("neither a size nor a percentage"));
}

#[test]
fn memory_quotas_fit_into_the_memory() {
    let text = |one: &str, other: &str| {
        let second = VOLUME.replace("\"a\"", "\"b\"").replace("a.img", "b.img");
        format!("[memory]\nsize = \"64 MiB\"\n{VOLUME}{one}\n{second}{other}\n")
    };
    let valid = text("memory_min = \"25%\"\nmemory_max = \"none\"", "memory_min = \"48 MiB\"");
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &valid).expect("the configuration is valid");
    assert_eq!(config.volumes[0].setting("memory_min"), "25%");
    assert_eq!(config.volumes[1].setting("memory_max"), "none");
    let above = problems_of(&text("memory_min = \"50%\"\nmemory_max = \"16 MiB\"", ""));
    assert!(above.contains("memory_min 50% is above memory_max 16 MiB"), "{above}");
    let too_much = problems_of(&text("memory_min = \"25%\"", "memory_min = \"49 MiB\""));
    assert!(too_much.contains("memory_min up to here is 65 MiB, and memory is 64 MiB"), "{too_much}");
}

#[test]
fn relative_flash_device_starts_at_folder_of_the_file() {
    let text = "[flash]\ndevices = [\"a\", \"/dev/b\"]\nsize = \"1 GiB\"\n";
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), text).expect("the configuration is valid");
    let flash = config.flash.expect("the table is present");
    assert_eq!(flash.devices, [Path::new("/etc/hotset/a"), Path::new("/dev/b")]);
    assert!(!flash.allow_single_copy);
    let created = flash.devices.iter().map(|device| flash.create_bytes(device));
    assert_eq!(created.collect::<Vec<_>>(), [Some(1 << 30), None], "devices are never created");
}

#[test]
fn wrong_type_error_names_the_expected_type() {
    assert_snapshot!(problems_of(
        "cores = true\n[memory]\nsize = 4096\n[nbd]\nlisten = \"unix:/x\"\nsocket_mode = 660\n[control]\nsocket = 1.5\n\
         [[volume]]\nname = 7\nbacking = [\"x\"]\nread_only = \"yes\"\nlabels = \"vm\"\npolicy = 1\ndefer = 10\n"
    ));
    assert_snapshot!(problems_of("memory = \"4 GiB\"\nvolume = \"x\"\nstate = 1\n"));
    assert_snapshot!(problems_of("[volume]\nname = \"x\"\n"));
}

#[test]
fn size_error_shows_the_syntax() {
    assert_snapshot!(problems_of(
        "[memory]\nsize = \"4 gigs\"\n[[volume]]\nname = \"a\"\nbacking = \"/nonexistent/a.img\"\nsize = \"1000 B\"\n"
    ));
}

#[test]
fn more_memory_than_the_machine_has_is_refused() {
    let problems = problems_of("[memory]\nsize = \"4096 TiB\"\n");
    assert!(problems.contains("is more than this machine can give"), "{problems}");
}

#[test]
fn too_little_memory_is_refused() {
    assert_snapshot!(problems_of("[memory]\nsize = \"1 MiB\"\n"));
}

#[test]
fn policy_error_lists_the_policies() {
    assert_snapshot!(problems_of(&format!("{VOLUME}policy = \"writeback\"\n")));
}

#[test]
fn defer_belongs_to_the_volatile_policy_alone() {
    assert_snapshot!(problems_of(&format!("{VOLUME}defer = \"10s\"\n")));
    assert_snapshot!(problems_of(&format!("{VOLUME}policy = \"write-back-volatile\"\ndefer = \"2h\"\n")));
}

#[test]
fn take_over_belongs_to_images_of_rbd_and_has_a_margin() {
    let volume = |lines: &str| format!("[[volume]]\nname = \"a\"\nbacking = \"rbd:vms/a\"\n{lines}");
    let parsed = |lines: &str| {
        let config = Config::parse(Path::new("/etc/hotset.toml"), &volume(lines)).expect("no errors");
        let take_over = config.volumes[0].take_over;
        (take_over.mode, take_over.after.as_secs())
    };
    assert_eq!(parsed(""), (TakeOverMode::Command, 60));
    assert_eq!(parsed("take_over = \"automatic\"\ntake_over_after = \"30s\""), (TakeOverMode::Automatic, 30));
    for (text, fault) in [
        (format!("{VOLUME}take_over = \"automatic\""), "has no owner"),
        (volume("take_over = \"soon\""), "no way of a take-over"),
        (volume("take_over_after = \"60s\""), "means nothing"),
        (volume("take_over = \"automatic\"\ntake_over_after = \"29s\""), "after that time"),
        ("[fleet]\nhost = \"two words\"".to_owned(), "not a name of a host"),
    ] {
        let problems = problems_of(&text);
        assert!(problems.contains(fault), "{problems}");
    }
}

#[test]
fn link_between_hosts_needs_this_host_and_all_of_its_files() {
    let link = |more: &str| {
        format!(
            "[fleet]\nhost = \"alpha\"\nhosts = [\"alpha=10.0.0.1:7401\", {more}]\ntls_certificate = \"/c\"\ntls_key = \
             \"/k\"\ntls_ca = \"/a\"\n"
        )
    };
    for (text, fault) in [
        ("[fleet]\nhosts = [\"alpha=10.0.0.1:7401\"]".to_owned(), "[fleet] without \"tls_certificate\""),
        (link("\"beta\""), "\"beta\" is not a host and its address"),
        (link("\"beta=10.0.0.2\""), "\"beta=10.0.0.2\" is not a host and its address"),
        (link("\"two words=10.0.0.2:7401\""), "is not a host and its address"),
        (link("\"alpha=10.0.0.2:7401\""), "host alpha is listed twice"),
        (link("").replace("alpha=", "beta="), "this host, alpha, is not among the hosts"),
        (link(&(0..64).map(|number| format!("\"h{number}=h:1\",")).collect::<String>()), "list at most 64"),
    ] {
        let problems = problems_of(&text);
        assert!(problems.contains(fault), "{problems}");
    }
}

#[test]
fn names_are_given_once_and_are_plain() {
    assert_snapshot!(problems_of(&format!("{VOLUME}{VOLUME}[[volume]]\nname = \"../etc\"\nbacking = \"nbd://x\"\n")));
}

#[test]
fn volume_needs_a_name_and_a_backing() {
    assert_snapshot!(problems_of("[[volume]]\n\n[[volume]]\nname = \"x\"\n"));
}

#[test]
fn backing_without_a_size_needs_the_size_key() {
    assert_snapshot!(problems_of(
        "[[array]]\nname = \"shelf\"\n[[volume]]\nname = \"a\"\nbacking = \"sim://shelf\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"sim://raid5\"\n[[volume]]\nname = \"c\"\nbacking = \"missing.img\"\n\
         [[volume]]\nname = \"d\"\nbacking = \"nbd://san/d\"\nsize = \"1 GiB\"\n\
         [[volume]]\nname = \"e\"\nbacking = \"sim://raid5?size=1GiB\"\nsize = \"1 GiB\"\n\
         [[volume]]\nname = \"f\"\nbacking = \"/dev/nosuchdisk\"\nsize = \"1 GiB\"\n"
    ));
}

#[test]
fn two_volumes_on_one_backing_are_refused() {
    assert_snapshot!(problems_of(
        "[[volume]]\nname = \"a\"\nbacking = \"/nonexistent/a.img\"\nsize = \"1 GiB\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"file:///nonexistent/a.img\"\nsize = \"1 GiB\"\n"
    ));
}

#[test]
fn array_must_exist_and_be_valid() {
    assert_snapshot!(problems_of(
        "[[array]]\nname = \"shelf\"\nraid = 5\ndisks = 2\n[[array]]\nname = \"odd\"\ndisk = \"floppy\"\nstripe = \"5 \
         KiB\"\n\
         [[volume]]\nname = \"a\"\nbacking = \"sim://shelv\"\nsize = \"1 GiB\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"sim://raid6?disks=3&size=1GiB\"\n"
    ));
}

#[test]
fn datastore_must_exist() {
    assert_snapshot!(problems_of(&format!("{VOLUME}datastore = \"pol\"\n[[datastore]]\nname = \"pool\"\n")));
}

#[test]
fn listen_address_error_shows_the_syntax() {
    assert_snapshot!(problems_of(
        "[nbd]\nlisten = \
         [\"/run/nbd.sock\", \"tcp:1234\", \"tcp:host:99999\", \"unix:\", \"tcp:[::1]:1\", \"tcp:[::1]:1\", 5]\n"
    ));
    assert_snapshot!(problems_of("[nbd]\nlisten = [\"/run/nbd.sock\", \"tcp:1234\", \"unix:\"]\n"));
}

#[test]
fn invalid_socket_mode_is_refused() {
    assert_snapshot!(problems_of("[nbd]\nsocket_mode = \"rw-rw----\"\n"));
}

#[test]
fn tls_needs_its_files() {
    assert_snapshot!(problems_of("[nbd]\ntls = \"required\"\n"));
}

#[test]
fn invalid_processor_lists_are_refused() {
    assert_snapshot!(problems_of("cores = []\n"));
    assert_snapshot!(problems_of("cores = [1, 1]\n"));
    assert_snapshot!(problems_of("cores = [99999]\n"));
}

#[test]
fn missing_file_error_is_one_readable_line() {
    assert_snapshot!(Config::load(Path::new("/nonexistent/hotset.toml")).expect_err("missing").to_string());
}

#[test]
fn complete_file_is_read_with_all_its_values() {
    let text = r#"
cores = [1]
[state]
directory = "/var/lib/hotset"
[memory]
size = "4 GiB"
[control]
socket = "/run/hotset/control.sock"
[nbd]
listen = ["unix:/run/hotset/nbd.sock", "tcp:127.0.0.1:10809"]
socket_owner = "libvirt-qemu"
socket_mode = "0600"
[[array]]
name = "shelf"
raid = 10
disks = 8
disk = "nlsas"
stripe = "128 KiB"
[[datastore]]
name = "sas-pool"
[[volume]]
name = "web01"
backing = "sim://shelf"
size = "100 GiB"
policy = "write-back-volatile"
defer = "30s"
datastore = "sas-pool"
labels = { vm = "web01", tier = "gold" }
read_only = true
"#;
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.cores, Cores::List(vec![1]));
    assert_eq!(config.memory_bytes, 4 << 30);
    assert_eq!(config.nbd.listen.len(), 2);
    assert_eq!(config.nbd.socket_mode, 0o600);
    assert_eq!(config::show_array(&config.arrays[0].spec), "raid10?disks=8&type=nlsas&stripe=131072");
    let volume = &config.volumes[0];
    assert_eq!((volume.name.as_str(), volume.size_bytes), ("web01", Some(100 << 30)));
    assert_eq!(volume.backing, BackingSpec::SimArray("shelf".to_owned()));
    assert_eq!(volume.policy.to_string(), "write-back-volatile");
    assert_eq!(volume.labels["tier"], "gold");
    assert!(volume.read_only);
}

const POOL: &str = "[[pool]]\nname = \"tank\"\n[[pool.tier]]\nname = \"ssd\"\ndevices = [\"/dev/a\"]\n";

#[test]
fn placement_by_command_is_checked_against_the_pool() {
    let text = POOL.replace("[[pool.tier]]", "[[pool.tier]]\nname = \"nl\"\ndevices = [\"/dev/b\"]\n[[pool.tier]]");
    let config = Config::parse(Path::new("/etc/hotset/hotset.toml"), &text).expect("the text is valid");
    let pool = config.pools.first();
    let thick = Ok((TierChoice::Tier("ssd".to_owned()), pool::Provisioning::Thick));
    assert_eq!(parse_placement(Some("ssd"), Some("thick"), pool), thick);
    assert_eq!(parse_placement(Some("lowest"), None, pool), Ok((TierChoice::Lowest, pool::Provisioning::Thin)));
    assert_eq!(parse_placement(None, None, None), Ok(Default::default()));
    for (tier_policy, provisioning, pool, words) in [
        (Some("sdd"), None, pool, "no tier \"sdd\"; did you mean \"ssd\""),
        (None, Some("thicc"), pool, "\"thicc\" is no provisioning"),
        (Some("auto"), None, None, "only a volume on a pool"),
        (None, Some("thin"), None, "only a volume on a pool"),
    ] {
        let error = parse_placement(tier_policy, provisioning, pool).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn pool_has_times_and_a_rate_of_moves_and_classes() {
    let pool = |keys: &str, of_tier: &str| {
        let text = POOL.replace("[[pool.tier]]", &format!("{keys}\n[[pool.tier]]")) + of_tier;
        Config::parse(Path::new("/etc/hotset/hotset.toml"), &text).expect("the text is valid").pools.remove(0)
    };
    let plain = pool("", "");
    assert_eq!((plain.relocation.to_string(), plain.rate.to_string()), ("continuous".to_owned(), "medium".to_owned()));
    assert_eq!((plain.rate.move_rate(), plain.tiers[0].class.clone()), (pool::MoveRate::IdleShare(30), None));
    let keys = "relocation = \"mon-fri 20:00-06:00\"\nrate = \"20 MiB/s\"";
    let set = pool(keys, "class = \"nl-sas\"\n");
    assert_eq!(set.relocation.to_string(), "mon-fri 20:00-06:00");
    assert_eq!((set.rate.move_rate(), set.rate.to_string()), (pool::MoveRate::Bytes(20 << 20), "20 MiB/s".to_owned()));
    assert_eq!(set.tiers[0].class.as_deref(), Some("nl-sas"));
    assert_eq!(pool("relocation = \"off\"", "").relocation.to_string(), "off");
}

#[test]
fn invalid_times_rates_and_classes_of_a_pool_are_refused_with_the_choices() {
    for (keys, of_tier, words) in [
        ("relocation = \"nights\"", "", "22:00-06:00"),
        ("relocation = \"06:00-06:00\"", "", "22:00-06:00"),
        ("relocation = true", "", "continuous"),
        ("rate = \"fast\"", "", "low, medium, high"),
        ("rate = \"1 KiB/s\"", "", "at least 64 KiB/s"),
        ("rate = 5", "", "low, medium, high"),
        ("", "class = \"tape\"\n", "nvme, ssd, 15k, 10k, nl-sas"),
        ("", "class = 15\n", "nvme, ssd, 15k, 10k, nl-sas"),
    ] {
        let text = POOL.replace("[[pool.tier]]", &format!("{keys}\n[[pool.tier]]")) + of_tier;
        let problems = problems_of(&text);
        assert!(problems.contains(words), "{keys}{of_tier}: {problems}");
    }
}
