//! Tokens of the HTTP interface and their roles.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Permissions of a token; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// All queries except the list of tokens.
    Read,
    /// Reversible actions: flush, pause, freeze, resume, settings of volumes.
    Operate,
    /// All actions, including those that drop data or change the set of volumes or tokens.
    Administer,
}

impl Role {
    /// All roles, by growing permissions.
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
        let role = Role::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| format!("\"{text}\" is no role; a token may read, operate or administer"))
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenReport {
    /// Its name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Creation, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// A new token, with its secret, which is shown only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Its name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// The secret, for `Authorization: Bearer …`.
    pub token: String,
}

/// A single-use link that logs a browser in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginLink {
    /// Address of the page.
    pub page: String,
    /// The link.
    pub link: String,
    /// Validity in seconds.
    pub valid_seconds: u64,
}
