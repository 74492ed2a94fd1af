//! State that the server, the guard and all routes share.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::StatusCode;
use messages::{Answer, FlashReport, Request, StatusReport, VolumeReport};
use rustls::ServerConfig;
use tokio::sync::watch;

use crate::access::Access;
use crate::control_handle::ControlHandle;
use crate::problem::Problem;
use crate::stream::Hub;

/// Options from the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host names of this server besides loopback.
    pub names: Vec<String>,
    /// Maximum number of volumes with metrics of their own.
    pub metrics_volumes: usize,
    /// The current TLS configuration, which may be replaced; `None` for plain connections.
    pub tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Writes a line about a client to the daemon's log.
    pub log: fn(IpAddr, &str),
}

/// State shared by all connections.
pub struct Shared {
    /// Handle for requests to the daemon.
    pub control: ControlHandle,
    /// Access control.
    pub access: Arc<Access>,
    /// The stream's samples.
    pub hub: Arc<Hub>,
    /// Options from the configuration.
    pub options: Options,
}

impl Shared {
    pub(crate) async fn status(&self) -> Result<StatusReport, Problem> {
        match self.control.request(Request::Status {}).await? {
            Answer::Status(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    pub(crate) async fn flash(&self) -> Result<FlashReport, Problem> {
        match self.control.request(Request::FlashList {}).await? {
            Answer::Flash(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request whose result is a volume's report.
    pub(crate) async fn volume(&self, request: Request) -> Result<VolumeReport, Problem> {
        match self.control.request(request).await? {
            Answer::Volume(report) => Ok(*report),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request whose result is a list of messages.
    pub(crate) async fn messages(&self, request: Request) -> Result<Vec<String>, Problem> {
        match self.control.request(request).await? {
            Answer::Said(messages) => Ok(messages),
            // Some requests return a report instead.
            Answer::Volume(_) | Answer::Flash(_) => Ok(Vec::new()),
            _ => Err(unexpected()),
        }
    }
}

/// The error for an answer of another kind than the request has.
pub(crate) fn unexpected() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unexpected result from the daemon; see its log")
}
