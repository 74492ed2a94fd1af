//! The target's half of a log-in (section 6.3), PDU by PDU, without I/O.
//!
//! A log-in has two stages: in the first the two ends prove who they are ([`security`]), in the second they agree on how they
//! will talk ([`parameters`]). Nothing is done for an initiator before the whole of it has ended well.

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

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Why a log-in is refused: class and detail on the wire (11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The initiator does not keep to the protocol.
    #[error("the initiator does not keep to the protocol")]
    InitiatorError,
    /// It did not prove who it is, or cannot in a way that is known here.
    #[error("the initiator did not prove who it is")]
    Authentication,
    /// It may not use the target.
    #[error("the initiator is in no access list")]
    Authorization,
    /// There is no target of that name.
    #[error("there is no target of that name")]
    NoSuchTarget,
    /// It speaks another version.
    #[error("the initiator speaks no version that is spoken here")]
    Version,
    /// The session has its one connection.
    #[error("a session has one connection here")]
    TooManyConnections,
    /// It did not say who it is, or what it wants.
    #[error("the initiator did not give its name, or the target's")]
    MissingParameter,
    /// It wants a type of session that is none.
    #[error("there is no such type of session")]
    SessionType,
    /// It wants to go on with a session that is not there.
    #[error("there is no such session")]
    NoSuchSession,
    /// The target is stopping.
    #[error("the target is stopping")]
    Unavailable,
    /// There are too many sessions.
    #[error("there are too many sessions")]
    OutOfResources,
}

impl Refusal {
    /// Class and detail.
    pub fn status(self) -> (u8, u8) {
        match self {
            Refusal::InitiatorError => (2, 0),
            Refusal::Authentication => (2, 1),
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

/// What a session is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// Commands.
    #[default]
    Normal,
    /// Asking which targets there are.
    Discovery,
}

/// The credentials of the users whose initiators may have that name.
pub type CredentialsOf<'a> = &'a dyn Fn(&str) -> Vec<&'a Credentials>;

/// Who may log in to what, and how.
pub struct Rules<'a> {
    /// The target's name.
    pub target: &'a str,
    /// The portal group that the connection came in by.
    pub portal_group: u16,
    /// Whether the initiator of that name may.
    pub admits: &'a dyn Fn(&str) -> bool,
    /// With which of some credentials the initiator of that name may prove who it is; `None`: it need not.
    pub credentials: Option<CredentialsOf<'a>>,
}

/// What was agreed on with an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Its name, in lower case.
    pub initiator: String,
    /// What it calls itself for people; may be empty.
    pub alias: String,
    /// What it wants.
    pub session: SessionType,
    /// Its name for the session.
    pub isid: [u8; 6],
    /// Our name for the session that it wants to go on with; 0 for a new one.
    pub tsih: u16,
    /// Its name for the connection.
    pub connection: u16,
    /// It has proved who it is.
    pub authenticated: bool,
    /// How the two ends talk.
    pub parameters: Parameters,
}

/// What follows a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another request.
    Continue,
    /// The full-feature phase, if whoever asked for this step wants the session.
    Done(Box<Agreed>),
    /// The end, after the answer is sent.
    Refused(Refusal),
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its head; the session's number is the request's.
    pub response: LoginResponse,
    /// Its text.
    pub text: Vec<u8>,
    /// What follows.
    pub next: Next,
}

/// Who the initiator says it is, in its first request.
struct Initiator {
    name: String,
    session: SessionType,
}

/// A log-in under way.
#[derive(Default)]
pub struct Login {
    /// Head of the first request.
    first: Option<LoginRequest>,
    stage: u8,
    collector: Collector,
    initiator: Option<Initiator>,
    alias: String,
    security: Security,
    negotiation: Negotiation,
    pdus: u32,
}

