//! The login phase of a connection.

use std::io;

use iscsi_protocol::login::{Login, Negotiated, Next, Refusal, Rules};
use iscsi_protocol::response::LoginResponse;
use iscsi_protocol::{Framing, ProtocolError, Request, RequestBody, Response, ResponseBody, Step};
use seam::{BufferedReader, Gather, Seam, StreamReader, StreamWriter};

/// Reason why a connection ended in the login phase.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginError {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Malformed PDU.
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
    /// The first request is not a login request.
    #[error("the connection does not begin with a login request")]
    NoLogin,
    /// The login was refused.
    #[error("login of \"{initiator}\" refused: {refusal}")]
    Refused {
        /// The name that the initiator claims; empty if it sent none.
        initiator: String,
        /// The reason.
        refusal: Refusal,
    },
}

/// A completed login negotiation whose final response is still to be sent.
pub(crate) struct CompletedLogin {
    /// Negotiated parameters.
    pub(crate) negotiated: Negotiated,
    /// CmdSN of the first command.
    pub(crate) cmd_sn: u32,
    /// StatSN of the final response.
    pub(crate) stat_sn: u32,
    task_tag: u32,
    response: LoginResponse,
    text: Vec<u8>,
}

/// Negotiates until the final response, which [`CompletedLogin::accept`] or [`CompletedLogin::refuse`] sends.
pub(crate) async fn log_in<S: Seam, R: StreamReader<S>, W: StreamWriter<S>>(
    seam: &S,
    incoming: &mut BufferedReader<S, R>,
    writer: &mut W,
    rules: &Rules<'_>,
) -> Result<CompletedLogin, LoginError> {
    let (mut login, framing, mut stat_sn) = (Login::default(), Framing::default(), 1);
    loop {
        let (reply, task_tag, cmd_sn, used) = loop {
            match framing.decode(incoming.bytes())? {
                Step::Incomplete(_) => incoming.receive_more().await?,
                Step::Got(frame, used) => {
                    let request = Request::decode(frame.header, frame.ahs).map_err(|_| LoginError::NoLogin)?;
                    let RequestBody::Login(login_request) = &request.body else { return Err(LoginError::NoLogin) };
                    let reply = login.step(rules, login_request, frame.data, &mut || seam.random());
                    break (reply, request.task_tag, request.cmd_sn, used);
                }
            }
        };
        incoming.consume(used);
        let completed = |negotiated| {
            let (response, text) = (reply.response, reply.text.clone());
            CompletedLogin { negotiated, cmd_sn, stat_sn, task_tag, response, text }
        };
        match reply.next {
            Next::Done(ref negotiated) => return Ok(completed((**negotiated).clone())),
            Next::Refused(refusal) => {
                send(writer, reply.response, &reply.text, (task_tag, stat_sn, cmd_sn)).await?;
                return Err(LoginError::Refused { initiator: login.claimed_name().to_owned(), refusal });
            }
            Next::Continue => send(writer, reply.response, &reply.text, (task_tag, stat_sn, cmd_sn)).await?,
        }
        stat_sn += 1;
    }
}

impl CompletedLogin {
    /// Sends the final response: the session `tsih` begins.
    pub(crate) async fn accept<S: Seam, W: StreamWriter<S>>(&self, writer: &mut W, tsih: u16) -> io::Result<()> {
        let response = LoginResponse { tsih, ..self.response };
        send(writer, response, &self.text, (self.task_tag, self.stat_sn, self.cmd_sn)).await
    }

    /// Sends the final response: the login fails.
    pub(crate) async fn refuse<S: Seam, W: StreamWriter<S>>(
        &self,
        writer: &mut W,
        refusal: Refusal,
    ) -> Result<(), LoginError> {
        let response = LoginResponse { transit: false, next_stage: 0, status: refusal.status(), ..self.response };
        send(writer, response, &[], (self.task_tag, self.stat_sn, self.cmd_sn)).await?;
        Err(LoginError::Refused { initiator: self.negotiated.initiator.clone(), refusal })
    }
}

/// Sends a login response. The command window stays closed during the login.
async fn send<S: Seam, W: StreamWriter<S>>(
    writer: &mut W,
    response: LoginResponse,
    text: &[u8],
    (task_tag, stat_sn, cmd_sn): (u32, u32, u32),
) -> io::Result<()> {
    let body = ResponseBody::Login(response);
    let response = Response { task_tag, stat_sn, exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn, body };
    let mut bytes = Vec::new();
    Framing::default().push(&mut bytes, response.encode(), text);
    let mut gather = Gather::default();
    gather.push_bytes(&bytes);
    writer.send(gather).await.0
}
