//! Tokens of the HTTP interface: who may do what with one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token permits; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// To see everything.
    Read,
    /// To do what can be undone: flush, pause, freeze, resume, settings of volumes.
    Operate,
    /// Everything: what drops data or changes what is served, too.
    Administer,
}

impl Role {
    /// All of them, by growing power.
    pub const ALL: [Role; 3] = [Role::Read, Role::Operate, Role::Administer];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Administer => "administer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Role::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| format!("\"{text}\" is no role; a token may read, operate or administer"))
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenReport {
    /// Its name.
    pub name: String,
    /// What it permits.
    pub role: Role,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// A new token: the only time that its secret is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCreated {
    /// Its name.
    pub name: String,
    /// What it permits.
    pub role: Role,
    /// What to send: `Authorization: Bearer …`.
    pub token: String,
}

/// A link that logs a browser in, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginLink {
    /// Where the page is.
    pub page: String,
    /// The link.
    pub link: String,
    /// How long it holds.
    pub valid_seconds: u64,
}
