//! A command in flight: its cancellation and the state of its write data.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use iscsi_protocol::NO_TAG;
use iscsi_protocol::request::DataOut;
use scsi::CancelToken;

/// A command in flight.
pub(crate) struct Task {
    /// Initiator task tag.
    pub(crate) tag: u32,
    /// Address of the unit.
    pub(crate) lun: [u8; 8],
    /// Sequence number among the session's commands.
    pub(super) number: u64,
    /// True if the command changes nothing, so that an abort need not wait for it.
    pub(super) changes_nothing: bool,
    /// True for an immediate command.
    pub(super) is_immediate: bool,
    /// True if the data arrived out of order.
    pub(super) has_data_error: Cell<bool>,
    /// Cancellation of the unit's work.
    pub(super) cancel: CancelToken,
    /// True once the command can have no effect.
    ended: Cell<bool>,
    /// State of the write data.
    pub(super) data: RefCell<WriteData>,
    waker: RefCell<Option<Waker>>,
    /// Wakers of tasks that wait for the command's end.
    watchers: RefCell<Vec<Waker>>,
}

impl Task {
    /// A command in flight whose write data is `data`.
    pub(super) fn new(
        tag: u32,
        lun: [u8; 8],
        number: u64,
        changes_nothing: bool,
        is_immediate: bool,
        data: WriteData,
    ) -> Self {
        Task {
            tag,
            lun,
            number,
            changes_nothing,
            is_immediate,
            has_data_error: Default::default(),
            cancel: Default::default(),
            ended: Default::default(),
            data: RefCell::new(data),
            waker: Default::default(),
            watchers: Default::default(),
        }
    }

    /// Wakes the task to check its data and its cancellation.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Cancels the command.
    pub(super) fn cancel(&self) {
        self.cancel.cancel();
        self.wake();
    }

    /// Records that the command can have no effect any more.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.watchers.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Waits for the command's end.
    pub(crate) async fn wait_until_ended(&self) {
        poll_fn(|context| {
            if self.ended.get() {
                return Poll::Ready(());
            }
            self.watchers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Registers a waker for data and for a cancellation by any initiator.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.cancel.wake_when_cancelled(context.waker());
        *self.waker.borrow_mut() = Some(context.waker().clone());
    }
}

/// An outstanding R2T.
#[derive(Debug)]
struct OutstandingR2t {
    tag: u32,
    /// End offset in the command's data.
    end: u32,
    /// Expected DataSN.
    data_sn: u32,
}

/// Received data of a write. Data arrive in order: unsolicited data first, then solicited data, R2T by R2T.
#[derive(Debug, Default)]
pub(super) struct WriteData {
    /// Length of the command's data, in bytes.
    expected: u32,
    /// Maximum bytes of unsolicited data.
    unsolicited_max: u32,
    /// Expected DataSN of unsolicited data; `None` once they are complete. Capacity is reserved for all of them.
    unsolicited: Option<u32>,
    /// Data received and not yet taken. The capacity is at most twice the counted bytes (these and awaited ones).
    bytes: VecDeque<u8>,
    /// Bytes received.
    received: u32,
    /// Bytes received, requested or announced.
    requested: u32,
    outstanding_r2ts: VecDeque<OutstandingR2t>,
    /// Number of R2Ts sent.
    r2ts: u32,
    /// True once the reception has ended: further data is dropped.
    has_ended: bool,
}

/// Classification of a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataClass {
    /// Solicited data, for which capacity was reserved.
    Solicited,
    /// Unsolicited data; `spare` bytes of the reserved capacity stay unused.
    Unsolicited { spare: u32 },
    /// Data out of order: a protocol error.
    OutOfOrder,
}

impl WriteData {
    /// Data of a command that writes `expected` bytes and came with the data `first`. `continues_unsolicited`: further
    /// unsolicited data follow, up to `unsolicited_max` bytes in total.
    pub(super) fn new(expected: u32, unsolicited_max: u32, first: &[u8], continues_unsolicited: bool) -> Self {
        let (received, unsolicited_max) = (first.len() as u32, unsolicited_max.min(expected));
        WriteData {
            expected,
            unsolicited_max,
            unsolicited: continues_unsolicited.then_some(0),
            bytes: first.to_vec().into(),
            received,
            requested: if continues_unsolicited { unsolicited_max } else { received },
            ..WriteData::default()
        }
    }

