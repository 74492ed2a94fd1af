//! The server's side of option negotiation as a state machine without I/O.

use nbd_protocol::info::{Info, InfoRequest, encode_server};
use nbd_protocol::meta::{MetaRequest, encode_context};
use nbd_protocol::option::push_option_reply;
use nbd_protocol::{OptionHeader, OptionKind, OptionReplyKind, flags, greeting};
use seam::Seam;

use crate::options::REQUEST_BYTES_MAX;
use crate::{Export, Exports};

/// Context identifier of `base:allocation` on every connection.
pub(crate) const ALLOCATION_CONTEXT: u32 = 1;

/// Result of the negotiation.
#[derive(Clone)]
pub(crate) struct Negotiated<S: Seam> {
    /// The export.
    pub(crate) export: Export<S>,
    /// True if structured replies are negotiated.
    pub(crate) structured: bool,
    /// True if `base:allocation` is negotiated.
    pub(crate) allocation: bool,
}

/// The step after an option.
pub(crate) enum NextStep<S: Seam> {
    /// A further option.
    Continue,
    /// The transmission phase.
    Transmit(Negotiated<S>),
    /// A TLS handshake, then options from the start.
    StartTls,
    /// The end, once the reply is sent.
    Close,
}

/// State of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsState {
    /// Not configured.
    Off,
    /// Offered.
    Offered,
    /// Required before any other option.
    Required,
    /// In use.
    On,
}

/// State of the negotiation.
pub(crate) struct Negotiation {
    no_zeroes: bool,
    tls: TlsState,
    structured: bool,
    /// Name of the export for which `base:allocation` was selected, as the client sent it.
    allocation_for: Option<String>,
}

impl Negotiation {
    /// The initial state.
    pub(crate) fn new(no_zeroes: bool, tls: TlsState) -> Self {
        Negotiation { no_zeroes, tls, structured: false, allocation_for: None }
    }

    /// Processes one option and appends the reply to `out`.
    pub(crate) fn process_option<S: Seam>(
        &mut self,
        header: OptionHeader,
        payload: &[u8],
        exports: &dyn Exports<S>,
        out: &mut Vec<u8>,
    ) -> NextStep<S> {
        use OptionReplyKind::*;
        let kind = header.kind;
        let mut reply =
            |reply_kind: OptionReplyKind, text: &str| push_option_reply(out, kind, reply_kind, text.as_bytes());
        let before_tls = matches!(kind, OptionKind::StartTls | OptionKind::Abort);
        if self.tls == TlsState::Required && !before_tls {
            if kind == OptionKind::ExportName {
                return NextStep::Close;
            }
            reply(ErrTlsRequired, "this server requires TLS");
            return NextStep::Continue;
        }
        match kind {
            OptionKind::ExportName => return self.answer_export_name(payload, exports, out),
            OptionKind::Go | OptionKind::Info => return self.answer_info(kind, payload, exports, out),
            OptionKind::SetMetaContext | OptionKind::ListMetaContext => {
                self.answer_meta_context(kind, payload, exports, out);
            }
            OptionKind::Abort => {
                reply(Ack, "");
                return NextStep::Close;
            }
            OptionKind::List | OptionKind::StructuredReply | OptionKind::StartTls if !payload.is_empty() => {
                reply(ErrInvalid, "this option has no payload");
            }
            OptionKind::List => {
                for entry in exports.list() {
                    push_option_reply(out, kind, Server, &encode_server(&entry.name, &entry.description));
                }
                push_option_reply(out, kind, Ack, b"");
            }
            OptionKind::StructuredReply => {
                self.structured = true;
                reply(Ack, "");
            }
            OptionKind::StartTls => match self.tls {
                TlsState::Off => reply(ErrPolicy, "TLS is not configured"),
                TlsState::On => reply(ErrInvalid, "TLS is in use already"),
                TlsState::Offered | TlsState::Required => {
                    reply(Ack, "");
                    return NextStep::StartTls;
                }
            },
            OptionKind::ExtendedHeaders | OptionKind::Unknown(_) => reply(ErrUnsupported, "unsupported option"),
        }
        NextStep::Continue
    }

