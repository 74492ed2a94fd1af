//! Everything that clients and administrators did to one volume, and what came of it, in the order it happened.

use std::fmt;

use seam::Nanos;

use super::content::OpId;

/// Position in the total order of beginnings and ends of operations.
pub type Tick = u64;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The content that was there before everything else.
    Initial,
    /// A write.
    Write,
    /// A zero-range.
    Zero,
    /// A discard.
    Discard,
    /// A read.
    Read,
    /// A flush; of all sectors.
    Flush,
    /// Allocation status.
    Allocation,
    /// A hint to read.
    Prefetch,
    /// A drain (destage of all, detaching); of all sectors.
    Drain(String),
    /// Anything that an administrator or the world does; of all sectors.
    Event(String),
    /// What fate does; told only in the whole volume's history.
    Trouble(String),
}

impl OpKind {
    /// True when it gives the sectors new content.
    pub fn changes(&self) -> bool {
        matches!(self, OpKind::Initial | OpKind::Write | OpKind::Zero | OpKind::Discard)
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet, or never: the world crashed first.
    Pending,
    /// Acknowledged.
    Ok,
    /// Failed with this error.
    Failed(String),
}

/// What became of a write that nobody held when the backing forgot what was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The backing never forgot it.
    None,
    /// It may be gone, and no flush has said so yet.
    Untold,
    /// It may be gone for good: a flush failed afterwards.
    Told,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Who asked: a client's number, or 0 for the world.
    pub client: u16,
    /// What was asked.
    pub kind: OpKind,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub count: u64,
    /// Acknowledged only when durable.
    pub fua: bool,
    /// When it was submitted.
    pub begin: Tick,
    /// When its end was seen; [`Tick::MAX`] while pending.
    pub end: Tick,
    /// Virtual time of `begin`.
    pub began_at: Nanos,
    /// Virtual time of `end`.
    pub ended_at: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// The volume promised durability by age alone (write-back-volatile) when it ended.
    pub volatile: bool,
    /// Nothing held a copy until a flush, so a backing that forgot unflushed data forgot this.
    pub unheld: bool,
    /// Whether the backing forgot it.
    pub loss: Loss,
}

impl Op {
    /// True when `sector` belongs to it.
    pub fn covers(&self, sector: u64) -> bool {
        matches!(self.kind, OpKind::Flush | OpKind::Drain(_) | OpKind::Event(_))
            || (self.first..self.first + self.count).contains(&sector)
    }
}

/// One line for people: number, who, what, where, when, outcome.
pub struct Line<'a>(pub OpId, pub &'a Op);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line(id, op) = self;
        write!(f, "op {id:>6}  client {:>2}  ", op.client)?;
        match &op.kind {
            OpKind::Drain(text) | OpKind::Event(text) | OpKind::Trouble(text) => write!(f, "-- {text}")?,
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
            Outcome::Failed(why) => write!(f, ", failed at {}: {why}", op.ended_at),
        }?;
        match op.loss {
            Loss::None => Ok(()),
            Loss::Untold => f.write_str(", forgotten by the backing"),
            Loss::Told => f.write_str(", forgotten by the backing, a flush said so"),
        }
    }
}
