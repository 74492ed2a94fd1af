//! `hotset-rbd`: serves one image of Ceph's RBD over NBD to the daemon that started it. Only the daemon runs it:
//! standard input is a listening Unix socket, standard output the control channel.
//!
//! Usage: `hotset-rbd rbd:POOL/IMAGE FOLDER [--give-up NAMES | IDENTITY LINEAGE]`. The folder has the records of
//! owners, one file per image. The names are those of data that may be lost. After a crash, the daemon passes the image
//! and the lineage that the successor must continue.

mod control;
mod ffi;
mod lease;
mod locality;
mod lock;
mod options;
mod owner_record;
mod ownership;
mod record_file;
mod server;
mod undestaged;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rbd::{Expected, ImageSpec, Ownership, Status};

use self::control::Control;
use self::ffi::{Cluster, Image};
use self::lock::{HelperStart, LockError};
use self::options::OptionError;

/// Why the image is not served.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Spec(#[from] rbd::ImageSpecError),
    #[error(transparent)]
    Load(#[from] ffi::LoadError),
    #[error(transparent)]
    Ceph(#[from] ffi::CephError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("the control channel or the socket of the daemon failed: {0}")]
    Socket(#[from] std::io::Error),
}

impl StartError {
    fn status(&self) -> Status {
        match self {
            StartError::Lock(error @ (LockError::Owned(_) | LockError::Open(_) | LockError::Served)) => {
                Status::Busy(error.to_string())
            }
            StartError::Lock(LockError::Undestaged(mark)) => Status::Undestaged(mark.clone()),
            StartError::Lock(error) if error.is_final() => Status::Lost(error.to_string()),
            other => Status::Failed(other.to_string()),
        }
    }
}

fn main() -> ExitCode {
    ffi::ignore_stop_signals();
    let mut arguments = std::env::args().skip(1);
    let Some(spec) = arguments.next() else {
        eprintln!("hotset-rbd is started by the daemon; configure a volume with backing = \"rbd:POOL/IMAGE\"");
        return ExitCode::from(2);
    };
    let folder = PathBuf::from(arguments.next().unwrap_or_default());
    let start = HelperStart::parse(arguments);
    let control = match Control::at_stdout() {
        Ok(control) => Arc::new(control),
        Err(error) => {
            eprintln!("hotset-rbd: standard output is no socket of the daemon: {error}");
            return ExitCode::from(2);
        }
    };
    match serve(&spec, &folder, &start, &control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            control.send(&error.status());
            ExitCode::FAILURE
        }
    }
}

/// Opens and locks the image, serves it until the daemon closes the control channel, and releases it.
fn serve(spec: &str, folder: &Path, start: &HelperStart, control: &Arc<Control>) -> Result<(), StartError> {
    let spec: ImageSpec = spec.parse()?;
    let orders = ownership::end_with_daemon(control.socket()?);
    let libraries = ffi::load()?;
    control.send(&Status::Progress("connecting to the cluster".to_owned()));
    let cluster = Arc::new(Cluster::connect(libraries, &spec)?);
    control.send(&Status::Progress("opening the image".to_owned()));
    if start.expected().is_none() {
        let image = Image::open_read_only(&cluster, &spec)?;
        lock::check_mark(&image, &identity_of(&image, &spec)?, folder, start)?;
    }
    let image = Arc::new(Image::open(&cluster, &spec, start.expected().and_then(Expected::image_id))?);
    options::check(&image)?;
    let identity = identity_of(&image, &spec)?;
    let (lock, lease) = lock::acquire(&image, &identity, folder, start, control)?;
    let (record, given_up) = (lock.record().clone(), lock.given_up);
    let lock = Arc::new(Mutex::new(lock));
    let proven_ms = lease.began_ms();
    let ownership = ownership::watch(&image, Arc::clone(&lock), Arc::clone(control), lease)?;
    ownership.end_if_expired();
    let (image_owned, reason) = (Expected { identity, lineage: record.lineage }, record.reason);
    control.send(&Status::Ready(Ownership { image: image_owned, proven_ms, given_up, reason }));
    ownership.obey(orders, &image, &lock);
    let served = server::serve_until_closed(&image, &ownership, control);
    let image = into_only_handle(image);
    // After a loss, another client may have had the lock: its release would prove nothing.
    if !ownership.is_lost() {
        ownership.end_if_expired();
        lock.lock().unwrap_or_else(PoisonError::into_inner).release(&image)?;
    }
    Ok(served?)
}

/// The identity of an open image.
fn identity_of(image: &Image, spec: &ImageSpec) -> Result<String, ffi::CephError> {
    let cluster = image.cluster();
    let namespace = spec.namespace.as_ref().map_or(String::new(), |namespace| format!("{namespace}/"));
    Ok(format!("rbd:{}/{}/{namespace}{}", cluster.fsid()?, cluster.pool_id(), image.id()?))
}

/// Waits until all requests and the check of the lock, if one is running, have given their handles back.
fn into_only_handle(mut image: Arc<Image>) -> Image {
    loop {
        match Arc::try_unwrap(image) {
            Ok(image) => return image,
            Err(shared) => image = shared,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