impl Login {
    /// Answers one request.
    pub fn step(
        &mut self,
        rules: &Rules<'_>,
        request: &LoginRequest,
        data: &[u8],
        random: &mut dyn FnMut() -> u64,
    ) -> Answer {
        let mut text = Vec::new();
        let outcome = self.take(rules, request, data, random, &mut text);
        let (transit, next) = match outcome {
            Ok(transit) if transit && request.next_stage == FULL_FEATURE => match self.agreed() {
                Ok(agreed) => (true, Next::Done(Box::new(agreed))),
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
        Answer { response, text, next }
    }

    /// Takes one request in; true when the stage ends.
    fn take(
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
        let pairs = text::pairs(&collected).map_err(|_| Refusal::InitiatorError)?;
        if self.initiator.is_none() {
            self.introduce(rules, &pairs, out)?;
        }
        let credentials = rules.credentials.filter(|_| self.must_authenticate(&pairs));
        let credentials = credentials.zip(self.initiator.as_ref()).map(|(of, initiator)| of(&initiator.name));
        for pair in &pairs {
            if matches!(pair.value, "NotUnderstood" | "Irrelevant" | "Reject") {
                continue;
            }
            match pair.key {
                "InitiatorName" | "TargetName" | "SessionType" => (),
                "InitiatorAlias" => self.alias = pair.value.chars().take(limits::NAME_BYTES_MAX).collect(),
                key if Security::knows(key) => {
                    if self.stage != SECURITY {
                        return Err(Refusal::InitiatorError);
                    }
                    self.security.take(pair)?;
                }
                _ => self.negotiation.answer(pair, self.session(), out)?,
            }
        }
        if self.stage == SECURITY {
            self.security.answer(credentials.as_deref(), random, out)?;
        }
        if self.stage == OPERATIONAL || request.transit && request.next_stage == FULL_FEATURE {
            self.negotiation.declare(out);
        }
        if !request.transit {
            return Ok(false);
        }
        match credentials {
            Some(_) if !self.security.is_authenticated() => match self.stage == SECURITY && self.security.has_begun() {
                true => Ok(false),
                false => Err(Refusal::Authentication),
            },
            _ => Ok(true),
        }
    }

    /// Whether the head of a request fits those before it.
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
                let same = first.isid == request.isid && first.tsih == request.tsih;
                if !same || first.connection != request.connection {
                    return Err(Refusal::InitiatorError);
                }
            }
        }
        let goes_on = request.next_stage > request.stage && matches!(request.next_stage, OPERATIONAL | FULL_FEATURE);
        let is_odd = request.transit && (request.continues || !goes_on);
        if request.stage > OPERATIONAL || request.stage != self.stage || is_odd {
            return Err(Refusal::InitiatorError);
        }
        Ok(())
    }

    /// Takes what the first request has to say.
    fn introduce(&mut self, rules: &Rules<'_>, pairs: &[Pair<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let find = |key| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let initiator = find("InitiatorName").ok_or(Refusal::MissingParameter)?;
        name::check(initiator).map_err(|_| Refusal::InitiatorError)?;
        let session = match find("SessionType") {
            None | Some("Normal") => SessionType::Normal,
            Some("Discovery") => SessionType::Discovery,
            Some(_) => return Err(Refusal::SessionType),
        };
        if session == SessionType::Normal {
            let target = find("TargetName").ok_or(Refusal::MissingParameter)?;
            if !name::same(target, rules.target) {
                return Err(Refusal::NoSuchTarget);
            }
            text::push(out, "TargetPortalGroupTag", &rules.portal_group.to_string());
        }
        if !(rules.admits)(initiator) {
            return Err(Refusal::Authorization);
        }
        self.initiator = Some(Initiator { name: initiator.to_ascii_lowercase(), session });
        Ok(())
    }

    /// A session that tells the target's name alone is open to whoever is in the access list and offers no proof, as discovery is
    /// elsewhere. Who offers one has to give it.
    fn must_authenticate(&self, pairs: &[Pair<'_>]) -> bool {
        let offers_none = |pair: &Pair<'_>| pair.key == "AuthMethod" && pair.value.split(',').any(|one| one == "None");
        let open = self.security.is_open() && (self.stage == OPERATIONAL || pairs.iter().any(offers_none))
            || self.security.is_agreed_none();
        self.session() == SessionType::Normal || !open
    }

    fn session(&self) -> SessionType {
        self.initiator.as_ref().map(|initiator| initiator.session).unwrap_or_default()
    }

    fn agreed(&self) -> Result<Agreed, Refusal> {
        let (Some(initiator), Some(first)) = (&self.initiator, &self.first) else {
            return Err(Refusal::MissingParameter);
        };
        Ok(Agreed {
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
