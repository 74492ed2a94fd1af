//! `[[pool]]`: tiers of devices from which volumes are cut.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pool::planner::{ClassCost, NAMED_CLASSES, Windows};
use pool::{MoveRate, Provisioning, TierNo, TierPolicy};
use toml::de::DeValue;

use super::names::{check_name, read_name, report_error};
use super::nearest::nearest;
use super::problem::Source;
use super::read::{Located, Section, Setting, Size, ValueError, split_message};
use super::{BackingSpec, FlashConfig, VolumeConfig};
use units::show_bytes;

const SLICE_BYTES_DEFAULT: u64 = 4 << 20;
/// Lowest rate of moves in bytes a second: a slice of 4 MiB takes a minute.
const RATE_BYTES_MIN: u64 = 64 << 10;
/// Maximum length of a tier's name in bytes, by the format of the pool.
const TIER_NAME_BYTES_MAX: usize = 32;
const TIER_KEYS: [&str; 3] = ["name", "devices", "class"];

/// One `[[pool]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name.
    pub name: String,
    /// Bytes of a slice, when the pool is created.
    pub slice_bytes: u64,
    /// Its tiers, the fastest first.
    pub tiers: Vec<TierConfig>,
    /// Times at which slices move between tiers.
    pub relocation: RelocationTimes,
    /// Rate of these moves.
    pub rate: RateSetting,
}

/// One `[[pool.tier]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// Its name.
    pub name: String,
    /// Its devices or files.
    pub devices: Vec<PathBuf>,
    /// Name of the class of its devices; without it they are measured.
    pub class: Option<String>,
}

/// Times at which slices of a pool move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RelocationTimes {
    /// At any time.
    #[default]
    Continuous,
    /// Only by command.
    Off,
    /// In windows of the week.
    Windows(Windows),
}

impl fmt::Display for RelocationTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelocationTimes::Continuous => f.write_str("continuous"),
            RelocationTimes::Off => f.write_str("off"),
            RelocationTimes::Windows(windows) => windows.fmt(f),
        }
    }
}

impl Setting for RelocationTimes {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        match value.as_str() {
            Some("continuous") => Ok(RelocationTimes::Continuous),
            Some("off") => Ok(RelocationTimes::Off),
            Some(text) => text.parse().map(RelocationTimes::Windows).map_err(|_| {
                let fault = format!("\"{text}\" is no time of relocation");
                let remedy = "use continuous, off, or windows such as 22:00-06:00 or sat,sun 00:00-24:00";
                ValueError::Value(fault, remedy.to_owned())
            }),
            None => Err(ValueError::Type("\"continuous\", \"off\" or windows in quotes")),
        }
    }
}

/// `rate` of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSetting {
    /// Bytes a second.
    Bytes(u64),
    /// A name of [`RateSetting::NAMED`].
    Named(&'static str),
}

impl Default for RateSetting {
    fn default() -> Self {
        RateSetting::Named("medium")
    }
}

impl RateSetting {
    /// Names, each with its part of the idle time in percent.
    const NAMED: [(&'static str, u32); 3] = [("low", 10), ("medium", 30), ("high", 60)];

    /// The rate of the moves.
    pub fn move_rate(self) -> MoveRate {
        match self {
            RateSetting::Bytes(bytes) => MoveRate::Bytes(bytes),
            RateSetting::Named(name) => {
                let named = RateSetting::NAMED.iter().find(|(known, _)| *known == name);
                MoveRate::IdleShare(named.expect("only names of the list are made").1)
            }
        }
    }
}

impl fmt::Display for RateSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateSetting::Bytes(bytes) => write!(f, "{}/s", show_bytes(*bytes)),
            RateSetting::Named(name) => f.write_str(name),
        }
    }
}

impl FromStr for RateSetting {
    type Err = String;

    /// Parses `low`, `medium`, `high` or bytes a second. The error has the form `fault; remedy`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, _)) = RateSetting::NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(RateSetting::Named(name));
        }
        match units::parse_size(text.strip_suffix("/s").unwrap_or(text)) {
            Ok(bytes) if bytes >= RATE_BYTES_MIN => Ok(RateSetting::Bytes(bytes)),
            Ok(_) => Err("the rate is too low; use at least 64 KiB/s, or relocation = \"off\"".to_owned()),
            Err(_) => Err(format!("\"{text}\" is no rate; use low, medium, high, or bytes a second such as 20 MiB/s")),
        }
    }
}

