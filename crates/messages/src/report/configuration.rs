//! The configuration in force, key by key.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// The file does not name the key.
    #[default]
    Default,
    /// The configuration file.
    File,
    /// Set at run time: by command, over HTTP or in the web console. It holds until the key changes in the file.
    Command,
}

/// When a change of a key in the file takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TakesEffect {
    /// After a restart.
    #[default]
    Restart,
    /// At a reload of the file (SIGHUP).
    Reload,
    /// At a reload while the key stays set, for example for a renewed certificate. Adding or removing the key needs a
    /// restart.
    #[serde(rename = "renewal")]
    ReloadIfSet,
    /// At a reload, or at once when it is changed by command, over HTTP or in the web console.
    Command,
}

/// All configuration keys of this version of Hotset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationReport {
    /// Path of the configuration file.
    pub file: String,
    /// All keys, in the order of the documentation.
    pub keys: Vec<KeyReport>,
}

/// A key. Values are written as in the file, without quotes, brackets and secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyReport {
    /// Table of the key; empty at the top level.
    pub table: String,
    /// Name of the key.
    pub key: String,
    /// Default value.
    pub default: String,
    /// Value in force; null for a repeated table.
    #[serde(default)]
    #[schema(required)]
    pub value: Option<String>,
    /// Source of the value.
    pub source: KeySource,
    /// When a change of the key in the file takes effect.
    #[serde(default)]
    #[schema(required)]
    pub takes_effect: TakesEffect,
    /// Values of a repeated table that differ from the default, by the name of the volume, datastore or array.
    #[serde(default)]
    #[schema(required)]
    pub entries: Vec<EntryReport>,
}

/// Value of one volume, datastore or array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryReport {
    /// Name of the volume, datastore or array.
    pub name: String,
    /// Value in force.
    pub value: String,
    /// Source of the value.
    pub source: KeySource,
}
