//! Orders of the daemon to `hotset-rbd`: one line of text each, on the control channel.

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Mark the image as lacking flushed writes that only the daemon's flash log may have, or remove the mark.
    /// [`Status::Marked`](super::Status::Marked) or [`Status::NotMarked`](super::Status::NotMarked) answers it.
    MarkUndestaged(bool),
}

impl Order {
    /// The order as a line, with its end.
    pub fn encode(self) -> &'static str {
        match self {
            Order::MarkUndestaged(true) => "mark\n",
            Order::MarkUndestaged(false) => "unmark\n",
        }
    }

    /// Parses a line; `None` if it is no order.
    pub fn parse(line: &str) -> Option<Order> {
        [true, false].map(Order::MarkUndestaged).into_iter().find(|order| order.encode().trim_end() == line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_round_trip() {
        for is_marked in [true, false] {
            let order = Order::MarkUndestaged(is_marked);
            assert_eq!(Order::parse(order.encode()), Some(order));
        }
        assert_eq!(Order::parse("mark it"), None);
    }
}