impl Setting for RateSetting {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("low, medium, high or a size per second, in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

impl PoolConfig {
    /// Names of the tiers, the fastest first.
    pub fn tier_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tiers.iter().map(|tier| tier.name.as_str())
    }

    /// All devices, tier by tier.
    pub fn devices(&self) -> impl Iterator<Item = &PathBuf> {
        self.tiers.iter().flat_map(|tier| &tier.devices)
    }
}

/// The text with the paths of disks in place of their identities.
pub fn name_devices(text: &str, paths: &BTreeMap<String, PathBuf>) -> String {
    paths.iter().fold(text.to_owned(), |text, (identity, path)| text.replace(identity, &path.display().to_string()))
}

/// The tiers on which a volume's slices are placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TierChoice {
    /// By load.
    #[default]
    Auto,
    /// The fastest tier first, then by load.
    StartHigh,
    /// The fastest tier.
    Highest,
    /// The slowest tier.
    Lowest,
    /// The tier of this name.
    Tier(String),
}

impl TierChoice {
    const NAMED: [(&'static str, TierChoice); 4] = [
        ("auto", TierChoice::Auto),
        ("start-high", TierChoice::StartHigh),
        ("highest", TierChoice::Highest),
        ("lowest", TierChoice::Lowest),
    ];

    /// The choice of this name; a name that is no policy's is a tier's.
    pub fn named(text: &str) -> TierChoice {
        let named = TierChoice::NAMED.into_iter().find(|(name, _)| *name == text).map(|(_, choice)| choice);
        named.unwrap_or_else(|| TierChoice::Tier(text.to_owned()))
    }

    /// The choice of a policy in a pool whose tiers have these names.
    pub fn of(policy: TierPolicy, name_of: impl FnOnce(TierNo) -> String) -> TierChoice {
        match policy {
            TierPolicy::Auto => TierChoice::Auto,
            TierPolicy::StartHigh => TierChoice::StartHigh,
            TierPolicy::Highest => TierChoice::Highest,
            TierPolicy::Lowest => TierChoice::Lowest,
            TierPolicy::Tier(tier) => TierChoice::Tier(name_of(tier)),
        }
    }

    /// The policy in a pool with tiers of these names; `None` if no tier has the name.
    pub fn policy<'a>(&self, tiers: impl IntoIterator<Item = &'a str>) -> Option<TierPolicy> {
        Some(match self {
            TierChoice::Auto => TierPolicy::Auto,
            TierChoice::StartHigh => TierPolicy::StartHigh,
            TierChoice::Highest => TierPolicy::Highest,
            TierChoice::Lowest => TierPolicy::Lowest,
            TierChoice::Tier(name) => {
                let index = tiers.into_iter().position(|tier| tier == name)?;
                TierPolicy::Tier(TierNo(u8::try_from(index).ok()?))
            }
        })
    }
}

impl fmt::Display for TierChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierChoice::Tier(name) => f.write_str(name),
            choice => f.write_str(
                TierChoice::NAMED.iter().find(|(_, named)| named == choice).expect("every other choice is named").0,
            ),
        }
    }
}

impl Setting for TierChoice {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a policy or a tier's name in quotes"))?;
        Ok(TierChoice::named(text))
    }
}

fn parse_provisioning(text: &str) -> Result<Provisioning, String> {
    match text {
        "thin" => Ok(Provisioning::Thin),
        "thick" => Ok(Provisioning::Thick),
        _ => Err(format!("\"{text}\" is no provisioning; use \"thin\" or \"thick\"")),
    }
}

/// `provisioning` of a volume on a pool.
pub(super) struct ProvisioningSetting(pub Provisioning);

impl Setting for ProvisioningSetting {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("\"thin\" or \"thick\""))?;
        parse_provisioning(text).map(ProvisioningSetting).map_err(|error| split_message(&error))
    }
}

/// A tier as written.
struct TierEntry {
    name: String,
    devices: Vec<Located<String>>,
    class: Option<String>,
}

/// `[[pool.tier]]`.
struct TierEntries(Vec<TierEntry>);

impl Setting for TierEntries {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        if value.as_table().is_some() {
            return read_tier(value, 0..0).map(|tier| TierEntries(vec![tier]));
        }
        let list = value.as_array().ok_or(ValueError::Type("a list of tables: [[pool.tier]] below [[pool]]"))?;
        if list.is_empty() {
            let remedy = "add [[pool.tier]] with name and devices".to_owned();
            return Err(ValueError::Value("the pool has no tier".to_owned(), remedy));
        }
        let tiers = list.iter().map(|entry| read_tier(entry.get_ref(), entry.span()));
        tiers.collect::<Result<_, _>>().map(TierEntries)
    }
}

