//! Command numbers (4.2.2.1): which command is next, and how many more may come. Numbers wrap around.

/// The target's side of command numbering in one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    expected: u32,
    max: u32,
}

/// What a command's number says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// It is the next one.
    Next,
    /// Seen before, or past the window: to be passed over in silence.
    Outside,
    /// Those before it are missing.
    Gap,
}

/// True when `a` comes before `b` in serial arithmetic (RFC 1982).
pub fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Window {
    /// A window that begins with the command `first`, with room for `room` commands (below 2^31).
    pub fn new(first: u32, room: u32) -> Window {
        Window { expected: first, max: first.wrapping_add(room).wrapping_sub(1) }
    }

    /// The number that the next command must have.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// The highest number that a command may have.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// What `number` says about a command that is not immediate; the next one moves the window's start.
    pub fn take(&mut self, number: u32) -> Numbered {
        if is_before(number, self.expected) || is_before(self.max, number) {
            Numbered::Outside
        } else if number == self.expected {
            self.expected = number.wrapping_add(1);
            Numbered::Next
        } else {
            Numbered::Gap
        }
    }

    /// Lets `room` more commands in from the next one on, but never takes back what was promised.
    pub fn open(&mut self, room: u32) {
        let max = self.expected.wrapping_add(room).wrapping_sub(1);
        if is_before(self.max, max) {
            self.max = max;
        }
    }

    /// How many commands may still come.
    pub fn room(&self) -> u32 {
        self.max.wrapping_sub(self.expected).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_in_order_across_the_end_of_the_numbers() {
        let mut window = Window::new(u32::MAX - 1, 4);
        assert_eq!(window.max(), 1);
        for number in [u32::MAX - 1, u32::MAX, 0, 1] {
            assert_eq!(window.take(number), Numbered::Next);
        }
        assert_eq!((window.take(2), window.room()), (Numbered::Outside, 0));
        window.open(3);
        assert_eq!(
            (window.take(3), window.take(1), window.take(2)),
            (Numbered::Gap, Numbered::Outside, Numbered::Next)
        );
    }

    #[test]
    fn what_was_promised_is_not_taken_back() {
        let mut window = Window::new(10, 128);
        window.open(0);
        assert_eq!((window.max(), window.room()), (137, 128));
        assert_eq!(window.take(10), Numbered::Next);
        window.open(128);
        assert_eq!(window.max(), 138);
    }
}
