//! State that the server, the guard and all routes share.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::StatusCode;
use messages::{Answer, FlashReport, Request, StatusReport, VolumeReport};
use rustls::ServerConfig;
use tokio::sync::watch;

use crate::access::Access;
use crate::asker::Asker;
use crate::problem::Problem;
use crate::stream::Hub;

/// Options from the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host names of this server besides loopback.
    pub names: Vec<String>,
    /// Volumes with metrics of their own, at most.
    pub metrics_volumes: usize,
    /// The current TLS configuration, which may be replaced; `None` for plain connections.
    pub tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Writes a line about a client to the daemon's log.
    pub log: fn(IpAddr, &str),
}

/// State shared by all connections.
pub struct Shared {
    /// Handle for requests to the daemon.
    pub asker: Asker,
    /// Access control.
    pub access: Arc<Access>,
    /// The stream's samples.
    pub hub: Arc<Hub>,
    /// Options from the configuration.
    pub options: Options,
}

impl Shared {
    pub(crate) async fn status(&self) -> Result<StatusReport, Problem> {
        match self.asker.ask(Request::Status {}).await? {
            Answer::Status(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    pub(crate) async fn flash(&self) -> Result<FlashReport, Problem> {
        match self.asker.ask(Request::FlashList {}).await? {
            Answer::Flash(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request that is answered with a volume's report.
    pub(crate) async fn volume(&self, request: Request) -> Result<VolumeReport, Problem> {
        match self.asker.ask(request).await? {
            Answer::Volume(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request that is answered with sentences.
    pub(crate) async fn said(&self, request: Request) -> Result<Vec<String>, Problem> {
        match self.asker.ask(request).await? {
            Answer::Said(said) => Ok(said),
            // Some requests are answered with a report instead.
            Answer::Volume(_) | Answer::Flash(_) => Ok(Vec::new()),
            _ => Err(unexpected()),
        }
    }
}

/// The problem of an answer of the wrong kind.
pub(crate) fn unexpected() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the daemon answered something unexpected; its log may say why")
}
