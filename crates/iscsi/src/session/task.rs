//! A command under way, as its session sees it: how it is ended before its time, and what has come of its data.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use iscsi_protocol::NO_TAG;
use iscsi_protocol::request::DataOut;
use scsi::Cancel;

/// A command under way.
pub(crate) struct Task {
    /// The initiator's name for it.
    pub(crate) tag: u32,
    /// The address of its unit.
    pub(crate) lun: [u8; 8],
    /// Its place among the session's commands.
    pub(super) number: u64,
    /// It changes nothing: whether it has ended makes no difference to whoever has aborted it.
    pub(super) is_harmless: bool,
    /// It came without a number.
    pub(super) is_immediate: bool,
    /// Its data did not come as they should.
    pub(super) is_broken: Cell<bool>,
    /// Tells the unit that nobody waits for it any more.
    pub(super) cancel: Cancel,
    /// Nothing of it happens any more.
    ended: Cell<bool>,
    /// What has come of its data.
    pub(super) data: RefCell<Arriving>,
    waker: RefCell<Option<Waker>>,
    /// Who waits for its end.
    watchers: RefCell<Vec<Waker>>,
}

impl Task {
    pub(super) fn new(
        tag: u32,
        lun: [u8; 8],
        number: u64,
        is_harmless: bool,
        is_immediate: bool,
        data: Arriving,
    ) -> Self {
        let (is_broken, cancel, ended, waker, watchers) = Default::default();
        Task {
            tag,
            lun,
            number,
            is_harmless,
            is_immediate,
            is_broken,
            cancel,
            ended,
            data: RefCell::new(data),
            waker,
            watchers,
        }
    }

    /// Has it look again whether its data have come, or whether it is cancelled.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Nobody waits for its answer any more.
    pub(super) fn cancel(&self) {
        self.cancel.cancel();
        self.wake();
    }

    /// Nothing of it happens any more.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.watchers.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Waits for its end.
    pub(crate) async fn until_ended(&self) {
        poll_fn(|context| {
            if self.ended.get() {
                return Poll::Ready(());
            }
            self.watchers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Remembers whom to wake, also when another initiator ends the command.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.cancel.wake_when_cancelled(context.waker());
        *self.waker.borrow_mut() = Some(context.waker().clone());
    }
}

/// What was asked for of a write.
#[derive(Debug)]
struct Asked {
    tag: u32,
    /// Where it ends in the command's data.
    end: u32,
    /// Number of its next PDU.
    data_sn: u32,
}

/// The data of a write, as they arrive. They come in order: what was not asked for first, then what was, R2T by R2T.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    /// Bytes that the initiator has.
    expected: u32,
    /// Most that may come without being asked for.
    unasked_max: u32,
    /// More comes without being asked for, for which room was made; and the number of its next PDU.
    unasked: Option<u32>,
    /// What has come and was not taken. Has room for at most twice as much as that and what is to come, which is what its session counts.
    bytes: VecDeque<u8>,
    /// Bytes that have come.
    received: u32,
    /// Bytes that have come or were asked for.
    requested: u32,
    asked: VecDeque<Asked>,
    /// R2Ts so far.
    r2ts: u32,
    /// Nobody takes anything any more: what still comes is dropped.
    is_over: bool,
}

/// What a piece of data meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// It was asked for, and room was made for it then.
    Asked,
    /// It came by itself; so much less than there was room for comes.
    Unasked { spare: u32 },
    /// It does not belong there: the initiator does not keep to the protocol.
    Wrong,
}

impl Arriving {
    /// The data of a command that writes `expected` bytes, the first of which came with it. `goes_on`: more comes without being asked for,
    /// up to `unasked_max` bytes in all.
    pub(super) fn new(expected: u32, unasked_max: u32, first: &[u8], goes_on: bool) -> Self {
        let (received, unasked_max) = (first.len() as u32, unasked_max.min(expected));
        Arriving {
            expected,
            unasked_max,
            unasked: goes_on.then_some(0),
            bytes: first.to_vec().into(),
            received,
            requested: if goes_on { unasked_max } else { received },
            ..Arriving::default()
        }
    }

