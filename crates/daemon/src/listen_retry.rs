//! Listening at an address that a predecessor may still hold.

use std::io::ErrorKind;

use seam::real::RealSeam;
use seam::{Address, Nanos, Seam};

/// Time for which an address in use is retried.
const PREDECESSOR_TIMEOUT: Nanos = Nanos::from_secs(5);
const RETRY_PAUSE: Nanos = Nanos::from_millis(50);

/// Listens at an address that a killed predecessor may still hold: the kernel closes its sockets only when the last
/// request of its io_uring is done.
pub async fn listen_with_retry(seam: &RealSeam, address: &Address) -> std::io::Result<<RealSeam as Seam>::Listener> {
    let end = seam.now() + PREDECESSOR_TIMEOUT;
    loop {
        match seam.listen(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && seam.now() < end => seam.sleep(RETRY_PAUSE).await,
            result => return result,
        }
    }
}
