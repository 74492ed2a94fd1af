//! Transfer of cached data to a volume that has moved here: its former owner sends what it has in memory.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fleet_link::Peer;
use messages::{ErrorKind, Failure, Request};
use rbd::StandbyReport;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;

use super::super::cores::{Cores, TRANSFER_TIME, TransferTarget};
use super::super::fleet_link::FleetLink;
use super::super::volumes::Placement;
use super::Daemon;
use logging::{self as log, FLEET};
use units::show_bytes;

impl Daemon {
    /// Starts the transfer to a volume that this host has just claimed, from the owner that this report names. Without
    /// a proof that no other client has written to the image between, or without a link to that owner, there is none.
    pub(super) fn start_transfer(&self, name: &str, former: Option<&StandbyReport>) {
        let Ok(placement) = self.volumes.placement(name) else { return };
        let Some(ownership) = placement.ownership else { return };
        let plan = former.and_then(|former| self.transfer_plan(&placement, former));
        let (name, volume_id, core) = (name.to_owned(), placement.volume_id, placement.core);
        let to = TransferTarget { name, volume_id, ownership, core };
        let (cores, link) = (Rc::clone(&self.cores), Rc::clone(&self.fleet_link));
        tokio::task::spawn_local(async move {
            if let Some((peer, request)) = plan {
                transfer(&to, (&cores, &link), &peer, &request).await;
            }
            cores.end_transfer(&to).await;
        });
    }

    /// The former owner, and the request for its blocks.
    fn transfer_plan(&self, placement: &Placement, former: &StandbyReport) -> Option<(Peer, Request)> {
        let is_next = placement.ownership == former.epoch.checked_add(1) && placement.identity == former.image;
        let header_version = placement.released_version.filter(|_| is_next)?;
        let request = Request::FleetTransfer { image: former.image.clone(), ownership: former.epoch, header_version };
        Some((self.fleet_link.peer(&former.owner).ok()?, request))
    }
}

/// Receives the blocks of the former owner, as long as it sends them and for [`TRANSFER_TIME`].
async fn transfer(to: &TransferTarget, (cores, link): (&Cores, &FleetLink), peer: &Peer, request: &Request) {
    let _turn = link.wait_for_transfer().await;
    let (began_at, host, name) = (Instant::now(), &peer.host, &to.name);
    let limit = Duration::from_nanos(TRANSFER_TIME.0);
    match tokio::time::timeout(limit, receive(to, (cores, link), peer, request)).await {
        Ok(Ok(received)) => {
            let (bytes, seconds) = (show_bytes(received.admitted_bytes), began_at.elapsed().as_secs_f64());
            let rest = if received.is_complete { "" } else { "; memory has no room for the rest" };
            log::info!(
                target: FLEET, volume = name,
                "volume {name}: {bytes} of cached data were taken over from host {host} in {seconds:.1} s{rest}"
            );
        }
        Ok(Err(failure)) => log::info!(
            target: FLEET, volume = name,
            "volume {name}: no cached data is taken over, or no more: {}", failure.message
        ),
        Err(_) => log::info!(
            target: FLEET, volume = name,
            "volume {name}: the transfer of cached data from host {host} was ended after {} s", limit.as_secs()
        ),
    }
}

async fn receive(
    to: &TransferTarget,
    (cores, link): (&Cores, &FleetLink),
    peer: &Peer,
    request: &Request,
) -> Result<cache_transfer::Received, Failure> {
    let mut tunnel = link.open_tunnel(peer, request).await?;
    let (mut here, there) = socket_pair().map_err(|error| Failure::new(ErrorKind::Failed, error.to_string()))?;
    let copy = async {
        // The core ends its side when it needs no more, or when it has got everything.
        let (Ok(_) | Err(_)) = copy_bidirectional(&mut here, &mut tunnel).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        received = cores.receive_retained(to, there) => received,
        () = copy => unreachable!("it never ends"),
    }
}

/// A connection between this thread and a core.
fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (here, there) = std::os::unix::net::UnixStream::pair()?;
    here.set_nonblocking(true)?;
    Ok((UnixStream::from_std(here)?, there.into()))
}
