//! The configuration as it holds, key by key.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// The file does not name the key.
    #[default]
    Default,
    /// The file.
    File,
    /// A command, the HTTP interface or the page; it holds until the key changes in the file.
    Command,
}

/// When a change of a key in the file takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TakesEffect {
    /// After a restart.
    #[default]
    Restart,
    /// When the file is read again (SIGHUP).
    Reload,
    /// The same, as long as the key was there before and still is.
    Renewal,
    /// The same; by command, over HTTP and on the page at once.
    Command,
}

/// All keys that this version knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationReport {
    /// The file.
    pub file: String,
    /// In the order of the documentation.
    pub keys: Vec<KeyReport>,
}

/// A key. Values are as in the file, without quotes and brackets, and without what may be secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyReport {
    /// Its table; empty at the top of the file.
    pub table: String,
    /// Its name.
    pub key: String,
    /// What holds without it.
    pub default: String,
    /// What holds; absent where the table is repeated.
    #[serde(default)]
    pub value: Option<String>,
    /// Where that comes from.
    pub source: KeySource,
    /// When a change of it in the file takes effect.
    #[serde(default)]
    pub takes_effect: TakesEffect,
    /// Of a repeated table: what is not the default, by the name of the volume, datastore or array.
    #[serde(default)]
    pub entries: Vec<EntryReport>,
}

/// What one volume, datastore or array has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryReport {
    /// Its name.
    pub name: String,
    /// What holds for it.
    pub value: String,
    /// Where that comes from.
    pub source: KeySource,
}
