//! A hold on a helper process: it outlives the volume, so that the image can be released for another host once the
//! volume's data is complete.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rbd::{ImageSpec, Release};
use tokio::sync::oneshot;

use super::{ReleaseAnswer, SERVING, Shared};

/// Time for the answer to a release; the process ends itself 5 s after the order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// The hold. Without a release, its end changes nothing: the process ends with its volume.
pub struct HeldHelper {
    shared: Arc<Shared>,
}

/// Holds the helper process of a served image, if there is one.
pub fn hold(image: &ImageSpec) -> Option<HeldHelper> {
    let image = image.to_string();
    let serving = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut served = serving.iter().filter(|(served, _)| *served == image).filter_map(|(_, shared)| shared.upgrade());
    let shared = served.find(|shared| !shared.is_closing() && shared.ownership.get().is_some())?;
    shared.held.store(true, Ordering::SeqCst);
    Some(HeldHelper { shared })
}

impl HeldHelper {
    /// Releases the image, whose volume is detached and complete, and ends the process. Returns the version that the
    /// image's header had then, if it is known. On an error nobody knows whether the release is recorded in the image:
    /// the next start of a helper finds out.
    pub async fn release(self, release: &Release) -> ReleaseAnswer {
        let (ended, end) = oneshot::channel();
        *self.shared.released.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        // The process is not started again.
        self.shared.closing.store(true, Ordering::SeqCst);
        let is_sent = match &mut *self.shared.control() {
            Some(control) => control.write_all(release.order().as_bytes()).is_ok(),
            None => false,
        };
        if !is_sent {
            return Err("its process has ended meanwhile".to_owned());
        }
        self.shared.close(Shutdown::Write);
        match tokio::time::timeout(ANSWER_TIMEOUT, end).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("its process has ended without an answer".to_owned()),
            Err(_) => Err("its process has not answered".to_owned()),
        }
    }
}

impl Drop for HeldHelper {
    fn drop(&mut self) {
        self.shared.held.store(false, Ordering::SeqCst);
        if self.shared.is_closing() {
            self.shared.close(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn held() -> (HeldHelper, UnixStream) {
        let (control, helper) = UnixStream::pair().expect("a descriptor is free");
        let shared = Arc::<Shared>::default();
        *shared.control() = Some(control);
        shared.held.store(true, Ordering::SeqCst);
        (HeldHelper { shared }, helper)
    }

    #[tokio::test]
    async fn release_is_ordered_before_the_channel_closes_and_answered() {
        let (held, mut helper) = held();
        let shared = Arc::clone(&held.shared);
        let answer = std::thread::spawn(move || {
            let mut received = String::new();
            helper.read_to_string(&mut received).expect("the channel is closed");
            shared.end_release(Ok(Some(7)));
            received
        });
        assert_eq!(held.release(&Release::To("beta".to_owned())).await, Ok(Some(7)));
        assert_eq!(answer.join().expect("no panic"), "release to:beta\n");
    }

    #[tokio::test]
    async fn process_that_ends_without_an_answer_fails_the_release() {
        let (held, helper) = held();
        let shared = Arc::clone(&held.shared);
        drop(helper);
        drop(shared.released.lock().unwrap_or_else(PoisonError::into_inner).take());
        *shared.control() = None;
        assert!(held.release(&Release::Any).await.is_err());
    }

    #[test]
    fn process_ends_with_its_hold_if_its_volume_has_ended() {
        let (held, mut helper) = held();
        held.shared.closing.store(true, Ordering::SeqCst);
        drop(held);
        assert_eq!(helper.read(&mut [0]).expect("the channel is closed"), 0);
    }
}
