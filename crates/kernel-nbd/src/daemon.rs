//! Queries of the daemon about a volume, and the connection to it.

use std::path::Path;
use std::time::Duration;

use control::{Client, ClientError};
use messages::report::Notice;
use messages::{Answer, Request, VolumeState};

use super::device::Identifier;
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
    Refused(String),
}

/// Connects to a volume; returns its identifier, its address and the connection.
pub fn connect_to_volume(socket: &Path, volume: &str) -> Result<(Identifier, String, Connection), Unreachable> {
    let refused = |text: String| Err(Unreachable::Refused(text));
    let mut client = Client::connect(socket)?.with_timeout(REPLY_TIMEOUT)?;
    let Answer::Status(status) = client.request(&Request::Status {}, |_| ())? else { return Err(unexpected()) };
    let Some(address) = handshake::best_address(&status.listen) else {
        return refused(
            "the daemon does not listen for NBD clients; if this persists, add a socket to [nbd] listen".to_owned(),
        );
    };
    let connection = match handshake::connect_to_export(address, volume) {
        Ok(connection) => connection,
        Err(error) => return refused(format!("{volume} at {address}: {error}")),
    };
    // Queried after the connection was made: identities are never reused, so a volume that matches now matched then.
    Ok((identify(&mut client, volume)?, address.to_owned(), connection))
}

/// Checks that the daemon serves the identified volume and not another one of its name.
pub fn check_served(socket: &Path, identifier: &Identifier) -> Result<(), String> {
    let query = || {
        let mut client = Client::connect(socket)?.with_timeout(REPLY_TIMEOUT)?;
        identify(&mut client, &identifier.volume)
    };
    match query() {
        Ok(served) if served == *identifier => Ok(()),
        Ok(_) => Err(format!("the daemon now serves another volume named {}", identifier.volume)),
        Err(reason) => Err(reason.to_string()),
    }
}

fn identify(client: &mut Client, volume: &str) -> Result<Identifier, Unreachable> {
    let Answer::Volume(report) = client.request(&Request::VolumeShow { name: volume.to_owned() }, |_| ())? else {
        return Err(unexpected());
    };
    if report.volume_id.is_empty() || report.state == VolumeState::Refused {
        return Err(Unreachable::Refused(format!("{volume} is not served: {}", Notice::join(&report.alerts))));
    }
    Ok(Identifier { volume_id: report.volume_id, volume: volume.to_owned() })
}

fn unexpected() -> Unreachable {
    Unreachable::Refused("the daemon sent an unexpected reply; it may be of another version".to_owned())
}