    /// Accepts the data of one PDU.
    pub(super) fn accept_pdu(&mut self, pdu: &DataOut, data: &[u8]) -> DataClass {
        let Some(end) = self.received.checked_add(data.len() as u32).filter(|_| pdu.offset == self.received) else {
            return DataClass::OutOfOrder;
        };
        let class = if pdu.target_tag == NO_TAG {
            let Some(data_sn) = self.unsolicited.filter(|_| end <= self.unsolicited_max) else {
                return DataClass::OutOfOrder;
            };
            if pdu.data_sn != data_sn {
                return DataClass::OutOfOrder;
            }
            self.unsolicited = (!pdu.is_final).then_some(data_sn + 1);
            let spare = if pdu.is_final { self.unsolicited_max - end } else { 0 };
            self.requested -= spare;
            DataClass::Unsolicited { spare }
        } else {
            let Some(r2t) = self.outstanding_r2ts.front_mut() else { return DataClass::OutOfOrder };
            let is_last = end == r2t.end;
            if r2t.tag != pdu.target_tag || pdu.data_sn != r2t.data_sn || end > r2t.end || pdu.is_final != is_last {
                return DataClass::OutOfOrder;
            }
            r2t.data_sn += 1;
            if is_last {
                self.outstanding_r2ts.pop_front();
            }
            DataClass::Solicited
        };
        if !self.has_ended {
            // Reserving for all awaited data at once avoids growth by doubling.
            self.bytes.reserve_exact(self.awaited());
            self.bytes.extend(data);
        }
        self.received = end;
        self.trim();
        class
    }

    /// Bytes with reserved capacity that have not arrived.
    fn awaited(&self) -> usize {
        (self.requested - self.received) as usize
    }

    /// Bytes that can be taken now.
    pub(super) fn available_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Moves at most `len` bytes to `into`; returns their number.
    pub(super) fn take(&mut self, len: usize, into: &mut Vec<u8>) -> usize {
        let len = len.min(self.available_bytes());
        if into.is_empty() && into.capacity() > 2 * len {
            *into = Vec::new();
        }
        if into.is_empty() && len == self.available_bytes() && self.bytes.capacity() <= 2 * len {
            let empty = std::mem::take(into);
            *into = std::mem::replace(&mut self.bytes, empty.into()).into();
        } else {
            into.reserve_exact(len);
            let (front, back) = self.bytes.as_slices();
            let (front, _) = front.split_at(len.min(front.len()));
            into.extend_from_slice(front);
            into.extend_from_slice(&back[..len - front.len()]);
            self.bytes.drain(..len);
        }
        self.trim();
        len
    }

    /// Releases spare capacity beyond twice the counted bytes.
    fn trim(&mut self) {
        let counted = self.available_bytes() + self.awaited();
        if self.bytes.capacity() > 2 * counted {
            self.bytes.shrink_to(counted);
        }
    }

    /// Offset of the next byte to take, in the command's data.
    pub(super) fn position(&self) -> u32 {
        self.received - self.available_bytes() as u32
    }

    /// End offset of the data received or requested.
    pub(super) fn requested(&self) -> u32 {
        self.requested
    }

    /// True if an R2T may be sent: unsolicited data is complete and data remains to be requested.
    pub(super) fn may_send_r2t(&self) -> bool {
        self.unsolicited.is_none() && self.requested < self.expected && !self.has_ended
    }

    /// Number of outstanding R2Ts.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding_r2ts.len()
    }

    /// Requests at most `len` further bytes with the transfer tag `tag`; returns R2TSN, offset and length.
    pub(super) fn request(&mut self, tag: u32, len: u32) -> (u32, u32, u32) {
        assert!(self.may_send_r2t(), "an R2T needs complete unsolicited data and data left to request");
        let (offset, number) = (self.requested, self.r2ts);
        let len = len.min(self.expected - offset);
        self.requested += len;
        self.r2ts += 1;
        self.outstanding_r2ts.push_back(OutstandingR2t { tag, end: self.requested, data_sn: 0 });
        (number, offset, len)
    }

    /// Number of R2Ts sent.
    pub(super) fn r2ts(&self) -> u32 {
        self.r2ts
    }

    /// Ends the reception; returns the bytes that were counted, and zero at a repeated call.
    pub(super) fn stop_reception(&mut self) -> usize {
        if std::mem::replace(&mut self.has_ended, true) {
            return 0;
        }
        let held = self.available_bytes() + self.awaited();
        self.bytes = VecDeque::new();
        held
    }

