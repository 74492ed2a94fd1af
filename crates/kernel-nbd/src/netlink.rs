//! Encoding and decoding of generic netlink messages: headers and attributes, without any I/O.
//!
//! Numbers are in native byte order. An attribute consists of its length and its number (16 bits each) and its value,
//! padded to a multiple of four. Source: the kernel's `Documentation/userspace-api/netlink/intro.rst`.

/// Length of a message's header: netlink's and generic netlink's.
const HEAD_BYTES: usize = 20;
/// Length of an attribute's header.
const ATTRIBUTE_BYTES: usize = 4;
/// Type of the message that ends a request.
const NLMSG_ERROR: u16 = 2;
/// Flags of a request with acknowledgement.
const REQUEST_FLAGS: u16 = NLM_F_REQUEST | NLM_F_ACK;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
/// Mask of an attribute's number; the bits above it describe the encoding of the value.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// A request under construction.
pub struct Message(Vec<u8>);

impl Message {
    /// A request of `command` to a family of generic netlink.
    pub fn new(family: u16, command: u8, version: u8, sequence: u32) -> Message {
        let mut bytes = Vec::with_capacity(128);
        // The length, filled in at the end.
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&family.to_ne_bytes());
        bytes.extend_from_slice(&REQUEST_FLAGS.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The sender's port, filled in by the kernel.
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[command, version, 0, 0]);
        Message(bytes)
    }

    /// Adds a 32-bit number.
    pub fn u32(self, kind: u16, value: u32) -> Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a 64-bit number.
    pub fn u64(self, kind: u16, value: u64) -> Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a zero-terminated text.
    pub fn text(self, kind: u16, text: &str) -> Message {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute with nested attributes.
    pub fn nested(mut self, kind: u16, inside: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; ATTRIBUTE_BYTES]);
        let mut message = inside(self);
        let len = message.0.len() - start;
        message.0[start..start + 2].copy_from_slice(&length_field(len).to_ne_bytes());
        message.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        message
    }

    fn bytes(mut self, kind: u16, value: &[u8]) -> Message {
        self.0.extend_from_slice(&length_field(ATTRIBUTE_BYTES + value.len()).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// The complete message.
    pub fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).expect("a request is short");
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Converts the length of an attribute to its field; volume names are short.
fn length_field(len: usize) -> u16 {
    u16::try_from(len).expect("an attribute is short")
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The end of the request: 0, or an `errno` number.
    End(i32),
    /// A reply or an event.
    Message {
        /// Command of the message.
        command: u8,
        /// Attributes of the message.
        attributes: Attributes<'a>,
    },
}

/// All messages of one datagram; a truncated or inconsistent message ends the iteration.
pub fn replies(bytes: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    let mut remaining = bytes;
    std::iter::from_fn(move || {
        let len = usize::try_from(u32::from_ne_bytes(*remaining.first_chunk()?)).ok()?;
        let message = remaining.get(..len).filter(|message| message.len() >= HEAD_BYTES)?;
        remaining = remaining.get(len.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        if kind == NLMSG_ERROR {
            let error = i32::from_ne_bytes(*message[16..].first_chunk()?);
            return Some(Reply::End(error.checked_neg()?));
        }
        Some(Reply::Message { command: message[16], attributes: Attributes(&message[HEAD_BYTES..]) })
    })
}

/// A sequence of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Attributes nested in the value of an attribute.
    pub fn of(value: &'a [u8]) -> Attributes<'a> {
        Attributes(value)
    }

    /// The value of the first attribute with this number.
    pub fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter().find(|(known, _)| *known == kind).map(|(_, value)| value)
    }

    /// A 16-bit number.
    pub fn u16(self, kind: u16) -> Option<u16> {
        self.find(kind)?.try_into().ok().map(u16::from_ne_bytes)
    }

    /// A 32-bit number.
    pub fn u32(self, kind: u16) -> Option<u32> {
        self.find(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// The attributes nested in an attribute.
    pub fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.find(kind).unwrap_or_default())
    }
}

impl<'a> IntoIterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);
    type IntoIter = AttributeIter<'a>;

    fn into_iter(self) -> AttributeIter<'a> {
        AttributeIter(self.0)
    }
}

/// Iterator over the number and value of each attribute.
pub struct AttributeIter<'a>(&'a [u8]);

impl<'a> Iterator for AttributeIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, kind) = (self.0.get(..2)?, self.0.get(2..4)?);
        let len = usize::from(u16::from_ne_bytes([len[0], len[1]]));
        let value = self.0.get(ATTRIBUTE_BYTES..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([kind[0], kind[1]]) & NLA_TYPE_MASK, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the kernel sends it.
    fn kernel_message(kind: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
        let mut message = Message::new(kind, command, 1, 7).finish();
        message.extend_from_slice(attributes);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message
    }

    #[test]
    fn request_has_the_layout_that_the_kernel_reads() {
        if cfg!(target_endian = "big") {
            return;
        }
        let bytes = Message::new(0x1d, 1, 1, 7)
            .u64(2, 1 << 30)
            .text(10, "hotset")
            .nested(7, |sockets| sockets.nested(1, |item| item.u32(1, 5)))
            .finish();
        let expected: [&[u8]; 5] = [
            &[60, 0, 0, 0, 0x1d, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0],
            &[12, 0, 2, 0, 0, 0, 0, 0x40, 0, 0, 0, 0],
            // The length counts the terminating zero, but not the padding.
            &[11, 0, 10, 0, b'h', b'o', b't', b's', b'e', b't', 0, 0],
            &[16, 0, 7, 0],
            &[12, 0, 1, 0, 8, 0, 1, 0, 5, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat()[..], "{bytes:?}");
    }

    #[test]
    fn replies_and_ends_are_distinguished_in_one_datagram() {
        let attributes = Message::new(0, 0, 0, 0).u32(1, 3).finish()[HEAD_BYTES..].to_vec();
        let mut bytes = kernel_message(0x1d, 1, &attributes);
        let mut end = kernel_message(NLMSG_ERROR, 0, &[0; 16]);
        end[16..20].copy_from_slice(&(-22_i32).to_ne_bytes());
        bytes.extend_from_slice(&end);
        let received: Vec<_> = replies(&bytes).collect();
        let [Reply::Message { command: 1, attributes }, Reply::End(22)] = received[..] else { panic!("{received:?}") };
        assert_eq!((attributes.u32(1), attributes.u32(2), attributes.u16(1)), (Some(3), None, None));
        assert_eq!(attributes.nested(9).into_iter().count(), 0);
    }

    #[test]
    fn truncated_or_inconsistent_messages_end_the_list() {
        let attributes = Message::new(0, 0, 0, 0).text(2, "nbd").nested(7, |inside| inside.u32(1, 1)).finish();
        let whole = kernel_message(0x10, 1, &attributes[HEAD_BYTES..]);
        for len in 0..whole.len() {
            assert_eq!(replies(&whole[..len]).count(), 0, "cut to {len} bytes");
        }
        for forged_len in [0_u32, 3, 19, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[..4].copy_from_slice(&forged_len.to_ne_bytes());
            assert_eq!(replies(&bytes).count(), 0, "a message length of {forged_len}");
        }
        for forged_len in [0_u16, 3, u16::MAX] {
            let mut bytes = whole[HEAD_BYTES..].to_vec();
            bytes[..2].copy_from_slice(&forged_len.to_ne_bytes());
            assert_eq!(Attributes(&bytes).into_iter().count(), 0, "an attribute length of {forged_len}");
        }
    }
}
