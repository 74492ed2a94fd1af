//! Server certificates of the daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A certificate chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CertificateReport {
    /// Its table in the configuration: `api` or `nbd`.
    pub table: String,
    /// Its file.
    pub file: String,
    /// Earliest expiry in the chain, in seconds since 1970; null if unknown.
    #[schema(required)]
    pub ends_unix_seconds: Option<u64>,
}
