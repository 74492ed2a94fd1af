//! Dispatch of commands to the units of a target.

use std::rc::Rc;

use seam::{Piece, Seam};

use crate::cdb::Cdb;
use crate::commands::{self, Task};
use crate::exchange::{Command, DataIn, DataOut};
use crate::failure::Failure;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::opcodes::{Kind, Opcode};
use crate::sense::SenseFormat;
use crate::status::{Outcome, Status};
use crate::target::Target;
use crate::unit::Unit;

impl<S: Seam> Target<S> {
    /// Reads without waiting: appends the whole answer to `pieces` and returns true, or leaves the command to
    /// [`Target::execute`].
    pub fn try_read(&self, nexus: &Nexus, command: &Command<'_>, pieces: &mut Vec<Piece<S::Block>>) -> bool {
        self.ready_unit(nexus, command, Kind::Read)
            .is_some_and(|(unit, cdb)| commands::try_read(&unit, &cdb, command.expected.in_bytes, pieces))
    }

    /// Writes `data` without waiting, if the range is within one block of the engine; otherwise leaves the command to
    /// [`Target::execute`].
    pub fn try_write(&self, nexus: &Nexus, command: &Command<'_>, data: &[u8]) -> bool {
        self.ready_unit(nexus, command, Kind::Write)
            .is_some_and(|(unit, cdb)| commands::try_write(&unit, &cdb, command.expected.out_bytes, data))
    }

    /// Executes a command. The future must run to its end, because operations of the engine are in flight;
    /// [`Command::cancel`] ends it early.
    pub async fn execute(
        &self,
        nexus: &Nexus,
        command: Command<'_>,
        data_out: &mut impl DataOut,
        data_in: &mut impl DataIn<S>,
    ) -> Outcome {
        let unit = Lun::decode(command.lun).and_then(|lun| self.visible_unit(nexus, lun));
        let format = unit.as_ref().map_or(SenseFormat::Fixed, |unit| unit.sense_format());
        let absent_unit = Lun::decode(command.lun).and_then(|lun| self.absent_unit(nexus, lun));
        let mut task = Task::new(self, unit, absent_unit, nexus, &command, data_out, data_in);
        let result = task.run(command.cdb).await;
        let status = match result {
            Ok(status) => status,
            Err(Failure::Check(sense)) => Status::CheckCondition(sense.bytes(format)),
            Err(Failure::Conflict) => Status::ReservationConflict,
            Err(Failure::Cancelled) => Status::Aborted,
        };
        Outcome { status, transfer_bytes: task.transfer_bytes() }
    }

    /// The unit and the CDB of a command of this kind, if no attention, conflict or error prevents the command.
    fn ready_unit<'a>(&self, nexus: &Nexus, command: &Command<'a>, kind: Kind) -> Option<(Rc<Unit<S>>, Cdb<'a>)> {
        let (opcode, cdb) = Opcode::find(command.cdb).ok()?;
        let unit = Lun::decode(command.lun).and_then(|lun| self.visible_unit(nexus, lun))?;
        let ready = opcode.kind == kind
            && opcode.check(&cdb).is_ok()
            && !unit.has_attention(nexus)
            && unit.reservations.check(nexus, opcode.conflict).is_ok()
            && unit.check_present().is_ok();
        ready.then_some((unit, cdb))
    }
}
