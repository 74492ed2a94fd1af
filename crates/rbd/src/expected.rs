//! The ownership that a restarted helper must continue.

/// The image and the lineage that the helpers of one daemon must continue. Their text form is the arguments of a helper
/// that is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The identity of the image: the cluster's fsid, the pool's number, the namespace and the image's ID.
    pub identity: String,
    /// Ownerships of one lineage are those between which no other client can have written.
    pub lineage: u64,
}

impl Expected {
    /// The lineage as text.
    pub fn show_lineage(&self) -> String {
        format!("{:016x}", self.lineage)
    }

    /// Parses the text form.
    pub fn parse(identity: &str, lineage: &str) -> Option<Expected> {
        let lineage = u64::from_str_radix(lineage, 16).ok()?;
        Some(Expected { identity: identity.to_owned(), lineage })
    }

    /// The ID of the image in its pool, and in its namespace.
    pub fn image_id(&self) -> Option<&str> {
        self.identity.rsplit('/').next()
    }
}
