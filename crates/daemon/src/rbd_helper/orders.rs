//! Orders to a helper to change the mark of its image: one is in progress at a time, and its answer repeats its number.

use rbd::Order;
use seam::{DiskError, DiskResult};
use tokio::sync::oneshot;

/// The end of an order.
pub type OrderEnd = oneshot::Receiver<DiskResult<()>>;

/// The orders to one helper.
#[derive(Default)]
pub struct Orders {
    last_number: u64,
    pending: Option<PendingOrder>,
}

/// An order without an answer, repeated if the helper is started again.
struct PendingOrder {
    order: Order,
    waiting: Vec<oneshot::Sender<DiskResult<()>>>,
}

impl PendingOrder {
    fn end(self, result: &DiskResult<()>) {
        for waiting in self.waiting {
            // The receiver has given up if this fails.
            let (Ok(()) | Err(_)) = waiting.send(result.clone());
        }
    }
}

impl Orders {
    /// Begins an order, or joins one in progress for the same. A different one in progress fails by that: the helper
    /// carries out both, and a later start of it repeats only the last one.
    pub fn begin(&mut self, is_marked: bool) -> OrderEnd {
        let replaced = self.pending.take_if(|pending| pending.order.is_marked != is_marked);
        let failure = Err(DiskError::Open("another mark of the image was ordered meanwhile".to_owned()));
        replaced.into_iter().for_each(|replaced| replaced.end(&failure));
        let (ended, end) = oneshot::channel();
        let pending = self.pending.get_or_insert_with(|| {
            self.last_number += 1;
            PendingOrder { order: Order { number: self.last_number, is_marked }, waiting: Vec::new() }
        });
        pending.waiting.push(ended);
        end
    }

    /// The order in progress.
    pub fn pending(&self) -> Option<Order> {
        self.pending.as_ref().map(|pending| pending.order)
    }

    /// Ends the order in progress if it has this number: the late answer to a former order is none to this one.
    pub fn end(&mut self, number: u64, result: &DiskResult<()>) {
        let ended = self.pending.take_if(|pending| pending.order.number == number);
        ended.into_iter().for_each(|ended| ended.end(result));
    }

    /// Ends the order in progress with an error.
    pub fn fail(&mut self, error: DiskError) {
        self.pending.take().into_iter().for_each(|pending| pending.end(&Err(error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_ends_with_the_answer_to_its_own_number() {
        let mut orders = Orders::default();
        let mut first = orders.begin(true);
        let mut joined = orders.begin(true);
        assert_eq!(orders.pending(), Some(Order { number: 1, is_marked: true }));
        let mut removal = orders.begin(false);
        for replaced in [&mut first, &mut joined] {
            assert!(replaced.try_recv().expect("it has ended").is_err());
        }
        let mut last = orders.begin(true);
        assert!(removal.try_recv().expect("it has ended").is_err());
        assert_eq!(orders.pending(), Some(Order { number: 3, is_marked: true }));
        orders.end(1, &Ok(()));
        orders.end(2, &Err(DiskError::Gone));
        assert!(last.try_recv().is_err(), "those were answers to former orders");
        orders.end(3, &Ok(()));
        assert_eq!((last.try_recv(), orders.pending()), (Ok(Ok(())), None));
    }
}
