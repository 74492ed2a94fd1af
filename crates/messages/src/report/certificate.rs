//! Certificates that the daemon shows itself with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One, with those that lead from it to its authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CertificateReport {
    /// The table of the configuration that names it: `api` or `nbd`.
    pub table: String,
    /// The file that it was read from.
    pub file: String,
    /// When the first of them ends, in seconds since 1970; absent where they do not say.
    pub ends_unix_seconds: Option<u64>,
}