/// Reads a tier; without a span of its own, faults are located at the key.
fn read_tier(entry: &DeValue<'_>, span: Range<usize>) -> Result<TierEntry, ValueError> {
    let fault = |fault: String, remedy: String| match span.is_empty() {
        true => ValueError::Value(fault, remedy),
        false => ValueError::Part(span.clone(), fault, remedy),
    };
    let missing = |key: &str| {
        fault(
            format!("a tier has no \"{key}\""),
            "write [[pool.tier]] with name = \"ssd\" and devices = [\"/dev/sdb\"]".to_owned(),
        )
    };
    let table = entry.as_table().ok_or_else(|| missing("name"))?;
    if let Some(key) = table.keys().find(|key| !TIER_KEYS.contains(&key.get_ref().as_ref())) {
        let fault = format!("unknown key \"{}\" of a tier", key.get_ref());
        return Err(ValueError::Part(key.span(), fault, format!("use {}", TIER_KEYS.join(", "))));
    }
    let name = table.get("name").and_then(|name| name.get_ref().as_str()).ok_or_else(|| missing("name"))?;
    let devices = table.get("devices").ok_or_else(|| missing("devices"))?;
    let devices = Vec::<Located<String>>::read(devices.get_ref()).map_err(|_| {
        fault(
            format!("the devices of tier \"{name}\" are no list of texts"),
            "write devices = [\"/dev/sdb\"]".to_owned(),
        )
    })?;
    if devices.is_empty() {
        return Err(fault(
            format!("tier \"{name}\" has no device"),
            "name at least one, or remove the tier".to_owned(),
        ));
    }
    let class = table.get("class").map(|class| read_class(class.get_ref(), class.span())).transpose()?;
    Ok(TierEntry { name: name.to_owned(), devices, class })
}

/// Reads the class of a tier.
fn read_class(value: &DeValue<'_>, span: Range<usize>) -> Result<String, ValueError> {
    let name = value.as_str().filter(|name| ClassCost::named(name).is_some());
    name.map(str::to_owned).ok_or_else(|| {
        let shown = value.as_str().map_or_else(|| "this".to_owned(), |text| format!("\"{text}\""));
        let names: Vec<_> = NAMED_CLASSES.iter().map(|(name, _)| *name).collect();
        let remedy = format!("use {}, or leave it out to have the devices measured", names.join(", "));
        ValueError::Part(span, format!("{shown} is no class of devices"), remedy)
    })
}