    fn answer_export_name<S: Seam>(&self, payload: &[u8], exports: &dyn Exports<S>, out: &mut Vec<u8>) -> NextStep<S> {
        let export = std::str::from_utf8(payload).ok().and_then(|name| exports.find(name));
        // This option cannot report an error: the connection is closed.
        let Some(export) = export else { return NextStep::Close };
        greeting::push_export(out, export.volume.size_bytes(), self.export_flags(&export), self.no_zeroes);
        NextStep::Transmit(self.negotiated(export, payload))
    }

    fn answer_info<S: Seam>(
        &self,
        kind: OptionKind,
        payload: &[u8],
        exports: &dyn Exports<S>,
        out: &mut Vec<u8>,
    ) -> NextStep<S> {
        let request = match InfoRequest::parse(payload) {
            Ok(request) => request,
            Err(error) => {
                push_option_reply(out, kind, OptionReplyKind::ErrInvalid, error.to_string().as_bytes());
                return NextStep::Continue;
            }
        };
        let Some(export) = exports.find(request.name) else {
            push_option_reply(out, kind, OptionReplyKind::ErrUnknown, no_such_export(request.name).as_bytes());
            return NextStep::Continue;
        };
        let (size_bytes, flags) = (export.volume.size_bytes(), self.export_flags(&export));
        let mut infos = vec![Info::Export { size_bytes, flags }];
        // A client that requests block sizes complies with them; other clients may send any offset and length.
        if request.wants_block_size {
            let (min, preferred) = (seam::SECTOR_BYTES as u32, seam::BLOCK_BYTES as u32);
            infos.push(Info::BlockSize { min, preferred, max: REQUEST_BYTES_MAX });
        }
        if request.wants_name {
            infos.push(Info::Name(&export.name));
        }
        if request.wants_description && !export.description.is_empty() {
            infos.push(Info::Description(&export.description));
        }
        for info in &infos {
            push_option_reply(out, kind, OptionReplyKind::Info, &info.encode());
        }
        push_option_reply(out, kind, OptionReplyKind::Ack, b"");
        match kind {
            OptionKind::Go => NextStep::Transmit(self.negotiated(export, request.name.as_bytes())),
            _ => NextStep::Continue,
        }
    }

    fn answer_meta_context<S: Seam>(
        &mut self,
        kind: OptionKind,
        payload: &[u8],
        exports: &dyn Exports<S>,
        out: &mut Vec<u8>,
    ) {
        let is_set = kind == OptionKind::SetMetaContext;
        if is_set {
            self.allocation_for = None;
        }
        let refuse = |out: &mut Vec<u8>, reply, text: &str| push_option_reply(out, kind, reply, text.as_bytes());
        if !self.structured {
            return refuse(out, OptionReplyKind::ErrInvalid, "structured replies must be negotiated first");
        }
        let request = match MetaRequest::decode(payload) {
            Ok(request) => request,
            Err(error) => return refuse(out, OptionReplyKind::ErrInvalid, &error.to_string()),
        };
        if exports.find(request.name).is_none() {
            return refuse(out, OptionReplyKind::ErrUnknown, &no_such_export(request.name));
        }
        let is_listed = !is_set && (request.query_count == 0 || request.wants_base_namespace);
        if request.wants_base_allocation || is_listed {
            let id = if is_set { ALLOCATION_CONTEXT } else { 0 };
            let context = encode_context(id, flags::BASE_ALLOCATION);
            push_option_reply(out, kind, OptionReplyKind::MetaContext, &context);
        }
        if is_set && request.wants_base_allocation {
            self.allocation_for = Some(request.name.to_owned());
        }
        push_option_reply(out, kind, OptionReplyKind::Ack, b"");
    }

    fn negotiated<S: Seam>(&self, export: Export<S>, name: &[u8]) -> Negotiated<S> {
        let allocation = self.allocation_for.as_ref().is_some_and(|selected| selected.as_bytes() == name);
        Negotiated { export, structured: self.structured, allocation }
    }

    fn export_flags<S: Seam>(&self, export: &Export<S>) -> u16 {
        let always = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::CAN_MULTI_CONN | flags::SEND_CACHE;
        let writing = match export.is_read_only {
            true => flags::READ_ONLY,
            false => flags::SEND_FUA | flags::SEND_TRIM | flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO,
        };
        always | writing | if self.structured { flags::SEND_DF } else { 0 }
    }
}

fn no_such_export(name: &str) -> String {
    match name {
        "" => "there is no default export; specify an export (there are several, or none)".to_owned(),
        name => format!("no export is named \"{name}\""),
    }
}
