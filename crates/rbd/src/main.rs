//! `hotset-rbd`: serves one image of Ceph's RBD over NBD to the daemon that started it. Only the daemon runs it:
//! standard input is a listening Unix socket, standard output the control channel.
//!
//! Its arguments are a [`rbd::Invocation`].

mod control;
mod destaged;
mod ffi;
mod image_owner;
mod lease;
mod locality;
mod lock;
mod options;
mod owner_record;
mod ownership;
mod record_file;
mod server;
mod standby;
mod standing;
mod undestaged;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rbd::{Expected, ImageSpec, Invocation, Ownership, Purpose, Status, boot_ms};

use self::control::Control;
use self::ffi::{Cluster, Image};
use self::lock::{HelperStart, LockError, Site};
use self::options::OptionError;
use self::ownership::Orders;

/// Time for the orders that came before the end of the control channel.
const ORDERS_TIMEOUT: Duration = Duration::from_secs(1);

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
    #[error("another image has its name by now; the next start looks at that one")]
    Renamed,
    #[error("the control channel or the socket of the daemon failed: {0}")]
    Socket(#[from] std::io::Error),
}

impl StartError {
    fn status(&self) -> Status {
        match self {
            StartError::Lock(
                error @ (LockError::Owned(_) | LockError::Open(_) | LockError::Unlocked(_) | LockError::Served),
            ) => Status::Busy(error.to_string()),
            StartError::Lock(LockError::Standby(report)) => Status::Standby((**report).clone()),
            StartError::Lock(LockError::Undestaged(mark)) => Status::Undestaged(mark.clone()),
            StartError::Lock(error) if error.is_final() => Status::Lost(error.to_string()),
            other => Status::Failed(other.to_string()),
        }
    }
}

fn main() -> ExitCode {
    ffi::ignore_stop_signals();
    let Some(invocation) = Invocation::parse(std::env::args().skip(1)) else {
        eprintln!("hotset-rbd is started by the daemon; configure a volume with backing = \"rbd:POOL/IMAGE\"");
        return ExitCode::from(2);
    };
    let control = match Control::at_stdout() {
        Ok(control) => Arc::new(control),
        Err(error) => {
            eprintln!("hotset-rbd: standard output is no socket of the daemon: {error}");
            return ExitCode::from(2);
        }
    };
    match run(invocation, &control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            control.send(&error.status());
            ExitCode::FAILURE
        }
    }
}

/// Serves the image, or looks at it on standby until the daemon orders it to be served.
fn run(Invocation { image, folder, host, log, purpose }: Invocation, control: &Arc<Control>) -> Result<(), StartError> {
    let orders = ownership::end_with_daemon(control.socket()?);
    let site = Site { folder: &folder, host: &host, log: log.as_deref() };
    let Purpose::Standby(take_over) = purpose else {
        return HelperStart::new(purpose).map_or(Ok(()), |start| serve(&image, site, &start, (control, orders), None));
    };
    let Some((ordered, watched)) = standby::watch(&image, site, take_over, control, &orders.serve)? else {
        return Ok(());
    };
    let Invocation { image, folder, host, log, purpose } = ordered;
    let site = Site { folder: &folder, host: &host, log: log.as_deref() };
    let serve = |start| serve(&image, site, &start, (control, orders), Some(watched));
    HelperStart::new(purpose).map_or(Ok(()), serve)
}

fn connect(spec: &ImageSpec) -> Result<Arc<Cluster>, StartError> {
    Ok(Arc::new(Cluster::connect(ffi::load()?, spec)?))
}

/// Opens and locks the image, serves it until the daemon closes the control channel, and releases it. A process that
/// was on standby has `watched` it, open for reading.
fn serve(
    spec: &str,
    site: Site<'_>,
    start: &HelperStart,
    (control, Orders { marks, serve: _, closed }): (&Arc<Control>, Orders),
    watched: Option<Image>,
) -> Result<(), StartError> {
    let spec: ImageSpec = spec.parse()?;
    control.send(&Status::Progress("connecting to the cluster".to_owned()));
    let cluster = watched.as_ref().map_or_else(|| connect(&spec), |image| Ok(Arc::clone(image.cluster())))?;
    control.send(&Status::Progress("opening the image".to_owned()));
    let mut looked_at = None;
    if let HelperStart::First { claim, .. } = start {
        let image = watched.map_or_else(|| Image::open_read_only(&cluster, &spec), Ok)?;
        let identity = identity_of(&image, &spec)?;
        standby::check_standing(&image, &identity, site, claim)?;
        lock::check_mark(&image, &identity, site.folder, start)?;
        looked_at = Some(identity);
    }
    let image = Arc::new(Image::open(&cluster, &spec, start.expected().and_then(Expected::image_id))?);
    options::check(&image)?;
    let identity = identity_of(&image, &spec)?;
    if looked_at.is_some_and(|looked_at| looked_at != identity) {
        return Err(StartError::Renamed);
    }
    let (lock, lease) = lock::acquire(&image, &identity, site, start, control)?;
    let (record, given_up, is_destaged) = (lock.record().clone(), lock.given_up(), lock.is_destaged());
    let (epoch, released_version, log_to_read) = (lock.epoch(), lock.released_version(), lock.log_to_read().cloned());
    let lock = Arc::new(Mutex::new(lock));
    let ownership = ownership::watch(&image, Arc::clone(&lock), Arc::clone(control), lease)?;
    wait_for_former_owner(record.serve_after_ms, control);
    ownership.end_if_expired();
    let (image_owned, reason) = (Expected { identity, lineage: record.lineage }, record.reason);
    let proven_ms = ownership.proven_ms();
    log_to_read.into_iter().for_each(|mark| control.send(&Status::LogToRead(mark)));
    control.send(&Status::Ready(Ownership {
        image: image_owned,
        proven_ms,
        given_up,
        epoch,
        is_destaged,
        released_version,
        reason,
    }));
    ownership.obey(marks, &image, &lock);
    let served = server::serve_until_closed(&image, &ownership, control);
    let image = into_only_handle(image);
    // After a loss, another client may have had the lock: its release would prove nothing.
    if !ownership.is_lost() {
        ownership.end_if_expired();
        let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let ordered = closed.recv_timeout(ORDERS_TIMEOUT).ok().flatten();
        let recorded = ordered.map(|release| lock.record_release(&image, &release));
        let version = lock.release(&image)?;
        recorded.into_iter().for_each(|recorded| {
            let failed = |error: lock::LockError| Status::NotReleased(error.to_string());
            control.send(&recorded.map_or_else(failed, |()| Status::Released(version)));
        });
    }
    Ok(served?)
}

/// Waits until the lease of a blocked former owner has ended: it may answer reads from its cache for so long.
fn wait_for_former_owner(serve_after_ms: Option<u64>, control: &Arc<Control>) {
    let remaining = || Duration::from_millis(serve_after_ms.unwrap_or(0).saturating_sub(boot_ms()));
    let _progress = control.report_progress("waiting for the end of the former owner's lease", remaining());
    while remaining() > Duration::ZERO && !control.is_closed() {
        control.wait_for_close(remaining());
    }
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
