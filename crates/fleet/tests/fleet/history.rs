//! The history of a volume: operations of clients, with the numbers of the events of invocation and completion.

/// An operation of a client on a block, or of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Write {
        block: usize,
        value: u32,
    },
    Read {
        block: usize,
    },
    Flush,
    /// The owner was lost without a release: writes since the last flush may be undone.
    Crash,
    /// The owner's memory went back in time: writes since the last flush may be undone, and the others are as volatile
    /// as before.
    Rewind,
}

/// An operation in a history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOp {
    pub kind: OpKind,
    pub invoked: u64,
    /// Number of the event, and the value of a read; `None` if the outcome is unknown.
    pub completed: Option<(u64, u32)>,
}

/// The history of a volume.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub ops: Vec<HistoryOp>,
}

impl History {
    pub fn invoke(&mut self, event: u64, kind: OpKind) -> usize {
        self.ops.push(HistoryOp { kind, invoked: event, completed: None });
        self.ops.len() - 1
    }

    pub fn complete(&mut self, event: u64, op: usize, value: u32) {
        self.ops[op].completed = Some((event, value));
    }
}
