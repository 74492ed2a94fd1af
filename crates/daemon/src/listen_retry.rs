//! Listening at an address that a predecessor may still hold, with retries.

use std::io::ErrorKind;

use seam::real::RealSeam;
use seam::{Address, Nanos, Seam};

use super::port_holder::{explain_in_use, in_use};
use logging::{self as log, DAEMON};

/// Time for which an address in use is retried.
const PREDECESSOR_TIMEOUT: Nanos = Nanos::from_secs(10);
const RETRY_PAUSE: Nanos = Nanos::from_millis(50);

/// Listens at an address that a killed predecessor may still hold: the kernel closes its sockets only when the last
/// request of its io_uring is done.
///
/// The wait is logged once, with the process that holds the address.
pub async fn listen_with_retry(seam: &RealSeam, address: &Address) -> std::io::Result<<RealSeam as Seam>::Listener> {
    let deadline = seam.now() + PREDECESSOR_TIMEOUT;
    let mut is_reported = false;
    loop {
        match seam.listen(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && seam.now() < deadline => {
                if !std::mem::replace(&mut is_reported, true) {
                    let seconds = PREDECESSOR_TIMEOUT.as_secs_f64();
                    let holder = in_use(address).unwrap_or_else(|| error.to_string());
                    log::info!(target: DAEMON, %address, "{holder}; waiting up to {seconds} s for it");
                }
                seam.sleep(RETRY_PAUSE).await;
            }
            result => return result.map_err(|error| explain_in_use(error, address)),
        }
    }
}
