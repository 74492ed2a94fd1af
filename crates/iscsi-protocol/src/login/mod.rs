//! The target's side of a login (section 6.3) as a state machine without I/O.
//!
//! A login has two stages: authentication ([`security`]) and negotiation of parameters ([`parameters`]). The initiator
//! gets no service before both stages have succeeded.

pub mod chap;
pub mod parameters;
mod security;

use crate::request::LoginRequest;
use crate::response::LoginResponse;
use crate::text::{self, Collector, Pair};
use crate::{limits, name};
pub use chap::Credentials;
use parameters::Negotiation;
pub use parameters::Parameters;
use security::Security;

/// Stage of authentication.
pub const SECURITY_STAGE: u8 = 0;
/// Stage of operational parameters.
pub const OPERATIONAL_STAGE: u8 = 1;
/// Full-feature phase, which follows the stages.
pub const FULL_FEATURE_PHASE: u8 = 3;

/// Reason for refusing a login, with class and detail on the wire (11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Protocol error of the initiator.
    #[error("the initiator violates the protocol")]
    InitiatorError,
    /// Authentication failed, or no common CHAP algorithm exists.
    #[error("wrong CHAP user or secret")]
    Authentication,
    /// The target requires CHAP, which the initiator does not offer.
    #[error("the initiator offers no CHAP, which the target requires")]
    ChapRequired,
    /// The initiator requires CHAP, for which the target has no users.
    #[error("the initiator requires CHAP, and the target has no CHAP users")]
    ChapNotConfigured,
    /// The initiator requires the target's CHAP response, for which the target has no secret, or returns the target's
    /// own challenge.
    #[error("the initiator requires mutual CHAP, and the target has no mutual secret for it")]
    MutualChapNotConfigured,
    /// The access list excludes the initiator.
    #[error("the access list excludes the initiator")]
    Authorization,
    /// The target name is unknown.
    #[error("unknown target name")]
    NoSuchTarget,
    /// The initiator requires another protocol version.
    #[error("the initiator supports no common protocol version")]
    Version,
    /// The session already has its only connection.
    #[error("a session supports one connection only")]
    TooManyConnections,
    /// InitiatorName or TargetName is missing.
    #[error("the initiator's or the target's name is missing")]
    MissingParameter,
    /// Unknown session type.
    #[error("unknown session type")]
    SessionType,
    /// The session to reinstate does not exist.
    #[error("the session to reinstate does not exist")]
    NoSuchSession,
    /// The target is stopping.
    #[error("the target is stopping")]
    Unavailable,
    /// The session limit is reached.
    #[error("the session limit is reached")]
    OutOfResources,
}

impl Refusal {
    /// Status class and detail.
    pub fn status(self) -> (u8, u8) {
        match self {
            Refusal::InitiatorError => (2, 0),
            Refusal::Authentication
            | Refusal::ChapRequired
            | Refusal::ChapNotConfigured
            | Refusal::MutualChapNotConfigured => (2, 1),
            Refusal::Authorization => (2, 2),
            Refusal::NoSuchTarget => (2, 3),
            Refusal::Version => (2, 5),
            Refusal::TooManyConnections => (2, 6),
            Refusal::MissingParameter => (2, 7),
            Refusal::SessionType => (2, 9),
            Refusal::NoSuchSession => (2, 0x0a),
            Refusal::Unavailable => (3, 1),
            Refusal::OutOfResources => (3, 2),
        }
    }
}

/// Type of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// SCSI commands.
    #[default]
    Normal,
    /// SendTargets only.
    Discovery,
}

/// Finds the credentials that authenticate the initiator of a name.
pub type CredentialsOf<'a> = &'a dyn Fn(&str) -> Vec<&'a Credentials>;

/// Rules for logins to a target.
pub struct Rules<'a> {
    /// The target's name.
    pub target: &'a str,
    /// Target portal group of the connection.
    pub portal_group: u16,
    /// True if the access list admits the initiator.
    pub admits: &'a dyn Fn(&str) -> bool,
    /// Credentials by initiator name; `None` if authentication is not required.
    pub credentials: Option<CredentialsOf<'a>>,
}