    /// Takes in what one PDU brings.
    pub(super) fn arrive(&mut self, pdu: &DataOut, data: &[u8]) -> Arrived {
        let Some(end) = self.received.checked_add(data.len() as u32).filter(|_| pdu.offset == self.received) else {
            return Arrived::Wrong;
        };
        let kind = if pdu.target_tag == NO_TAG {
            let Some(data_sn) = self.unasked.filter(|_| end <= self.unasked_max) else { return Arrived::Wrong };
            if pdu.data_sn != data_sn {
                return Arrived::Wrong;
            }
            self.unasked = (!pdu.is_final).then_some(data_sn + 1);
            let spare = if pdu.is_final { self.unasked_max - end } else { 0 };
            self.requested -= spare;
            Arrived::Unasked { spare }
        } else {
            let Some(asked) = self.asked.front_mut() else { return Arrived::Wrong };
            let is_last = end == asked.end;
            if asked.tag != pdu.target_tag || pdu.data_sn != asked.data_sn || end > asked.end || pdu.is_final != is_last
            {
                return Arrived::Wrong;
            }
            asked.data_sn += 1;
            if is_last {
                self.asked.pop_front();
            }
            Arrived::Asked
        };
        if !self.is_over {
            // For all that is to come at once: to grow step by step takes up to twice as much.
            self.bytes.reserve_exact(self.awaited());
            self.bytes.extend(data);
        }
        self.received = end;
        self.trim();
        kind
    }

    /// Bytes that room was made for and that have not come.
    fn awaited(&self) -> usize {
        (self.requested - self.received) as usize
    }

    /// Bytes that could be taken now.
    pub(super) fn here(&self) -> usize {
        self.bytes.len()
    }

