//! Queries of the daemon about a volume, and the connection to it.

use std::path::Path;
use std::time::Duration;

use control::{Client, ClientError};
use messages::report::StatusProblem;
use messages::{Answer, Request, VolumeState};

use super::device::VolumeIdentity;
use super::handshake::{self, Connection};

/// Time-out of the daemon's replies; it may be starting.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why there is no connection to a volume.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The daemon does not answer.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The daemon answers, but the volume is not available.
    #[error("{0}")]
    Unavailable(String),
}

/// Connects to a volume; returns its identity, its address and the connection.
pub fn connect_to_volume(socket: &Path, volume: &str) -> Result<(VolumeIdentity, String, Connection), Unreachable> {
    let unavailable = |text: String| Err(Unreachable::Unavailable(text));
    let mut client = Client::connect(socket)?.with_timeout(REPLY_TIMEOUT)?;
    let Answer::Status(status) = client.request(&Request::Status {}, |_| ())? else { return Err(unexpected()) };
    let Some(address) = handshake::best_address(&status.listen) else {
        return unavailable(
            "the daemon does not listen for NBD clients; if this persists, add a socket to [nbd] listen".to_owned(),
        );
    };
    let connection = match handshake::connect_to_export(address, volume) {
        Ok(connection) => connection,
        Err(error) => return unavailable(format!("{volume} at {address}: {error}")),
    };
    // Queried after the connection was made. A volume ID is never reused, so if a later check finds this ID, the
    // connection is to the same volume.
    Ok((query_identity(&mut client, volume)?, address.to_owned(), connection))
}

/// Checks that the daemon serves the identified volume and not another one of its name.
pub fn check_served(socket: &Path, identity: &VolumeIdentity) -> Result<(), String> {
    let query = || {
        let mut client = Client::connect(socket)?.with_timeout(REPLY_TIMEOUT)?;
        query_identity(&mut client, &identity.volume)
    };
    match query() {
        Ok(served) if served == *identity => Ok(()),
        Ok(_) => Err(format!("the daemon now serves another volume named {}", identity.volume)),
        Err(reason) => Err(reason.to_string()),
    }
}

fn query_identity(client: &mut Client, volume: &str) -> Result<VolumeIdentity, Unreachable> {
    let Answer::Volume(report) = client.request(&Request::VolumeShow { name: volume.to_owned() }, |_| ())? else {
        return Err(unexpected());
    };
    if report.volume_id.is_empty() || matches!(report.state, VolumeState::Refused | VolumeState::Standby) {
        return Err(Unreachable::Unavailable(format!(
            "{volume} is not served: {}",
            StatusProblem::join(&report.problems)
        )));
    }
    Ok(VolumeIdentity { volume_id: report.volume_id, volume: volume.to_owned() })
}

fn unexpected() -> Unreachable {
    Unreachable::Unavailable("the daemon sent an unexpected reply; it may be of another version".to_owned())
}