/// Result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Initiator name in lower case.
    pub initiator: String,
    /// Initiator alias; may be empty.
    pub alias: String,
    /// Session type.
    pub session: SessionType,
    /// Initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Handle of the session to reinstate; 0 for a new session.
    pub tsih: u16,
    /// Connection identifier.
    pub connection: u16,
    /// True if the initiator authenticated itself.
    pub authenticated: bool,
    /// Negotiated parameters.
    pub parameters: Parameters,
}

/// The action after a login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Receive the next request.
    Continue,
    /// Begin the full-feature phase, if the caller accepts the session.
    Done(Box<Negotiated>),
    /// Close the connection once the reply is sent.
    Refused(Refusal),
}

/// Reply to a login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginReply {
    /// Header; its TSIH is the request's.
    pub response: LoginResponse,
    /// Text.
    pub text: Vec<u8>,
    /// The action that follows.
    pub next: Next,
}

/// The initiator's declarations in its first request.
struct Initiator {
    name: String,
    session: SessionType,
}

/// State of a login.
#[derive(Default)]
pub struct Login {
    /// Header of the first request.
    first: Option<LoginRequest>,
    stage: u8,
    collector: Collector,
    initiator: Option<Initiator>,
    /// Name that the initiator claims, admitted or not.
    claimed_name: String,
    alias: String,
    security: Security,
    negotiation: Negotiation,
    pdus: u32,
}

impl Login {
    /// The valid name that the initiator claims, in lower case; empty before it sent one.
    pub fn claimed_name(&self) -> &str {
        &self.claimed_name
    }

    /// Processes one request.
    pub fn step(
        &mut self,
        rules: &Rules<'_>,
        request: &LoginRequest,
        data: &[u8],
        random: &mut dyn FnMut() -> u64,
    ) -> LoginReply {
        let mut text = Vec::new();
        let outcome = self.process(rules, request, data, random, &mut text);
        let (transit, next) = match outcome {
            Ok(transit) if transit && request.next_stage == FULL_FEATURE_PHASE => match self.negotiated() {
                Ok(negotiated) => (true, Next::Done(Box::new(negotiated))),
                Err(refusal) => (false, Next::Refused(refusal)),
            },
            Ok(transit) => (transit, Next::Continue),
            Err(refusal) => (false, Next::Refused(refusal)),
        };
        let status = match next {
            Next::Refused(refusal) => refusal.status(),
            Next::Continue | Next::Done(_) => (0, 0),
        };
        if transit {
            self.stage = request.next_stage;
        }
        let response = LoginResponse {
            transit,
            continues: false,
            stage: request.stage,
            next_stage: if transit { request.next_stage } else { 0 },
            isid: request.isid,
            tsih: request.tsih,
            status,
        };
        LoginReply { response, text, next }
    }