/// Reads the `[[pool]]` tables; a relative path is relative to `folder`.
pub(super) fn read_pools(sections: &[Section<'_>], folder: &Path, source: &mut Source<'_>) -> Vec<PoolConfig> {
    let (mut names, mut pools) = (Vec::new(), Vec::<PoolConfig>::new());
    for section in sections {
        let name = read_name(section, &names, source);
        let slice_bytes = read_slice(section, source);
        let relocation = section.get::<RelocationTimes>("relocation", source);
        let relocation = relocation.map_or_else(RelocationTimes::default, |times| times.value);
        let rate = section.get::<RateSetting>("rate", source).map_or_else(RateSetting::default, |rate| rate.value);
        let Some(Located { value: TierEntries(entries), span }) = section.require::<TierEntries>("tier", source) else {
            continue;
        };
        let mut tiers: Vec<TierConfig> = Vec::new();
        for entry in entries {
            if let Some(error) = tier_name_error(&entry.name, &tiers) {
                report_error(source, &span, &error);
            }
            let mut devices: Vec<PathBuf> = Vec::new();
            for device in entry.devices {
                let path = folder.join(&device.value);
                let is_taken = |other: &PoolConfig| other.devices().any(|other| *other == path);
                let earlier = tiers.iter().flat_map(|tier: &TierConfig| &tier.devices).chain(&devices);
                if earlier.into_iter().any(|other| *other == path) || pools.iter().any(is_taken) {
                    let fault = format!("{} is a device of a pool already", path.display());
                    source.add_problem(&device.span, fault, "name each device once");
                }
                devices.push(path);
            }
            tiers.push(TierConfig { name: entry.name, devices, class: entry.class });
        }
        if let Some(name) = name {
            pools.push(PoolConfig { name: name.value.clone(), slice_bytes, tiers, relocation, rate });
            names.push(name);
        }
    }
    pools
}

/// Reports devices of pools that are flash devices or backings of volumes, too.
pub(super) fn check_pool_devices(
    sections: &[Section<'_>],
    pools: &[PoolConfig],
    flash: Option<&FlashConfig>,
    volumes: &[VolumeConfig],
    source: &mut Source<'_>,
) {
    for (section, pool) in sections.iter().zip(pools) {
        for device in pool.devices() {
            let is_flash = flash.is_some_and(|flash| flash.devices.contains(device));
            let volume = volumes.iter().find(|volume| volume.backing == BackingSpec::Path(device.clone()));
            let other = match (is_flash, volume) {
                (true, _) => "a flash device".to_owned(),
                (false, Some(volume)) => format!("the backing of volume {}", volume.name),
                (false, None) => continue,
            };
            let fault = format!("{} is a device of pool {} and {other}", device.display(), pool.name);
            source.add_problem(&section.span, fault, "use each device for one of them");
        }
    }
}

/// Checks the size of a slice. The error has the form `fault; remedy`.
pub fn check_slice(bytes: u64) -> Result<(), String> {
    let is_valid = bytes.is_power_of_two() && pool::format::superblock::SLICE_BYTES.contains(&bytes);
    let fault = || format!("a slice cannot have {}; give a power of two from 256 KiB to 256 MiB", show_bytes(bytes));
    is_valid.then_some(()).ok_or_else(fault)
}

fn read_slice(section: &Section<'_>, source: &mut Source<'_>) -> u64 {
    let Some(Located { value: Size(bytes), span }) = section.get::<Size>("slice", source) else {
        return SLICE_BYTES_DEFAULT;
    };
    if let Err(error) = check_slice(bytes) {
        report_error(source, &span, &error);
    }
    bytes
}

/// Checks the name of a tier. The error has the form `fault; remedy`.
pub fn check_tier_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    if name.len() > TIER_NAME_BYTES_MAX {
        return Err(format!("the tier's name \"{name}\" is too long; use up to {TIER_NAME_BYTES_MAX} characters"));
    }
    if TierChoice::NAMED.iter().any(|(policy, _)| *policy == name) {
        return Err(format!("\"{name}\" is a tier policy and cannot name a tier; choose another name"));
    }
    Ok(())
}

/// The fault and remedy of a tier's name after these tiers.
fn tier_name_error(name: &str, earlier: &[TierConfig]) -> Option<String> {
    if let Err(error) = check_tier_name(name) {
        return Some(error);
    }
    let is_taken = earlier.iter().any(|tier| tier.name == name);
    is_taken.then(|| format!("two tiers are named \"{name}\"; give each a name of its own"))
}

/// The fault of a placement on a backing that is no pool.
const NO_POOL: &str = "only a volume on a pool has tiers";

/// The fault and remedy of a tier that the pool does not have.
fn unknown_tier(choice: &TierChoice, pool: &PoolConfig) -> Option<(String, String)> {
    if choice.policy(pool.tier_names()).is_some() {
        return None;
    }
    let known = pool.tier_names();
    let remedy = match nearest(&choice.to_string(), known.clone()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("use auto, start-high, highest, lowest or {}", known.collect::<Vec<_>>().join(", ")),
    };
    Some((format!("the pool has no tier \"{choice}\""), remedy))
}

/// Parses `tier_policy` and `provisioning` of a command for a volume on `pool`; `None` for another backing.
pub fn parse_placement(
    tier_policy: Option<&str>,
    provisioning: Option<&str>,
    pool: Option<&PoolConfig>,
) -> Result<(TierChoice, Provisioning), String> {
    if tier_policy.is_none() && provisioning.is_none() {
        return Ok(Default::default());
    }
    let pool = pool.ok_or_else(|| format!("{NO_POOL}; remove tier_policy and provisioning, or use pool://NAME"))?;
    let choice = tier_policy.map_or_else(TierChoice::default, TierChoice::named);
    if let Some((fault, remedy)) = unknown_tier(&choice, pool) {
        return Err(format!("{fault}; {remedy}"));
    }
    let provisioning = provisioning.map(parse_provisioning).transpose()?;
    Ok((choice, provisioning.unwrap_or_default()))
}

/// Reads `tier_policy` and `provisioning` of a volume on `pool`; `None` for another backing.
pub(super) fn read_placement(
    section: &Section<'_>,
    pool: Option<&PoolConfig>,
    source: &mut Source<'_>,
) -> (TierChoice, Provisioning) {
    let choice = section.get::<TierChoice>("tier_policy", source);
    let provisioning = section.get::<ProvisioningSetting>("provisioning", source);
    let Some(pool) = pool else {
        let spans = choice.iter().map(|choice| &choice.span).chain(provisioning.iter().map(|setting| &setting.span));
        spans.for_each(|span| {
            source.add_problem(span, NO_POOL, "remove the key, or use backing = \"pool://NAME\"");
        });
        return Default::default();
    };
    if let Some(choice) = &choice
        && let Some((fault, remedy)) = unknown_tier(&choice.value, pool)
    {
        source.add_problem(&choice.span, fault, remedy);
    }
    let provisioning = provisioning.map_or(Provisioning::default(), |setting| setting.value.0);
    (choice.map_or(TierChoice::default(), |choice| choice.value), provisioning)
}