    /// Moves at most `len` bytes to `into`; how many.
    pub(super) fn take(&mut self, len: usize, into: &mut Vec<u8>) -> usize {
        let len = len.min(self.here());
        if into.is_empty() && into.capacity() > 2 * len {
            *into = Vec::new();
        }
        if into.is_empty() && len == self.here() && self.bytes.capacity() <= 2 * len {
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

    /// Gives back the room that what was taken has had, or what does not come, unless there is use for half of it.
    fn trim(&mut self) {
        let counted = self.here() + self.awaited();
        if self.bytes.capacity() > 2 * counted {
            self.bytes.shrink_to(counted);
        }
    }

    /// Where the next bytes to be taken lie in the command's data.
    pub(super) fn position(&self) -> u32 {
        self.received - self.here() as u32
    }

    /// The end of what has come or was asked for.
    pub(super) fn requested(&self) -> u32 {
        self.requested
    }

    /// True while an R2T may be sent: what comes by itself has come, and there is something left to ask for.
    pub(super) fn may_ask(&self) -> bool {
        self.unasked.is_none() && self.requested < self.expected && !self.is_over
    }

    /// R2Ts outstanding.
    pub(super) fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Asks for at most `len` bytes more under the name `tag`: number of the R2T, where they begin, how many.
    pub(super) fn ask(&mut self, tag: u32, len: u32) -> (u32, u32, u32) {
        assert!(self.may_ask(), "nothing is asked for twice, or while it may come by itself");
        let (offset, number) = (self.requested, self.r2ts);
        let len = len.min(self.expected - offset);
        self.requested += len;
        self.r2ts += 1;
        self.asked.push_back(Asked { tag, end: self.requested, data_sn: 0 });
        (number, offset, len)
    }

    /// R2Ts that were sent.
    pub(super) fn r2ts(&self) -> u32 {
        self.r2ts
    }

    /// Nobody takes anything any more. Bytes that had come or room was made for; the second time there are none.
    pub(super) fn end(&mut self) -> usize {
        if std::mem::replace(&mut self.is_over, true) {
            return 0;
        }
        let held = self.here() + self.awaited();
        self.bytes = VecDeque::new();
        held
    }

    /// True when nobody takes anything any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// True when nothing more is on its way: an answer may be sent.
    pub(super) fn is_settled(&self) -> bool {
        self.unasked.is_none() && self.asked.is_empty()
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

    fn taken(data: &mut Arriving, len: usize) -> Vec<u8> {
        let mut into = Vec::new();
        data.take(len, &mut into);
        into
    }

    #[test]
    fn who_waits_for_data_is_woken_when_another_initiator_ends_the_command() {
        #[derive(Default)]
        struct Bell(AtomicU32);
        impl Wake for Bell {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let bell = Arc::<Bell>::default();
        let task = Task::new(1, [0; 8], 1, false, false, Arriving::new(8, 0, b"", false));
        task.register(&Context::from_waker(&Arc::clone(&bell).into()));
        // As the target does for PREEMPT AND ABORT, which knows nothing of tasks.
        task.cancel.clone().cancel();
        assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn data_come_by_themselves_and_then_as_they_are_asked_for() {
        let mut data = Arriving::new(16, 8, b"ab", true);
        assert!(!data.may_ask());
        assert_eq!(data.arrive(&pdu(NO_TAG, 0, 2, false), b"cdef"), Arrived::Unasked { spare: 0 });
        assert_eq!(data.arrive(&pdu(NO_TAG, 1, 6, true), b"gh"), Arrived::Unasked { spare: 0 });
        assert_eq!((data.here(), data.may_ask()), (8, true));
        assert_eq!((data.ask(7, 5), data.ask(8, 5)), ((0, 8, 5), (1, 13, 3)));
        assert!(!data.may_ask() && data.outstanding() == 2);
        assert_eq!(data.arrive(&pdu(7, 0, 8, false), b"ij"), Arrived::Asked);
        assert_eq!(taken(&mut data, 9), b"abcdefghi");
        assert_eq!(data.arrive(&pdu(7, 1, 10, true), b"klm"), Arrived::Asked);
        assert_eq!(data.arrive(&pdu(8, 0, 13, true), b"nop"), Arrived::Asked);
        assert_eq!((taken(&mut data, 99), data.is_settled(), data.position()), (b"jklmnop".to_vec(), true, 16));
    }

    #[test]
    fn what_does_not_belong_there_is_wrong() {
        let new = || {
            let mut data = Arriving::new(16, 8, b"", true);
            assert_eq!(data.arrive(&pdu(NO_TAG, 0, 0, true), b"abcd"), Arrived::Unasked { spare: 4 });
            data.ask(7, 8);
            data
        };
        for (what, wrong, bytes) in [
            ("unasked", pdu(NO_TAG, 1, 4, true), &b"efgh"[..]),
            ("another's", pdu(9, 0, 4, false), b"efgh"),
            ("a gap", pdu(7, 0, 5, false), b"efgh"),
            ("a number left out", pdu(7, 1, 4, false), b"efgh"),
            ("too long", pdu(7, 0, 4, true), b"efghijklm"),
            ("an end too early", pdu(7, 0, 4, true), b"efgh"),
            ("no end", pdu(7, 0, 4, false), b"efghijkl"),
        ] {
            assert_eq!(new().arrive(&wrong, bytes), Arrived::Wrong, "{what}");
        }
        let mut early = Arriving::new(16, 8, b"", true);
        assert_eq!(early.arrive(&pdu(NO_TAG, 0, 0, true), b"abcdefghi"), Arrived::Wrong, "past the first burst");
    }

    #[test]
    fn no_more_room_is_held_than_twice_what_is_counted() {
        let check = |data: &Arriving, into: &Vec<u8>| {
            let counted = data.here() + data.awaited();
            for (room, counted) in [(data.bytes.capacity(), counted), (into.capacity(), into.len())] {
                assert!(room <= 2 * counted, "room for {room} bytes, {counted} are counted");
            }
        };
        // Parts that end elsewhere than what comes: something is left of each.
        let (mut data, mut into, mut taken) = (Arriving::new(64 << 20, 256 << 10, &[7; 4096], true), Vec::new(), 0);
        data.arrive(&pdu(NO_TAG, 0, 4096, true), &[7; 252 << 10]);
        for tag in 0..255 {
            into.clear();
            taken += data.take(248 << 10, &mut into);
            check(&data, &into);
            let (_, offset, len) = data.ask(tag, 256 << 10);
            for (data_sn, part) in (0..).zip([100 << 10, 156 << 10]) {
                let offset = offset + if data_sn == 0 { 0 } else { len - part };
                let pdu = pdu(tag, data_sn, offset, data_sn == 1);
                assert_eq!(data.arrive(&pdu, &[7; 156 << 10][..part as usize]), Arrived::Asked);
                check(&data, &into);
            }
        }
        assert_eq!((data.here() + taken, data.may_ask()), (64 << 20, false));
        into.clear();
        data.take(512, &mut into);
        check(&data, &into);
        // Room was made for more than comes.
        let mut short = Arriving::new(1 << 20, 256 << 10, &[], true);
        short.arrive(&pdu(NO_TAG, 0, 0, false), &[7; 512]);
        assert_eq!(short.arrive(&pdu(NO_TAG, 1, 512, true), &[7; 512]), Arrived::Unasked { spare: 255 << 10 });
        check(&short, &Vec::new());
    }

    #[test]
    fn what_comes_after_the_end_is_dropped() {
        let mut data = Arriving::new(16, 8, b"abcd", false);
        data.ask(7, 12);
        assert_eq!(data.end(), 16);
        assert_eq!(data.arrive(&pdu(7, 0, 4, true), b"efghijklmnop"), Arrived::Asked);
        assert_eq!((data.here(), data.is_settled(), data.may_ask()), (0, true, false));
    }
}
