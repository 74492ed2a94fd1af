//! History of one volume: all operations of clients and administrators with their outcomes, in order.

use std::fmt;

use seam::Nanos;

use crate::content::OpId;

/// Position in the total order of operation begins and ends.
pub type Tick = u64;

/// Kind of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The initial content of the volume.
    Initial,
    /// A write.
    Write,
    /// A zero-range.
    Zero,
    /// A discard.
    Discard,
    /// A read.
    Read,
    /// A flush of all sectors.
    Flush,
    /// An allocation status request.
    Allocation,
    /// A prefetch hint.
    Prefetch,
    /// A drain (destage of all, or detach) of all sectors.
    Drain(String),
    /// An event caused by an administrator or the world, on all sectors.
    Event(String),
    /// An injected fault; listed only in the history of the whole volume.
    Fault(String),
}

impl OpKind {
    /// True when the operation changes the content of its sectors.
    pub fn changes(&self) -> bool {
        matches!(self, OpKind::Initial | OpKind::Write | OpKind::Zero | OpKind::Discard)
    }
}

/// Outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not ended, or cut off by a crash.
    Pending,
    /// Acknowledged.
    Ok,
    /// Failed with this error.
    Failed(String),
}

/// State of a write that only the backing held when the backing lost its unflushed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The backing has not lost the write.
    None,
    /// The write may be lost, and no flush has reported it yet.
    Unreported,
    /// The write may be lost, and a failed flush has reported it.
    Reported,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Number of the client; 0 for the world.
    pub client: u16,
    /// Kind of the operation.
    pub kind: OpKind,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
    /// The acknowledgement promises durability.
    pub fua: bool,
    /// Tick of the submission.
    pub begin: Tick,
    /// Tick of the completion; [`Tick::MAX`] while pending.
    pub end: Tick,
    /// Virtual time of `begin`.
    pub began_at: Nanos,
    /// Virtual time of `end`.
    pub ended_at: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// True if the volume promised durability only after the deferral time (write-back-volatile) when the operation
    /// ended.
    pub volatile: bool,
    /// True if only the backing holds the write until a flush. A backing that loses its unflushed data loses this
    /// write.
    pub write_through: bool,
    /// State of the write after a loss in the backing.
    pub loss: Loss,
}

impl Op {
    /// True when the operation concerns `sector`.
    pub fn covers(&self, sector: u64) -> bool {
        matches!(self.kind, OpKind::Flush | OpKind::Drain(_) | OpKind::Event(_))
            || (self.first..self.first + self.count).contains(&sector)
    }
}

/// One line of text: number, client, kind, sectors, times, outcome.
pub struct OpLine<'a>(pub OpId, pub &'a Op);

impl fmt::Display for OpLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpLine(id, op) = self;
        write!(f, "op {id:>6}  client {:>2}  ", op.client)?;
        match &op.kind {
            OpKind::Drain(text) | OpKind::Event(text) | OpKind::Fault(text) => write!(f, "-- {text}")?,
            OpKind::Flush => write!(f, "flush")?,
            kind => {
                let fua = if op.fua { " fua" } else { "" };
                let name = format!("{kind:?}").to_lowercase();
                write!(f, "{name}{fua} sectors {}..{}", op.first, op.first + op.count)?;
            }
        }
        write!(f, "  at {}", op.began_at)?;
        match &op.outcome {
            Outcome::Pending if op.end == Tick::MAX => write!(f, ", pending"),
            Outcome::Pending => write!(f, ", never answered: crash at {}", op.ended_at),
            Outcome::Ok => write!(f, ", ok at {}", op.ended_at),
            Outcome::Failed(reason) => write!(f, ", failed at {}: {reason}", op.ended_at),
        }?;
        match op.loss {
            Loss::None => Ok(()),
            Loss::Unreported => f.write_str(", lost by the backing"),
            Loss::Reported => f.write_str(", lost by the backing and reported by a flush"),
        }
    }
}