    /// Processes one request; returns true if its stage ends.
    fn process(
        &mut self,
        rules: &Rules<'_>,
        request: &LoginRequest,
        data: &[u8],
        random: &mut dyn FnMut() -> u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refusal> {
        self.check(request)?;
        self.collector.push(data).map_err(|_| Refusal::InitiatorError)?;
        if request.continues {
            return Ok(false);
        }
        let collected = self.collector.take();
        let pairs = text::parse_pairs(&collected).map_err(|_| Refusal::InitiatorError)?;
        if self.initiator.is_none() {
            self.identify(rules, &pairs, out)?;
        }
        let credentials = rules.credentials.filter(|_| self.must_authenticate(&pairs));
        let credentials =
            credentials.zip(self.initiator.as_ref()).map(|(credentials_of, initiator)| credentials_of(&initiator.name));
        for pair in &pairs {
            if matches!(pair.value, "NotUnderstood" | "Irrelevant" | "Reject") {
                continue;
            }
            match pair.key {
                "InitiatorName" | "TargetName" | "SessionType" => (),
                "InitiatorAlias" => self.alias = pair.value.chars().take(limits::NAME_BYTES_MAX).collect(),
                key if Security::knows(key) => {
                    if self.stage != SECURITY_STAGE {
                        return Err(Refusal::InitiatorError);
                    }
                    self.security.store(pair)?;
                }
                _ => self.negotiation.reply(pair, self.session(), out)?,
            }
        }
        if self.stage == SECURITY_STAGE {
            self.security.reply(credentials.as_deref(), random, out)?;
        }
        if self.stage == OPERATIONAL_STAGE || request.transit && request.next_stage == FULL_FEATURE_PHASE {
            self.negotiation.declare(out);
        }
        if !request.transit {
            return Ok(false);
        }
        match credentials {
            Some(_) if !self.security.is_authenticated() => {
                match self.stage == SECURITY_STAGE && self.security.is_in_progress() {
                    true => Ok(false),
                    false => Err(Refusal::ChapRequired),
                }
            }
            _ => Ok(true),
        }
    }

    /// Checks the header of a request against earlier requests.
    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        self.pdus += 1;
        if self.pdus > limits::LOGIN_PDUS_MAX {
            return Err(Refusal::InitiatorError);
        }
        if request.version_min > 0 {
            return Err(Refusal::Version);
        }
        match &self.first {
            None => {
                self.stage = request.stage;
                self.first = Some(*request);
            }
            Some(first) => {
                let is_same_session = first.isid == request.isid && first.tsih == request.tsih;
                if !is_same_session || first.connection != request.connection {
                    return Err(Refusal::InitiatorError);
                }
            }
        }
        let is_forward =
            request.next_stage > request.stage && matches!(request.next_stage, OPERATIONAL_STAGE | FULL_FEATURE_PHASE);
        let is_invalid_transit = request.transit && (request.continues || !is_forward);
        if request.stage > OPERATIONAL_STAGE || request.stage != self.stage || is_invalid_transit {
            return Err(Refusal::InitiatorError);
        }
        Ok(())
    }

    /// Processes the declarations of the first request.
    fn identify(&mut self, rules: &Rules<'_>, pairs: &[Pair<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let find = |key| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let initiator = find("InitiatorName").ok_or(Refusal::MissingParameter)?;
        name::check(initiator).map_err(|_| Refusal::InitiatorError)?;
        self.claimed_name = initiator.to_ascii_lowercase();
        let session = match find("SessionType") {
            None | Some("Normal") => SessionType::Normal,
            Some("Discovery") => SessionType::Discovery,
            Some(_) => return Err(Refusal::SessionType),
        };
        if session == SessionType::Normal {
            let target = find("TargetName").ok_or(Refusal::MissingParameter)?;
            if !name::is_same_name(target, rules.target) {
                return Err(Refusal::NoSuchTarget);
            }
            text::push(out, "TargetPortalGroupTag", &rules.portal_group.to_string());
        }
        if !(rules.admits)(initiator) {
            return Err(Refusal::Authorization);
        }
        self.initiator = Some(Initiator { name: self.claimed_name.clone(), session });
        Ok(())
    }

    /// True if the initiator must authenticate itself. A discovery session is open to the access list if the initiator
    /// offers no authentication, as in other targets; an offered authentication must succeed.
    fn must_authenticate(&self, pairs: &[Pair<'_>]) -> bool {
        let offers_none =
            |pair: &Pair<'_>| pair.key == "AuthMethod" && pair.value.split(',').any(|method| method == "None");
        let is_unauthenticated_discovery = self.security.is_open()
            && (self.stage == OPERATIONAL_STAGE || pairs.iter().any(offers_none))
            || self.security.is_agreed_none();
        self.session() == SessionType::Normal || !is_unauthenticated_discovery
    }

    fn session(&self) -> SessionType {
        self.initiator.as_ref().map(|initiator| initiator.session).unwrap_or_default()
    }

    fn negotiated(&self) -> Result<Negotiated, Refusal> {
        let (Some(initiator), Some(first)) = (&self.initiator, &self.first) else {
            return Err(Refusal::MissingParameter);
        };
        Ok(Negotiated {
            initiator: initiator.name.clone(),
            alias: self.alias.clone(),
            session: initiator.session,
            isid: first.isid,
            tsih: first.tsih,
            connection: first.connection,
            authenticated: self.security.is_authenticated(),
            parameters: self.negotiation.parameters(),
        })
    }
}

#[cfg(test)]
mod tests;
