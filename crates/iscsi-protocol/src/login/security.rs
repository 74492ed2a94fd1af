//! The security stage (section 12): selection of a method and verification.

use super::Refusal;
use super::chap::{Algorithm, Challenge, Credentials, RESPONSE_BYTES_MAX};
use crate::text::{self, Pair};

/// Longest accepted challenge of an initiator, in bytes.
const CHALLENGE_BYTES_MAX: usize = 1024;
/// Maximum number of methods or algorithms examined in one offer.
const LIST_MAX: usize = 16;

/// Progress of the stage.
#[derive(Default)]
enum State {
    /// No method offered yet.
    #[default]
    Open,
    /// No authentication required.
    None,
    /// CHAP selected; the algorithm comes next.
    Chap,
    /// The target's challenge is sent.
    Challenged(Challenge),
    /// The initiator is authenticated.
    Authenticated,
}

/// The security stage of a login.
#[derive(Default)]
pub(super) struct Security {
    state: State,
    /// Keys of the current request.
    methods: Option<Vec<String>>,
    algorithms: Option<Vec<String>>,
    name: Option<String>,
    response: Option<Vec<u8>>,
    identifier: Option<u8>,
    challenge: Option<Vec<u8>>,
}

impl Security {
    /// True for keys of this stage.
    pub(super) fn knows(key: &str) -> bool {
        matches!(key, "AuthMethod" | "CHAP_A" | "CHAP_N" | "CHAP_R" | "CHAP_I" | "CHAP_C")
    }

    /// True before a method was offered.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// True once the initiator need not authenticate itself.
    pub(super) fn is_agreed_none(&self) -> bool {
        matches!(self.state, State::None)
    }

    /// True once the initiator is authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        matches!(self.state, State::Authenticated)
    }

    /// True while CHAP is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        matches!(self.state, State::Chap | State::Challenged(_))
    }

    /// Stores a pair; each key may come once in a request.
    pub(super) fn store(&mut self, pair: &Pair<'_>) -> Result<(), Refusal> {
        let list = || Some(pair.value.split(',').take(LIST_MAX).map(str::to_owned).collect());
        let is_new = match pair.key {
            "AuthMethod" => std::mem::replace(&mut self.methods, list()).is_none(),
            "CHAP_A" => std::mem::replace(&mut self.algorithms, list()).is_none(),
            "CHAP_N" => self.name.replace(pair.value.to_owned()).is_none(),
            "CHAP_R" => {
                let response = text::parse_binary(pair.value, RESPONSE_BYTES_MAX).ok_or(Refusal::Authentication)?;
                self.response.replace(response).is_none()
            }
            "CHAP_I" => {
                let identifier = text::parse_number(pair.value).and_then(|number| u8::try_from(number).ok());
                self.identifier.replace(identifier.ok_or(Refusal::InitiatorError)?).is_none()
            }
            "CHAP_C" => {
                let challenge = text::parse_binary(pair.value, CHALLENGE_BYTES_MAX).ok_or(Refusal::InitiatorError)?;
                self.challenge.replace(challenge).is_none()
            }
            _ => true,
        };
        if is_new { Ok(()) } else { Err(Refusal::InitiatorError) }
    }

    /// Processes the keys of the current request.
    pub(super) fn reply<'a>(
        &mut self,
        credentials: Option<&[&'a Credentials]>,
        random: &mut dyn FnMut() -> u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if let Some(methods) = self.methods.take() {
            self.choose_method(&methods, credentials.is_some(), out)?;
        }
        if let Some(algorithms) = self.algorithms.take() {
            if !matches!(self.state, State::Chap) {
                return Err(Refusal::InitiatorError);
            }
            let algorithm = algorithms.iter().find_map(|number| Algorithm::from_wire(number));
            let challenge = Challenge::new(algorithm.ok_or(Refusal::Authentication)?, random);
            challenge.push(out);
            self.state = State::Challenged(challenge);
        }
        let mutual = match (self.identifier.take(), self.challenge.take()) {
            (Some(identifier), Some(challenge)) => Some((identifier, challenge)),
            (None, None) => None,
            _ => return Err(Refusal::InitiatorError),
        };
        match (self.name.take(), self.response.take()) {
            (Some(name), Some(response)) => {
                let State::Challenged(challenge) = &self.state else { return Err(Refusal::InitiatorError) };
                // All credentials are tried, so that the time does not reveal which one matches.
                let keep_match = |matching, one: &&'a Credentials| {
                    if challenge.verifies(one, &name, &response) { Some(*one) } else { matching }
                };
                let matching = credentials.unwrap_or_default().iter().fold(None, keep_match);
                let credentials = matching.ok_or(Refusal::Authentication)?;
                if let Some((identifier, challenge_of_initiator)) = mutual {
                    let answered = challenge.answer(credentials, identifier, &challenge_of_initiator, out);
                    answered.ok_or(Refusal::MutualChapNotConfigured)?;
                }
                self.state = State::Authenticated;
                Ok(())
            }
            // A challenge from an unauthenticated initiator is not answered.
            (None, None) if mutual.is_none() => Ok(()),
            _ => Err(Refusal::InitiatorError),
        }
    }

    /// Selects CHAP if the initiator must authenticate itself, and no authentication otherwise.
    fn choose_method(&mut self, methods: &[String], must_authenticate: bool, out: &mut Vec<u8>) -> Result<(), Refusal> {
        if !self.is_open() {
            return Err(Refusal::InitiatorError);
        }
        let required_method = if must_authenticate { "CHAP" } else { "None" };
        if !methods.iter().any(|method| method == required_method) {
            text::push(out, "AuthMethod", "Reject");
            return Err(if must_authenticate { Refusal::ChapRequired } else { Refusal::ChapNotConfigured });
        }
        text::push(out, "AuthMethod", required_method);
        self.state = if must_authenticate { State::Chap } else { State::None };
        Ok(())
    }
}
