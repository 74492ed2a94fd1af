//! Orders of the daemon to `hotset-rbd`: one line of text each, on the control channel.

/// An order to mark the image as lacking flushed writes that only the daemon's flash log may have, or to remove the
/// mark. [`Status::Marked`](super::Status::Marked) or [`Status::NotMarked`](super::Status::NotMarked) answers it, with
/// its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its number. An order that is repeated keeps it.
    pub number: u64,
    /// The image is to have the mark.
    pub is_marked: bool,
}

impl Order {
    /// The order as a line, with its end.
    pub fn encode(self) -> String {
        let verb = if self.is_marked { "mark" } else { "unmark" };
        format!("{verb} {}\n", self.number)
    }

    /// Parses a line; `None` if it is no order.
    pub fn parse(line: &str) -> Option<Order> {
        let (verb, number) = line.trim_end().split_once(' ')?;
        let is_marked = match verb {
            "mark" => true,
            "unmark" => false,
            _ => return None,
        };
        Some(Order { number: number.parse().ok()?, is_marked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_round_trip() {
        for is_marked in [true, false] {
            let order = Order { number: 7, is_marked };
            assert_eq!(Order::parse(&order.encode()), Some(order));
        }
        for line in ["mark", "mark it", "remark 7"] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
    }
}
