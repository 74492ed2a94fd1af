//! Command numbering (4.2.2.1): the next command number and the command window. Numbers wrap around.

/// The target's command window of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    expected: u32,
    max: u32,
}

/// Order of a received command number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOrder {
    /// The expected number.
    Next,
    /// A repeated number or one outside the window: the command is ignored.
    Outside,
    /// A number beyond the expected one: earlier commands are missing.
    Gap,
}

/// True if `a` precedes `b` in serial number arithmetic (RFC 1982).
pub fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Window {
    /// A window from the command `first` on, for `commands` commands (below 2^31).
    pub fn new(first: u32, commands: u32) -> Window {
        Window { expected: first, max: first.wrapping_add(commands).wrapping_sub(1) }
    }

    /// ExpCmdSN.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Classifies the number of a command that is not immediate; the expected number advances the window.
    pub fn accept(&mut self, number: u32) -> CommandOrder {
        if is_before(number, self.expected) || is_before(self.max, number) {
            CommandOrder::Outside
        } else if number == self.expected {
            self.expected = number.wrapping_add(1);
            CommandOrder::Next
        } else {
            CommandOrder::Gap
        }
    }

    /// Opens the window for `commands` commands from the expected one on. The window never shrinks.
    pub fn open(&mut self, commands: u32) {
        let max = self.expected.wrapping_add(commands).wrapping_sub(1);
        if is_before(self.max, max) {
            self.max = max;
        }
    }

    /// Number of commands that the window admits.
    pub fn free_commands(&self) -> u32 {
        self.max.wrapping_sub(self.expected).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_accepted_in_order_across_wraparound() {
        let mut window = Window::new(u32::MAX - 1, 4);
        assert_eq!(window.max(), 1);
        for number in [u32::MAX - 1, u32::MAX, 0, 1] {
            assert_eq!(window.accept(number), CommandOrder::Next);
        }
        assert_eq!((window.accept(2), window.free_commands()), (CommandOrder::Outside, 0));
        window.open(3);
        assert_eq!(
            (window.accept(3), window.accept(1), window.accept(2)),
            (CommandOrder::Gap, CommandOrder::Outside, CommandOrder::Next)
        );
    }

    #[test]
    fn window_never_shrinks() {
        let mut window = Window::new(10, 128);
        window.open(0);
        assert_eq!((window.max(), window.free_commands()), (137, 128));
        assert_eq!(window.accept(10), CommandOrder::Next);
        window.open(128);
        assert_eq!(window.max(), 138);
    }
}
