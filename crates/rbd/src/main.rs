//! `hotset-rbd`: serves one image of Ceph's RBD over NBD to the daemon that started it. Only the daemon runs it:
//! standard input is a listening Unix socket, standard output the control channel.
//!
//! Usage: `hotset-rbd rbd:POOL/IMAGE [PREDECESSOR]...`, with the addresses under which a killed predecessor may own the
//! image's lock.

mod control;
mod ffi;
mod lock;
mod ownership;
mod server;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rbd::{ImageSpec, Status};

use self::control::Control;
use self::ffi::{Cluster, Image};
use self::lock::LockError;

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
    #[error("{0}")]
    Socket(#[from] std::io::Error),
}

impl StartError {
    fn status(&self) -> Status {
        match self {
            StartError::Lock(error @ LockError::Owned(_)) => Status::Busy(error.to_string()),
            StartError::Lock(error @ LockError::LostInRestart(_)) => Status::Lost(error.to_string()),
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
    let predecessors: Vec<String> = arguments.collect();
    let control = match Control::at_stdout() {
        Ok(control) => Arc::new(control),
        Err(error) => {
            eprintln!("hotset-rbd: standard output is no socket of the daemon: {error}");
            return ExitCode::from(2);
        }
    };
    match serve(&spec, &predecessors, &control) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            control.send(&error.status());
            ExitCode::FAILURE
        }
    }
}

/// Opens and locks the image, serves it until the daemon closes the control channel, and releases it.
fn serve(spec: &str, predecessors: &[String], control: &Arc<Control>) -> Result<(), StartError> {
    let spec: ImageSpec = spec.parse()?;
    ownership::end_with_daemon(control.socket()?);
    let libraries = ffi::load()?;
    control.send(&Status::Progress("connecting to the cluster".to_owned()));
    let cluster = Cluster::connect(libraries, &spec)?;
    control.send(&Status::Progress("opening the image".to_owned()));
    let image = Arc::new(Image::open(cluster, &spec)?);
    let owner = lock::acquire(&image, predecessors, control)?;
    let cluster = image.cluster();
    let identity = format!("rbd:{}/{}/{}", cluster.fsid()?, cluster.pool_id(), image.id()?);
    let ownership = ownership::watch(Arc::clone(&image), Arc::clone(control));
    control.send(&Status::Ready { identity, owner });
    server::serve_until_closed(&image, &ownership, control)?;
    let image = into_only_handle(image);
    image.release_lock()?;
    image.close()?;
    Ok(())
}

/// Waits until the check of the lock, if one is running, has given its handle back.
fn into_only_handle(mut image: Arc<Image>) -> Image {
    loop {
        match Arc::try_unwrap(image) {
            Ok(image) => return image,
            Err(shared) => image = shared,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
