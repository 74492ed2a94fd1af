//! Failures of a life.

/// A check that a life can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Each epoch has one writer, and epochs with effect only rise.
    Writers,
    /// The history of each block is that of one disk.
    History,
    /// No flush succeeds on a connection that began before an owner was lost.
    OldConnection,
    /// The owner of another image is not fenced.
    Bystander,
    /// Volumes are served after all faults.
    Liveness,
    /// Without faults, a volume moves only with its client.
    Moves,
    /// Without faults, no request fails.
    Requests,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub check: Check,
    pub text: String,
}