    /// True once the reception has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// True if no data is outstanding, so that the command can be answered.
    pub(super) fn is_complete(&self) -> bool {
        self.unsolicited.is_none() && self.outstanding_r2ts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    fn pdu(target_tag: u32, data_sn: u32, offset: u32, is_final: bool) -> DataOut {
        DataOut { is_final, lun: [0; 8], target_tag, data_sn, offset }
    }

    fn take_bytes(data: &mut WriteData, len: usize) -> Vec<u8> {
        let mut into = Vec::new();
        data.take(len, &mut into);
        into
    }

    #[test]
    fn data_waiter_is_woken_when_another_initiator_ends_the_command() {
        #[derive(Default)]
        struct CountingWaker(AtomicU32);
        impl Wake for CountingWaker {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let waker = Arc::<CountingWaker>::default();
        let task = Task::new(1, [0; 8], 1, false, false, WriteData::new(8, 0, b"", false));
        task.register(&Context::from_waker(&Arc::clone(&waker).into()));
        // PREEMPT AND ABORT at the target cancels this way, without access to the task.
        task.cancel.clone().cancel();
        assert_eq!(waker.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn unsolicited_data_comes_first_and_solicited_data_follows() {
        let mut data = WriteData::new(16, 8, b"ab", true);
        assert!(!data.may_send_r2t());
        assert_eq!(data.accept_pdu(&pdu(NO_TAG, 0, 2, false), b"cdef"), DataClass::Unsolicited { spare: 0 });
        assert_eq!(data.accept_pdu(&pdu(NO_TAG, 1, 6, true), b"gh"), DataClass::Unsolicited { spare: 0 });
        assert_eq!((data.available_bytes(), data.may_send_r2t()), (8, true));
        assert_eq!((data.request(7, 5), data.request(8, 5)), ((0, 8, 5), (1, 13, 3)));
        assert!(!data.may_send_r2t() && data.outstanding() == 2);
        assert_eq!(data.accept_pdu(&pdu(7, 0, 8, false), b"ij"), DataClass::Solicited);
        assert_eq!(take_bytes(&mut data, 9), b"abcdefghi");
        assert_eq!(data.accept_pdu(&pdu(7, 1, 10, true), b"klm"), DataClass::Solicited);
        assert_eq!(data.accept_pdu(&pdu(8, 0, 13, true), b"nop"), DataClass::Solicited);
        assert_eq!((take_bytes(&mut data, 99), data.is_complete(), data.position()), (b"jklmnop".to_vec(), true, 16));
    }

    #[test]
    fn data_out_of_order_is_rejected() {
        let new = || {
            let mut data = WriteData::new(16, 8, b"", true);
            assert_eq!(data.accept_pdu(&pdu(NO_TAG, 0, 0, true), b"abcd"), DataClass::Unsolicited { spare: 4 });
            data.request(7, 8);
            data
        };
        for (case, wrong, bytes) in [
            ("unsolicited data after their end", pdu(NO_TAG, 1, 4, true), &b"efgh"[..]),
            ("another R2T's tag", pdu(9, 0, 4, false), b"efgh"),
            ("a gap", pdu(7, 0, 5, false), b"efgh"),
            ("a skipped DataSN", pdu(7, 1, 4, false), b"efgh"),
            ("too long", pdu(7, 0, 4, true), b"efghijklm"),
            ("a final PDU too early", pdu(7, 0, 4, true), b"efgh"),
            ("a missing final bit", pdu(7, 0, 4, false), b"efghijkl"),
        ] {
            assert_eq!(new().accept_pdu(&wrong, bytes), DataClass::OutOfOrder, "{case}");
        }
        let mut early = WriteData::new(16, 8, b"", true);
        assert_eq!(
            early.accept_pdu(&pdu(NO_TAG, 0, 0, true), b"abcdefghi"),
            DataClass::OutOfOrder,
            "past the first burst"
        );
    }

    #[test]
    fn buffer_capacity_is_at_most_twice_the_counted_bytes() {
        let check = |data: &WriteData, into: &Vec<u8>| {
            let counted = data.available_bytes() + data.awaited();
            for (capacity, counted) in [(data.bytes.capacity(), counted), (into.capacity(), into.len())] {
                assert!(capacity <= 2 * counted, "capacity of {capacity} bytes, {counted} are counted");
            }
        };
        // Parts that are not aligned to PDUs leave a remainder of each.
        let (mut data, mut into, mut taken) = (WriteData::new(64 << 20, 256 << 10, &[7; 4096], true), Vec::new(), 0);
        data.accept_pdu(&pdu(NO_TAG, 0, 4096, true), &[7; 252 << 10]);
        for tag in 0..255 {
            into.clear();
            taken += data.take(248 << 10, &mut into);
            check(&data, &into);
            let (_, offset, len) = data.request(tag, 256 << 10);
            for (data_sn, part) in (0..).zip([100 << 10, 156 << 10]) {
                let offset = offset + if data_sn == 0 { 0 } else { len - part };
                let pdu = pdu(tag, data_sn, offset, data_sn == 1);
                assert_eq!(data.accept_pdu(&pdu, &[7; 156 << 10][..part as usize]), DataClass::Solicited);
                check(&data, &into);
            }
        }
        assert_eq!((data.available_bytes() + taken, data.may_send_r2t()), (64 << 20, false));
        into.clear();
        data.take(512, &mut into);
        check(&data, &into);
        // More capacity is reserved than unsolicited data arrives.
        let mut short = WriteData::new(1 << 20, 256 << 10, &[], true);
        short.accept_pdu(&pdu(NO_TAG, 0, 0, false), &[7; 512]);
        assert_eq!(
            short.accept_pdu(&pdu(NO_TAG, 1, 512, true), &[7; 512]),
            DataClass::Unsolicited { spare: 255 << 10 }
        );
        check(&short, &Vec::new());
    }

    #[test]
    fn data_after_the_end_is_dropped() {
        let mut data = WriteData::new(16, 8, b"abcd", false);
        data.request(7, 12);
        assert_eq!(data.stop_reception(), 16);
        assert_eq!(data.accept_pdu(&pdu(7, 0, 4, true), b"efghijklmnop"), DataClass::Solicited);
        assert_eq!((data.available_bytes(), data.is_complete(), data.may_send_r2t()), (0, true, false));
    }
}
